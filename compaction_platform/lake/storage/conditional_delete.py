"""Delete versions of objects, not names: what was replaced since it was listed stays, however late the delete comes.

S3 looks at the etag itself, in the same request that deletes. In a local directory a file is moved aside first, looked
at there, and put back if it is another one.
"""

import errno
import functools
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compaction_platform.lake.storage.object_store import (
    DELETE_CHUNK,
    GivenCredentials,
    ObjectStore,
    StoreRefused,
    local_directory,
)

CHANGED = "it was replaced meanwhile"
OTHER_ETAG = '"00000000000000000000000000000000"'  # of no object
NOT_KNOWN = ("NotImplemented", "MalformedXML", "InvalidArgument", "InvalidRequest")


class _ConditionUnknown(Exception):
    """The store has refused the request because of the condition. Nothing was deleted."""


def delete_unchanged(objects: ObjectStore, versions: Mapping[str, str]) -> dict[str, str]:
    """Delete these keys as far as they still have these etags.

    Only where `looks_at_versions` says so is that certain to the last moment.

    Returns:
        For each key that is still there, the reason.
    """
    if objects.is_local:
        reasons = {key: _delete_file(objects, key, etag) for key, etag in versions.items()}
        return {key: reason for key, reason in reasons.items() if reason is not None}
    kept: dict[str, str] = {}
    items = list(versions.items())
    for start in range(0, len(items), DELETE_CHUNK):
        chunk = dict(items[start : start + DELETE_CHUNK])
        try:
            kept |= _delete_chunk(objects, chunk)
        except _ConditionUnknown:
            kept |= _delete_after_a_look(objects, chunk)
    return kept


def looks_at_versions(objects: ObjectStore) -> bool:
    """Whether the store refuses to delete an object whose etag is not the given one. Tried on an object of its own."""
    if objects.is_local:
        return True
    key = f"delete-probe-{secrets.token_hex(8)}"
    objects.write(key, b"deleted by the process that wrote it")
    try:
        return _delete_chunk(objects, {key: OTHER_ETAG}) == {key: CHANGED}
    except _ConditionUnknown:
        return False
    finally:
        objects.delete([key])


def _delete_chunk(objects: ObjectStore, versions: Mapping[str, str]) -> dict[str, str]:
    from botocore.exceptions import BotoCoreError, ClientError

    if not versions:
        return {}
    bucket, _, prefix = objects.uri.removeprefix("s3://").partition("/")
    names = {f"{prefix}/{key}" if prefix else key: key for key in versions}
    wanted = [{"Key": name, "ETag": versions[key]} for name, key in names.items()]
    try:
        answer = client_for(objects).delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": True})
    except ClientError as refused:
        if refused.response.get("Error", {}).get("Code") in NOT_KNOWN:
            raise _ConditionUnknown from None
        raise StoreRefused(f"{objects.uri}: {refused}") from None
    except BotoCoreError as failed:
        problem = f"{objects.uri}: {type(failed).__name__}. Some of the objects may have been deleted."
        raise StoreRefused(problem) from None
    return _reasons(objects, {names[each["Key"]]: each for each in answer.get("Errors", [])})


def _reasons(objects: ObjectStore, errors: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    kept = {}
    for key, error in errors.items():
        if error.get("Code") in ("PreconditionFailed", "NoSuchKey"):
            if objects.stat(key) is not None:
                kept[key] = CHANGED
        else:
            kept[key] = f"{error.get('Code')}: {error.get('Message')}"
    return kept


def _delete_after_a_look(objects: ObjectStore, versions: Mapping[str, str]) -> dict[str, str]:
    """For a store that knows no condition: one look each, right before."""
    kept: dict[str, str] = {}
    for key, etag in versions.items():
        stored = objects.stat(key)
        if stored is not None and stored.etag != etag:
            kept[key] = CHANGED
        elif stored is not None:
            kept |= objects.delete([key])
    return kept


def client_for(objects: ObjectStore) -> Any:
    """AWS's own client with the address and credentials of these objects: the store library has no such call."""
    return _client(
        objects.options.get("endpoint"), objects.options["region"], objects.options.get("credential_provider")
    )


@functools.lru_cache(maxsize=8)
def _client(endpoint: str | None, region: str, credentials: GivenCredentials | None) -> Any:
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
    config = Config(s3=style, connect_timeout=10, read_timeout=60)
    return boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config, **given)


# ---------------------------------------------------------------- a local directory


def _delete_file(objects: ObjectStore, key: str, etag: str) -> str | None:
    """None: it is gone. Otherwise why the file is still there."""
    path = local_directory(objects.uri) / key
    before = _identity(path)
    stored = objects.stat(key)
    if stored is None or before is None:
        return None
    if stored.etag != etag or _identity(path) != before:
        return CHANGED
    aside = path.with_name(f".{path.name}#{secrets.randbits(48)}")  # no listing shows such names
    try:
        path.rename(aside)
    except FileNotFoundError:
        return None
    except OSError as refused:
        return str(refused.strerror)
    if _identity(aside) == before:
        aside.unlink()
        return None
    return _put_back(aside, path)


def _put_back(aside: Path, path: Path) -> str:
    try:
        path.hardlink_to(aside)
    except FileExistsError:  # somebody has replaced it once more: this one would be gone anyway
        pass
    except OSError:
        return f"{CHANGED}; the file that replaced it is now {aside}: move it back"
    aside.unlink()
    return CHANGED


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
