"""Cases one after the other, in processes of their own: prepare, compact, judge, and keep what went wrong."""

import multiprocessing
import queue
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction_platform_tests.torture import readers as all_readers
from compaction_platform_tests.torture.cases import MAINTAINED, Case, Prepared
from compaction_platform_tests.torture.judge import Finding, Judge
from compaction_platform_tests.torture.processes import Answering, ProcessFailed
from compaction_platform_tests.torture.readers import DEFECTS, PROJECT, SLOW, Reader
from compaction_platform_tests.torture.writers import BASES

COMPACTED_WITHIN = 60.0
COMPACTOR = "compaction_platform_tests.torture.compactor"
SLOW_READERS_EVERY = 10  # of damaged cases
WAITING_CASES = 8  # of each worker


@dataclass(frozen=True)
class Setup:
    """What worker processes are given."""

    build: Path
    corpus: Path
    work: Path
    readers: tuple[str, ...]
    python: str
    lake: Mapping[str, str] = field(default_factory=dict)  # environment of the embedded lake, if it runs


@dataclass(frozen=True)
class Result:
    case: Case
    damage: str
    findings: tuple[Finding, ...]
    engines: tuple[str, ...] = ()
    set_aside: int = 0
    skipped: str = ""
    seconds: float = 0.0
    peak_mb: int = 0

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_failure]


class Bench:
    """The readers and the compactor of one worker."""

    def __init__(self, setup: Setup, name: str) -> None:
        self.setup = setup
        self.place = setup.work / name
        logs = self.place / "logs"
        self.readers = {each: all_readers.reader(each, setup.build, logs) for each in setup.readers}
        environment = {"PYTHONPATH": str(PROJECT), "COMPACTION_ENV_FILE": "", **setup.lake}
        self.compactor = Answering([setup.python, "-m", COMPACTOR], logs / "compactor.log", environment)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *problem: object) -> None:
        for process in (self.compactor, *(reader.process for reader in self.readers.values())):
            process.end()

    def run(self, case: Case) -> Result:
        place = self.place / case.name.replace("/", "-").replace(":", "-")
        shutil.rmtree(place, ignore_errors=True)
        began = time.monotonic()
        try:
            prepared = case.prepare(self.setup.corpus, place / "inputs")
        except FileNotFoundError as missing:
            return Result(case, "none", (), skipped=str(missing))
        if case.way == MAINTAINED and not self.setup.lake:
            return Result(case, prepared.damage, (), skipped="there is no lake")
        answer, findings = self._carried_out(prepared, place)
        result = Result(
            case,
            prepared.damage,
            tuple(findings),
            tuple(answer.get("engines", ())),
            len(answer.get("set_aside", ())),
            str(answer.get("not_a_table", "")),
            time.monotonic() - began,
            int(answer.get("peak_mb", 0)),
        )
        if not result.failures:
            shutil.rmtree(place, ignore_errors=True)
        for reader in self.readers.values():
            reader.forget(place)
        return result

    def _carried_out(self, prepared: Prepared, place: Path) -> tuple[dict[str, Any], list[Finding]]:
        yard = place / "after"
        yard.mkdir(parents=True)
        judge = Judge(self._asked(prepared), prepared.case.base.yardstick(self.setup.corpus))
        question: dict[str, Any]
        if prepared.case.way == MAINTAINED:
            files = [str(each.path) for each in prepared.inputs]
            sound = next(str(each.path) for each in prepared.inputs if each.is_sound)
            question = {"do": "maintain", "files": files, "schema_of": sound, "into": str(yard)}
        else:
            for each in prepared.inputs:
                shutil.copyfile(each.path, yard / each.name)
            question = {"do": "compact", "directory": str(yard), "options": prepared.case.options}
        try:
            answer = self.compactor.ask(question, COMPACTED_WITHIN)
        except ProcessFailed as failed:
            return {}, [Finding(f"the compactor {type(failed).__name__.lower()}", str(failed))]
        if answer.get("not_a_table"):
            return answer, []
        findings = list(_told(answer, prepared))
        if "raised" not in answer or question["do"] == "compact":
            judged = judge.table if prepared.case.way == MAINTAINED else judge.directory
            findings += judged(prepared, yard)
        return answer, findings

    def _asked(self, prepared: Prepared) -> dict[str, Reader]:
        case = prepared.case
        with_slow = case.way == "default" if case.seed is None else case.seed % SLOW_READERS_EVERY == 0
        return {
            name: reader
            for name, reader in self.readers.items()
            if (with_slow or name not in SLOW) and case.base.settings not in DEFECTS.get(name, ())
        }


def _told(answer: Mapping[str, Any], prepared: Prepared) -> Iterator[Finding]:
    """What the run itself said went wrong. That it leaves the damaged file alone is right."""
    if "raised" in answer:
        yield Finding("raised", f"{answer['raised']}\n{answer['trace']}")
    for key, why in answer.get("failed", {}).items():
        of_damaged = any(key.endswith(f"/{each.name}") for each in prepared.inputs if not each.is_sound)
        yield Finding("not done", f"{key}: {why}", is_failure=not of_damaged)
    for trouble in answer.get("troubles", ()):
        yield Finding("not done", trouble)
    if not answer.get("settled", True) and not answer.get("failed"):
        yield Finding("not settled", "the next run would do something again")


# ------------------------------------------------------------ many


def work(setup: Setup, name: str, cases: Any, results: Any) -> None:
    """Body of a worker process: until there is no case."""
    with Bench(setup, name) as bench:
        while (case := cases.get()) is not None:
            results.put(bench.run(case))
    results.put(None)


def run_all(
    setup: Setup, parts: Iterable[tuple[Iterable[Case], float]], workers: int, tell: Callable[[Result], None]
) -> list[Result]:
    """Results of all cases that are begun before the end of their part, by the monotonic clock."""
    context = multiprocessing.get_context("spawn")
    queues: list[Any] = [context.Queue(WAITING_CASES) for _ in range(workers)]
    done: Any = context.Queue()
    processes = [
        context.Process(target=work, args=(setup, f"worker-{number}", cases, done))
        for number, cases in enumerate(queues)
    ]
    for process in processes:
        process.start()
    feeder = threading.Thread(target=_feed, args=(parts, queues), daemon=True)
    feeder.start()
    results: list[Result] = []
    running = workers
    while running:
        try:
            result = done.get(timeout=10)
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                raise RuntimeError("the worker processes are gone") from None
            continue
        if result is None:
            running -= 1
        else:
            results.append(result)
            tell(result)
    for process in processes:
        process.join()
    return results


def _feed(parts: Iterable[tuple[Iterable[Case], float]], queues: Sequence[Any]) -> None:
    """Cases of one base go to one worker: it remembers what readers saw in the inputs."""
    for cases, end in parts:
        for case in cases:
            if time.monotonic() >= end:
                break
            queues[BASES.index(case.base) % len(queues)].put(case)
    for each in queues:
        each.put(None)


def summary(results: Sequence[Result]) -> str:
    """What was run, what came of it, and each kind of failure with its first seeds."""
    ran = [result for result in results if not result.skipped]
    engines = Counter(engine for result in ran for engine in result.engines)
    notes = Counter(finding.kind for result in ran for finding in result.findings if not finding.is_failure)
    lines = [
        f"{len(ran):,} cases, {len(results) - len(ran):,} left out (no such writer, or no table for such files)",
        f"files made by engine: {dict(engines.most_common())}; files set aside: {sum(r.set_aside for r in ran):,}",
        f"most memory of a compacting process: {max((r.peak_mb for r in ran), default=0):,} MB",
        f"slowest case: {max((r.seconds for r in ran), default=0):.1f} s",
    ]
    if notes:
        lines.append(f"noted, no failures: {dict(notes.most_common())}")
    kinds: dict[str, list[tuple[Result, Finding]]] = {}
    for result in ran:
        for finding in result.failures:
            kinds.setdefault(finding.kind, []).append((result, finding))
    for kind, found in sorted(kinds.items()):
        cases = list(dict.fromkeys(result.case.name for result, _ in found))
        lines.append(f"FAILED: {kind}: {len(cases)} cases: {', '.join(cases[:12])}")
        lines += [_shown(result, finding) for result, finding in found[:3]]
    return "\n".join(lines)


def _shown(result: Result, finding: Finding) -> str:
    detail = finding.detail.splitlines()[0][:240]
    return f"    {result.case.command}  ({result.case.base.name}:{result.case.way}, {result.damage}): {detail}"
