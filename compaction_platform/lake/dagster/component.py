"""The declaration of what all tables of a deployment stand on."""

from dataclasses import dataclass, field
from typing import Annotated

import dagster as dg

from compaction_platform.lake.dagster.provisioning import DatabaseSchema, LakeBucket, Namespace, Prerequisite


@dataclass
class LakeFoundation(dg.Component, dg.Resolvable):
    """The lake's bucket, and the Iceberg namespaces and database schemas of the whole deployment.

    The `setup` job creates what is missing. Tables add their own needs to these.
    """

    namespaces: Annotated[list[str], dg.Resolver.default(description="Iceberg namespaces.")] = field(
        default_factory=list
    )
    database_schemas: Annotated[
        list[str], dg.Resolver.default(description="Schemas in the hot PostgreSQL database.")
    ] = field(default_factory=list)

    def needs(self) -> list[Prerequisite]:
        return [
            LakeBucket(),
            *(Namespace(name) for name in self.namespaces),
            *(DatabaseSchema(name) for name in self.database_schemas),
        ]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions()
