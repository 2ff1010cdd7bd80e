"""AWS's own client, for the few calls that neither objects nor the catalog cover."""

from typing import Any

from compaction_platform.settings import Settings


def aws_client(service: str, settings: Settings, endpoint: str | None, config: Any = None) -> Any:
    """A boto3 client with the credentials of the settings, or of the usual AWS chain where there are none."""
    import boto3

    secrets = {
        "aws_access_key_id": settings.s3_access_key_id,
        "aws_secret_access_key": settings.s3_secret_access_key,
        "aws_session_token": settings.s3_session_token,
    }
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=settings.s3_region,
        config=config,
        **{name: secret.get_secret_value() for name, secret in secrets.items() if secret},
    )
