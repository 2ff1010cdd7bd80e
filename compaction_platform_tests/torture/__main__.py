"""`python -m compaction_platform_tests.torture`: what `make torture` runs. docs/torture.md says what it proves."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compaction_platform_tests.torture import cases, readers, writers
from compaction_platform_tests.torture.campaign import Bench, Result, Setup, run_all, summary
from compaction_platform_tests.torture.cases import Case

SOUND_SHARE = 0.4  # of the time
FEWEST_READERS = 6
WORKERS = 2
TELL_EVERY = 15.0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("--minutes", type=float, default=10.0, help="in all, without building")
    parser.add_argument("--seeds", type=int, help="this many seeds and all sound cases, however long it takes")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, and keep its files")
    parser.add_argument("--case", help="only this sound case, and keep its files")
    parser.add_argument("--readers", help="only these, separated by commas")
    parser.add_argument("--no-lake", action="store_true", help="without tables")
    return parser.parse_args()


def set_up(given: argparse.Namespace) -> Setup:
    """Build the readers and the corpus. Exits if too few readers work."""
    build = readers.build_place()
    missing = readers.build_all(build, say)
    wanted = given.readers.split(",") if given.readers else list(readers.NAMES)
    is_one = given.seed is not None or given.case
    work = build / ("one" if is_one else "work")  # a case can be repeated while the campaign runs
    shutil.rmtree(work, ignore_errors=True)
    corpus = build / "corpus" / writers.version()
    usable = [name for name in wanted if name not in missing]
    setup = Setup(build, corpus, work, tuple(usable), sys.executable)
    for name, why in missing.items():
        say(f"without {name}: {why}")
    left_out = write_corpus(setup)
    say(f"{len(writers.BASES) - left_out} directories of files by {len({b.writer for b in writers.BASES})} writers")
    say(f"readers: {', '.join(usable)}")
    foreign = [name for name in usable if name != "pyarrow"]
    if len(foreign) < FEWEST_READERS and not given.readers:
        sys.exit(f"only {len(foreign)} foreign readers work; {FEWEST_READERS} are needed")
    return setup


def write_corpus(setup: Setup) -> int:
    left_out = 0
    with Bench(setup, "corpus") as bench:
        for base in writers.BASES:
            try:
                writers.write(base, setup.corpus, bench.readers)
            except writers.CannotWrite as reason:
                left_out += 1
                say(f"left out: {base.name}: {str(reason).splitlines()[0][:120]}")
    return left_out


@contextmanager
def beside_a_lake(setup: Setup, wanted: bool) -> Iterator[Setup]:
    """The setup with an embedded lake (no Spark) for tables."""
    if not wanted:
        yield setup
        return
    from compaction_platform.embedded_lake.embedded import EmbeddedLake

    with EmbeddedLake(setup.work / "lake", spark=False, new_ports=True) as lake:
        environment = lake.isolated_environment({})
        yield Setup(setup.build, setup.corpus, setup.work, setup.readers, setup.python, environment)


class Progress:
    """What is told while the campaign runs; failures also go into a file, one JSON line each."""

    def __init__(self, record: Path) -> None:
        self.began = self.told = time.monotonic()
        self.done = self.failed = 0
        self.record = record

    def __call__(self, result: Result) -> None:
        self.done += 1
        self.failed += bool(result.failures)
        for finding in result.failures:
            line = {"case": result.case.name, "base": result.case.base.name, "way": result.case.way}
            line |= {"damage": result.damage, "kind": finding.kind, "detail": finding.detail}
            with self.record.open("a") as record:
                record.write(json.dumps(line) + "\n")
        for finding in result.failures[:1]:
            say(f"FAILED {result.case.command}: {finding.kind}: {finding.detail.splitlines()[0][:160]}")
        now = time.monotonic()
        if now - self.told > TELL_EVERY:
            self.told = now
            say(f"{self.done:,} cases in {now - self.began:.0f} s, {self.rate:.1f} a second, {self.failed} failed")

    @property
    def rate(self) -> float:
        return self.done / max(time.monotonic() - self.began, 0.001)


def run_one(setup: Setup, case: Case) -> int:
    with Bench(setup, "case") as bench:
        result = bench.run(case)
        say(f"{case.base.name}:{case.way}, damage: {result.damage}, engines: {result.engines}{result.skipped}")
        for finding in result.findings:
            say(f"{'FAILED' if finding.is_failure else 'noted'}: {finding.kind}: {finding.detail}")
        if result.failures:
            say(f"the files are in {bench.place}")
    return int(bool(result.failures))


def run_many(setup: Setup, given: argparse.Namespace) -> int:
    began = time.monotonic()
    bounded = given.seeds is None
    end = began + (given.minutes * 60 if bounded else float("inf"))
    middle = began + given.minutes * 60 * SOUND_SHARE if bounded else end
    seeds = range(given.first_seed, sys.maxsize if bounded else given.first_seed + given.seeds)
    damaged = map(cases.of_seed, seeds)
    progress = Progress(setup.work / "failures.jsonl")
    results = run_all(setup, [(cases.sound(), middle), (damaged, end)], WORKERS, progress)
    for title, is_damaged in (("sound files", False), ("damaged files", True)):
        those = [result for result in results if (result.case.seed is not None) == is_damaged]
        say(f"--- {title}\n{summary(those)}")
    say(f"{progress.rate:.1f} cases a second")
    return int(bool(progress.failed))


def main() -> int:
    given = arguments()
    os.environ["COMPACTION_ENV_FILE"] = ""
    setup = set_up(given)
    one = cases.of_seed(given.seed) if given.seed is not None else cases.named(given.case) if given.case else None
    with beside_a_lake(setup, not given.no_lake and (one is None or one.way == cases.MAINTAINED)) as setup:
        return run_many(setup, given) if one is None else run_one(setup, one)


if __name__ == "__main__":
    sys.exit(main())
