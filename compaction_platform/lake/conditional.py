"""Delete objects of S3 on the condition that they are still the version that was seen.

The store library has no such call; AWS's own client has. AWS and SeaweedFS compare at the moment of the deletion. A
store that does not know the condition deletes in any case: see docs/guarantees.md.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compaction_platform.lake.objects import GivenCredentials

CHANGED = {"PreconditionFailed", "ConditionalRequestConflict"}
GONE = {"NoSuchKey", "NotFound"}
CONNECT_SECONDS, READ_SECONDS = 10, 120


def delete_versions(uri: str, options: Mapping[str, Any], versions: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Delete these keys (below the address) while they have these etags. Returns why others are still there."""
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    keys = {f"{prefix}/{key}" if prefix else key: key for key, _ in versions}
    wanted = [{"Key": full, "ETag": etag} for full, (_, etag) in zip(keys, versions, strict=True)]
    try:
        answer = client_for(options).delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": True})
    except (BotoCoreError, ClientError) as refused:
        return dict.fromkeys(keys.values(), str(refused)[:300])
    return {
        keys[each["Key"]]: _reason(each)
        for each in answer.get("Errors", ())
        if each.get("Code") not in GONE and each.get("Key") in keys
    }


def _reason(error: Mapping[str, str]) -> str:
    if error.get("Code") in CHANGED:
        return "it was replaced meanwhile; its new version is planned by the next run"
    return f"{error.get('Code')}: {error.get('Message', '')}"[:300]


def client_for(options: Mapping[str, Any]) -> Any:
    """AWS's client with the address and credentials that the store library was given."""
    return _client(options.get("endpoint"), options["region"], options.get("credential_provider"))


@functools.lru_cache(maxsize=8)
def _client(endpoint: str | None, region: str, credentials: "GivenCredentials | None") -> Any:
    import boto3
    from botocore.config import Config

    given = {}
    if credentials is not None:
        given = {
            "aws_access_key_id": credentials.access_key_id,
            "aws_secret_access_key": credentials.secret_access_key,
            "aws_session_token": credentials.token,
        }
    style = {"addressing_style": "path"} if endpoint else {}
    config = Config(s3=style, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries={"mode": "standard"})
    return boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config, **given)
