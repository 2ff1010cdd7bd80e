"""The Dagster entry point: loads what `defs/` declares and binds resources. No I/O at import."""

from pathlib import Path

import dagster as dg

from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.dagster.setup import prerequisites_of, setup_job
from compaction_platform.maintain.component import care_definitions, care_needs, declared, switched_on
from compaction_platform.settings import Profile


@dg.definitions
def defs() -> dg.Definitions:
    tree = dg.ComponentTree.for_project(Path(__file__).parent)
    declared(tree, Profile.development)  # refuses two that would be one
    maintained = switched_on(tree)
    needs = [*prerequisites_of(tree), *(need for table, care in maintained for need in care_needs(table, care))]
    platform = dg.Definitions(
        jobs=[
            setup_job(needs),
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
    cared_for = [care_definitions(table, care) for table, care in maintained]
    return dg.Definitions.merge(tree.build_defs(), *cared_for, platform)
