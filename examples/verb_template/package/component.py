"""`NewVerbDirectory` as users write it in YAML. Checks what can be checked without touching anything."""

from typing import Annotated

import dagster as dg
from compaction_platform.new_verb.config import NewVerbConfig
from compaction_platform.new_verb.dagster.assets import new_verb_asset
from pydantic import Field

from compaction_platform.lake.dagster.component_base import ComponentBase, Name


class NewVerbDirectory(ComponentBase):
    """A directory of Parquet files of which an inventory is kept."""

    name: Annotated[Name, Field(description="Its asset is new_verb/<name>.")]
    uri: Annotated[
        str, Field(description="s3://bucket/prefix, a path, or a prefix below COMPACTION_LAKE_URI such as clicks.")
    ]

    def config(self) -> NewVerbConfig:
        return NewVerbConfig(self.name, self.uri)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions(assets=[new_verb_asset(self.config())])
