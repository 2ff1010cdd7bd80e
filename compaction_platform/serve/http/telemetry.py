"""What the service tells about itself: a JSON line for each request, and OpenTelemetry metrics if wanted."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from compaction_platform.lake.dagster.metrics import metrics_are_wanted
from compaction_platform.persisted_names import METRICS_SCOPE

LOGGER = "compaction_platform.serve"


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


def log_to_stdout() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log(level: int, message: str, fields: Mapping[str, Any] | None = None, error: BaseException | None = None) -> None:
    logging.getLogger(LOGGER).log(level, message, extra={"fields": dict(fields or {})}, exc_info=error)


class Metrics:
    """`serve.requests` and `serve.duration`, by operation and outcome. They are sent every minute and at the end."""

    @cached_property
    def _instruments(self) -> tuple[Any, Any] | None:
        if not metrics_are_wanted():
            return None
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        self._provider = MeterProvider([reader], resource=Resource.create({"service.name": f"{METRICS_SCOPE}.serve"}))
        meter = self._provider.get_meter(METRICS_SCOPE)
        return meter.create_counter("serve.requests"), meter.create_histogram("serve.duration", unit="s")

    def count(self, seconds: float, attributes: Mapping[str, str]) -> None:
        if self._instruments is not None:
            requests, duration = self._instruments
            requests.add(1, dict(attributes))
            duration.record(seconds, dict(attributes))

    def close(self) -> None:
        if "_instruments" in self.__dict__ and self._instruments is not None:
            self._provider.shutdown()
