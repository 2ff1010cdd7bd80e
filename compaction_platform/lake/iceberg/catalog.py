"""The Iceberg catalog from Python, through PyIceberg: metadata only, no JVM."""

import os
import threading
from typing import TYPE_CHECKING

from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


MOST_KEPT = 8  # by one thread
_opened = threading.local()


def open_catalog(settings: Settings) -> "Catalog":
    """The same catalog that `spark.catalog_config` describes to Spark.

    Opened once by each thread (a catalog holds an HTTP connection): PyIceberg takes a tenth of a second of CPU for
    it. Nothing in it grows old: what it is asked for it asks the server for.
    """
    from pyiceberg.catalog import load_catalog

    properties = _catalog_properties(settings)
    catalogs: dict[object, Catalog] = _opened.__dict__.setdefault("catalogs", {})
    key = (os.getpid(), settings.catalog_name, *sorted(properties.items()))  # a fork must not use our connection
    if key not in catalogs and len(catalogs) >= MOST_KEPT:  # of other settings, or credentials of long ago
        catalogs.clear()
    if key not in catalogs:
        catalogs[key] = load_catalog(settings.catalog_name, **properties)
    return catalogs[key]


def _catalog_properties(settings: Settings) -> dict[str, str | None]:
    settings.require("catalog_warehouse", purpose="the Iceberg catalog")
    properties: dict[str, str | None] = {
        "type": settings.catalog_kind,
        "warehouse": settings.catalog_warehouse,
    }
    if settings.catalog_kind == "rest":
        settings.require("catalog_uri", purpose="the Iceberg REST catalog")
        properties |= {
            "uri": settings.catalog_uri,
            "rest.sigv4-enabled": "true",
            "rest.signing-name": settings.catalog_signing_name,
            "rest.signing-region": settings.s3_region,
        }
    elif settings.catalog_uri:
        properties["glue.endpoint"] = settings.catalog_uri
    return properties | store_properties(settings)


def store_properties(settings: Settings) -> dict[str, str]:
    """How PyIceberg reaches the files."""
    properties = {"s3.region": settings.s3_region, "client.region": settings.s3_region}
    if settings.s3_endpoint:
        properties["s3.endpoint"] = settings.s3_endpoint
    for name in ("access-key-id", "secret-access-key", "session-token"):
        secret = getattr(settings, f"s3_{name.replace('-', '_')}")
        if secret:
            properties |= {
                f"s3.{name}": secret.get_secret_value(),
                f"client.{name}": secret.get_secret_value(),
            }
    return properties
