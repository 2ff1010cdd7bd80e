"""AWS's own client, for the few calls that neither objects nor the catalog cover."""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from compaction_platform.settings import Settings


def aws_client(service: str, settings: Settings, endpoint: str | None, retries: Mapping[str, Any] | None = None) -> Any:
    """A boto3 client with the credentials of the settings, or of the usual AWS chain where there are none.

    The same for the same arguments: threads may share one, and making one takes longer than most answers.
    """
    secrets = {
        "aws_access_key_id": settings.s3_access_key_id,
        "aws_secret_access_key": settings.s3_secret_access_key,
        "aws_session_token": settings.s3_session_token,
    }
    given = {name: secret.get_secret_value() for name, secret in secrets.items() if secret}
    options = {"endpoint_url": endpoint, "region_name": settings.s3_region, **given}
    retried = None if retries is None else tuple(sorted(retries.items()))
    return _client(os.getpid(), service, retried, *sorted(options.items()))  # a fork has connections of its own


@lru_cache(maxsize=32)
def _client(_process: int, service: str, retries: tuple[tuple[str, Any], ...] | None, *options: Any) -> Any:
    import boto3
    from botocore.config import Config

    config = None if retries is None else Config(retries=dict(retries))
    return boto3.client(service, config=config, **dict(options))
