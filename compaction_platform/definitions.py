"""The Dagster entry point: loads what `defs/` declares and binds resources. No I/O at import."""

from pathlib import Path

import dagster as dg

from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.dagster.setup import prerequisites_of, setup_job
from compaction_platform.verbs import VERBS, load


@dg.definitions
def defs() -> dg.Definitions:
    tree = dg.ComponentTree.for_project(Path(__file__).parent)
    more = [load(verb.more_definitions)(tree) for verb in VERBS if verb.more_definitions]
    needs = [need for verb in VERBS if verb.more_prerequisites for need in load(verb.more_prerequisites)(tree)]
    platform = dg.Definitions(
        jobs=[
            setup_job([*prerequisites_of(tree), *needs]),
            dg.define_asset_job(
                "checks",
                selection=dg.AssetSelection.all_asset_checks(),
                description="All checks and nothing else; for CI. Fails if a blocking check fails.",
            ),
        ],
        resources={"lake": LakeResource(), "spark": SparkResource()},
        # One process for a run: with an executor of many processes, every step would start its own JVM.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(tree.build_defs(), *more, platform)
