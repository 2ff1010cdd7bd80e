"""`MaintainedTable` as users write it in YAML. Checks what can be checked without touching anything."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations
from typing import Annotated

import dagster as dg
from pydantic import AfterValidator, Field

from compaction_platform.lake.dagster.component_base import ComponentBase, DeclarationInvalid, as_timedelta
from compaction_platform.lake.dagster.maintenance_config import MaintainedCatalogTable, MaintenanceConfig
from compaction_platform.lake.dagster.provisioning import Prerequisite
from compaction_platform.lake.dagster.time_window import Window
from compaction_platform.lake.storage.identifiers import NameInvalid, checked_identifier
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.maintain.config import CHECK_INTERVAL, MIN_FILES, OrphanRules, TableMaintenance, WriteRules
from compaction_platform.maintain.dagster.assets import maintain_job, maintained_asset, undo_job
from compaction_platform.maintain.dagster.schedules import maintain_schedule
from compaction_platform.maintain.dagster.sensors import health_sensor
from compaction_platform.maintain.operations.write_properties import WriteProperties
from compaction_platform.maintain.plan.file_groups import RewritePolicy
from compaction_platform.maintain.plan.snapshot_retention import Retention
from compaction_platform.settings import Profile


def _table(text: str) -> str:
    parts = text.split(".")
    try:
        if len(parts) != 2:
            raise NameInvalid(f"{text!r} is not a table; example: silver.events")
        for part in parts:
            checked_identifier(part)
    except NameInvalid as error:
        raise ValueError(str(error)) from None
    return text


class MaintainedTable(ComponentBase, MaintenanceConfig):
    """An Iceberg table that is kept healthy: few files, few snapshots, no orphans."""

    table: Annotated[Annotated[str, AfterValidator(_table)], Field(description="The table: namespace.name.")]

    def rules(self, profile: Profile) -> TableMaintenance:
        return rules_of(self.table, self, profile)

    def needs(self) -> list[Prerequisite]:
        return care_needs(self.table, self)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        return care_definitions(self.table, self)


def rules_of(table: str, care: MaintenanceConfig, profile: Profile) -> TableMaintenance:
    chosen, orphans = care.compaction, care.orphans
    return TableMaintenance(
        table=table,
        name=care.name or table.split(".")[1],
        policy=RewritePolicy(
            target_bytes=care.write.target_file_size_mb * MB,
            small_bytes=chosen.small_file_threshold_mb * MB,
            min_files=chosen.min_files_to_compact or MIN_FILES[profile],
            max_files=chosen.max_files_per_compaction,
            max_delete_files=chosen.max_delete_files,
            max_deleted_share=chosen.max_deleted_share,
            sort_by=tuple(chosen.sort_by),
            z_order_by=tuple(chosen.z_order_by),
            settle=as_timedelta(chosen.leave_to_writers_for),
            enabled=chosen.enabled,
        ),
        write=WriteRules(
            care.write.target_file_size_mb, care.write.codec, care.write.row_group_mb, care.write.distribution_mode
        ),
        retention=Retention(care.snapshots.retention_hours, care.snapshots.keep_at_least),
        expire_snapshots=care.snapshots.expire,
        orphans=OrphanRules(
            orphans.enabled,
            timedelta(hours=orphans.older_than_hours),
            timedelta(hours=orphans.quarantine_hours),
        ),
        manifests_from=care.manifests.merge_from,
        check_interval=chosen.opportunistic_check_interval or CHECK_INTERVAL[profile],
        partition_filter=care.partition_filter,
        window=Window.parsed(care.window) if care.window else None,
        automatic=care.automatic,
        second_reader=care.second_reader,
    )


def care_needs(table: str, care: MaintenanceConfig) -> list[Prerequisite]:
    return [WriteProperties(table, rules_of(table, care, Profile.development).write)]


def care_definitions(table: str, care: MaintenanceConfig) -> dg.Definitions:
    def rules(profile: Profile) -> TableMaintenance:
        return rules_of(table, care, profile)

    example = rules(Profile.development)  # names do not depend on the profile
    job = maintain_job(example)
    return dg.Definitions(
        assets=[maintained_asset(example, rules)],
        jobs=[job, undo_job(example)],
        sensors=[health_sensor(example, rules, job)],
        schedules=[maintain_schedule(example, job, care.schedule)] if care.schedule else [],
    )


def declared(tree: dg.ComponentTree, profile: Profile) -> list[TableMaintenance]:
    """Every table that is kept healthy, whichever declaration says so."""
    by_itself = {each.table: each.rules(profile) for each in tree.get_all_components(of_type=MaintainedTable)}
    elsewhere = [rules_of(table, care, profile) for table, care in switched_on(tree)]
    found = [*by_itself.values(), *elsewhere]
    require_distinct(found)
    return found


def require_distinct(found: Sequence[TableMaintenance]) -> None:
    for one, other in combinations(found, 2):
        if one.table == other.table:
            raise DeclarationInvalid(
                f"{one.table} is declared to be maintained twice; keep one of the two declarations."
            )
        if one.name == other.name:
            raise DeclarationInvalid(
                f"{one.table} and {other.table} would both be the asset maintenance/{one.name}; give one of them a "
                "name."
            )


def care_of_other_verbs(tree: dg.ComponentTree) -> dg.Definitions:
    """The maintenance of tables that other declarations ask for. Raises if two declarations are about one table."""
    declared(tree, Profile.development)
    return dg.Definitions.merge(*(care_definitions(table, care) for table, care in switched_on(tree)))


def needs_of_other_verbs(tree: dg.ComponentTree) -> list[Prerequisite]:
    return [need for table, care in switched_on(tree) for need in care_needs(table, care)]


def switched_on(tree: dg.ComponentTree) -> list[tuple[str, MaintenanceConfig]]:
    """Tables of other declarations that say `maintenance`."""
    components = tree.get_all_components(of_type=dg.Component)  # type: ignore[type-abstract]
    asked = [component.maintained() for component in components if isinstance(component, MaintainedCatalogTable)]
    return list({each[0]: each for each in asked if each is not None}.values())  # the tree names some twice
