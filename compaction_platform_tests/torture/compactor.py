"""The process under test: compacts directories and maintains tables, one JSON request per line.

What takes it down, or holds it up, is found out by whoever asks. Nothing but this module knows the project's API.
"""

import json
import os
import resource
import secrets
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings, load_settings

MOST_MEMORY = 6 << 30  # of address space: a bound that a damaged length must not get past
NAMESPACE = "torture"


def compact(request: dict[str, Any]) -> dict[str, Any]:
    options = dict(request["options"])
    encoding = WriterOptions(
        sort_by=tuple(options.pop("sort_by", ())),
        row_group_bytes=options.pop("row_group_bytes", WriterOptions.row_group_bytes),
    )
    directory = DirectoryConfig(request["directory"], encoding=encoding, **options)
    run = CompactRun(directory, Settings(_env_file=None), lambda: ParallelMap(None, 2))
    report = run.run()
    return {
        "engines": [made.engine for made in report.made],
        "reasons": [made.reason for made in report.made],
        "set_aside": report.set_aside,
        "failed": dict(report.failed) | dict(report.not_removed),
        "settled": run.plan()[0].plan.is_empty,
    }


def maintain(request: dict[str, Any]) -> dict[str, Any]:
    """Make a table of files, maintain it, and copy its data files into a directory."""
    from compaction_platform.lake.iceberg.catalog import open_catalog
    from compaction_platform.maintain.config import MaintenanceRequest, OrphanRules, TableMaintenance
    from compaction_platform.maintain.job import MaintainRun
    from compaction_platform.maintain.plan.file_groups import RewritePolicy

    settings = load_settings()
    catalog = open_catalog(settings)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    name = f"{NAMESPACE}.t_{secrets.token_hex(6)}"
    files = [Path(file) for file in request["files"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = catalog.create_table(name, pyarrow.parquet.read_schema(request["schema_of"]))
            paths = [f"{table.location()}/data/{file.name}" for file in files]
            for file, path in zip(files, paths, strict=True):
                with table.io.new_output(path).create() as stream:
                    stream.write(file.read_bytes())
            table.add_files(paths)
        except Exception as error:  # noqa: BLE001 (PyIceberg does not take these files: there is no table to maintain)
            return {"not_a_table": f"{type(error).__name__}: {error}"[:300]}
        rules = TableMaintenance(
            name, "torture", RewritePolicy(min_files=2), orphans=OrphanRules(enabled=False), expire_snapshots=False
        )
        report = MaintainRun(rules, settings, lambda: ParallelMap(None, 2), _no_session).run(
            MaintenanceRequest(force=True)
        )
        table.refresh()
        after = [task.file.file_path for task in table.scan().plan_files()]
        for path in after:
            target = Path(request["into"]) / path.rpartition("/")[2]
            with table.io.new_input(path).open() as stream:
                target.write_bytes(stream.read())
        catalog.drop_table(name)
    return {
        "engines": [str(each.result.engine) for each in report.committed],
        "failed": dict(report.failed),
        "troubles": list(report.troubles),
    }


def _no_session() -> Any:
    raise RuntimeError("there is no Spark here")


DO = {"compact": compact, "maintain": maintain}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = DO[request["do"]](request)
        except Exception as error:  # noqa: BLE001 (whatever it raised is what came of it)
            answer = {"raised": f"{type(error).__name__}: {error}"[:500], "trace": traceback.format_exc()}
        answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
