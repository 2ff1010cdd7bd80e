"""OpenTelemetry metrics of a run. They are sent when the usual OTEL_* variables name a receiver; otherwise nothing
happens, not even an import. A receiver that fails never fails a run."""

import os
from collections.abc import Mapping

from compaction_platform.persisted_names import METRICS_SCOPE

RECEIVERS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
LIMIT_MS = 10_000


def metrics_are_wanted() -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = os.environ.get("OTEL_METRICS_EXPORTER", "otlp").split(",")
    return not disabled and "otlp" in exporters and any(os.environ.get(name) for name in RECEIVERS)


def send_metrics(
    counts: Mapping[str, int], durations: Mapping[str, float], attributes: Mapping[str, str]
) -> str | None:
    """Send what one run did: counts, and durations in seconds. Returns what went wrong, if anything did."""
    if not metrics_are_wanted():
        return None
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        return f"metrics were not sent: OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, only http/protobuf is supported"
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import Resource

    # Recorded and exported once: what this run did, not a sum since some process began.
    wanted = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta").strip().lower()
    temporality = AggregationTemporality.CUMULATIVE if wanted == "cumulative" else AggregationTemporality.DELTA
    reader = InMemoryMetricReader(preferred_temporality=dict.fromkeys((Counter, Histogram), temporality))
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": METRICS_SCOPE}
    provider = MeterProvider([reader], resource=Resource.create(named))
    meter = provider.get_meter(METRICS_SCOPE)
    for name, count in counts.items():
        meter.create_counter(name).add(count, dict(attributes))
    for name, seconds in durations.items():
        meter.create_histogram(name, unit="s").record(seconds, dict(attributes))
    recorded = reader.get_metrics_data()
    problem = "the receiver did not take them"
    try:
        exporter = OTLPMetricExporter()
        if recorded is not None and exporter.export(recorded, timeout_millis=LIMIT_MS) is MetricExportResult.SUCCESS:
            return None
    except Exception as error:  # noqa: BLE001 (whatever it is, the data work is done and stands)
        problem = f"{type(error).__name__}: {error}"
    finally:
        provider.shutdown()
    return f"metrics were not sent: {problem}"
