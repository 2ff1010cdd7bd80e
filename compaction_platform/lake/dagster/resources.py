"""Dagster resources. They hold no setting of their own: each run reads its settings when it starts,
so that no secret is ever part of a run's configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import open_session, stop_session, task_slots
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings, load_settings


class LakeResource(dg.ConfigurableResource[Any]):
    """The lake this process's settings lead to."""

    def settings(self) -> Settings:
        return load_settings()

    def objects(self, uri: str) -> ObjectStore:
        return ObjectStore.at(uri, self.settings())


class SparkResource(dg.ConfigurableResource[Any]):
    """A Spark session, opened at first use and stopped when the run ends.

    COMPACTION_SPARK_REMOTE leads to Spark Connect, COMPACTION_SPARK_MASTER to any master; without either,
    dagster-pyspark's resource starts a local session.
    """

    _session: Any = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["SparkResource"]:
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            stop_session(session)

    @property
    def session(self) -> Any:
        if self._session is None:
            self._session = open_session(load_settings(), start=_through_dagster_pyspark)
        return self._session

    def spread(self) -> ParallelMap:
        """Work over this session's slots."""
        return ParallelMap(self.session, task_slots(self.session, load_settings()))


def _through_dagster_pyspark(config: dict[str, str]) -> Any:
    from dagster_pyspark import LazyPySparkResource

    return LazyPySparkResource(spark_config=config).spark_session
