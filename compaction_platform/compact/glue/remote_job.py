"""The same run as a job on AWS Glue, EMR Serverless or anywhere else, started and watched by Dagster Pipes.

The request is in the extras: the fields of a `CompactedGlueTable`, and `partitions` to name some.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from dagster_pipes import (
    PipesCliArgsParamsLoader,
    PipesContext,
    PipesContextLoader,
    PipesDefaultContextLoader,
    PipesDefaultMessageWriter,
    PipesEnvVarParamsLoader,
    PipesMessageWriter,
    PipesParamsLoader,
    PipesS3ContextLoader,
    PipesS3MessageWriter,
    open_dagster_pipes,
)
from pydantic import ValidationError

from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.glue.plan.inventory import Selection
from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.settings import Settings, load_settings

if TYPE_CHECKING:
    from compaction_platform.compact.glue.config import GlueTableConfig
    from compaction_platform.compact.glue.report import GlueReport, PartitionResult


class RemoteRequestInvalid(CompactionError):
    """The extras are not a request. Nothing was done."""


class PartitionsUnfinished(CompactionError):
    """Some partitions are as they were; the others are done."""


def main() -> None:
    settings = load_settings()
    loader, context_loader, writer = _channels(settings)
    with (
        open_dagster_pipes(params_loader=loader, context_loader=context_loader, message_writer=writer) as pipes,
        ExitStack() as until_done,
    ):
        session = cache(lambda: until_done.enter_context(spark_session(settings)))

        def spread() -> ParallelMap:
            return ParallelMap(session(), task_slots(session(), settings))

        report = _run(pipes, settings, spread)
        if pipes.is_asset_step:
            pipes.report_asset_materialization(metadata=_figures(report))
        if report.unfinished:
            raise PartitionsUnfinished(
                f"{len(report.unfinished)} partitions are as they were, the first: {report.unfinished[0].name}: "
                f"{report.unfinished[0].why}"
            )


def _run(pipes: PipesContext, settings: Settings, spread: Callable[[], ParallelMap]) -> "GlueReport":
    request = dict(pipes.extras)
    names = request.pop("partitions", None)
    run = GlueRun(
        _requested(request),
        settings,
        spread,
        pipes.log.info,
        done=lambda result: pipes.report_custom_message(_told(result)),
    )
    return run.run(Selection(tuple(names) if names else None))


def _requested(request: Mapping[str, Any]) -> "GlueTableConfig":
    from compaction_platform.compact.glue.component import CompactedGlueTable

    try:
        return CompactedGlueTable(**request).kept()
    except (ValidationError, TypeError) as invalid:
        raise RemoteRequestInvalid(f"the extras are no CompactedGlueTable: {invalid}") from None


def _told(result: "PartitionResult") -> dict[str, Any]:
    """A partition, for `partitions_told` on the other side."""
    return {
        "partition": result.name,
        "outcome": result.outcome,
        "why": result.why,
        **({"problem": result.problem} if result.problem else {}),
        "files_before": result.before.files,
        "files_after": result.after.files,
        "bytes_before": result.before.bytes,
        "bytes_after": result.after.bytes,
        "location": result.location,
    }


def _figures(report: "GlueReport") -> dict[str, Any]:
    return {
        "partitions": len(report.results),
        "partitions_compacted": len(report.compacted),
        "partitions_with_problems": len(report.problems),
        "files_before": report.before.files,
        "files_after": report.after.files,
        "duration": round(report.seconds, 3),
    }


def _channels(settings: Settings) -> tuple[PipesParamsLoader, PipesContextLoader, PipesMessageWriter[Any]]:
    """AWS Glue passes addresses of context and messages as arguments, others as environment variables; both may be on
    S3."""
    by_arguments: PipesParamsLoader = PipesCliArgsParamsLoader()  # type: ignore[no-untyped-call]
    by_variables: PipesParamsLoader = PipesEnvVarParamsLoader()  # type: ignore[no-untyped-call]
    loader = by_arguments if by_arguments.is_dagster_pipes_process() else by_variables
    context: PipesContextLoader = PipesDefaultContextLoader()
    messages: PipesMessageWriter[Any] = PipesDefaultMessageWriter()
    if not loader.is_dagster_pipes_process():
        return loader, context, messages
    client = cache(lambda: aws_client("s3", settings, settings.s3_endpoint))
    if "bucket" in loader.load_context_params():
        context = PipesS3ContextLoader(client=client())
    if "bucket" in loader.load_messages_params():
        messages = PipesS3MessageWriter(client=client())
    return loader, context, messages


if __name__ == "__main__":
    main()
