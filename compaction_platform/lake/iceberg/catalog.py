"""The Iceberg catalog from Python, through PyIceberg: metadata only, no JVM."""

from typing import TYPE_CHECKING

from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def open_catalog(settings: Settings) -> "Catalog":
    """The same catalog that `spark.catalog_config` describes to Spark."""
    from pyiceberg.catalog import load_catalog

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
    return load_catalog(settings.catalog_name, **properties, **store_properties(settings))


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
