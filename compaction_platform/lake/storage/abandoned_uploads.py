"""Uploads that a run began and never ended, because it was killed: parts that nobody sees, and that are paid for. Only
those that are ours by their name are given up; other writers' are left to them."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from compaction_platform.lake.storage.aws_clients import aws_client

if TYPE_CHECKING:
    from compaction_platform.settings import Settings


def abort_uploads(location: str, ours: str, settings: "Settings", before: datetime, say: Callable[[str], None]) -> None:
    """Uploads below that location that began before that time, of names that begin with `ours`."""
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = location.partition("://")[2].partition("/")
    place = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/"}
    try:
        client = aws_client("s3", settings, settings.s3_endpoint)
        pages = client.get_paginator("list_multipart_uploads").paginate(**place)
        uploads = [each for page in pages for each in page.get("Uploads", []) if _is_left(each, ours, before)]
        for each in uploads:
            client.abort_multipart_upload(Bucket=place["Bucket"], Key=each["Key"], UploadId=each["UploadId"])
    except (BotoCoreError, ClientError) as refused:
        say(f"uploads that were never ended cannot be looked for: {refused}")
        return
    if uploads:
        say(f"{len(uploads)} uploads were given up that runs had begun before {before:%Y-%m-%d %H:%M} and never ended")


def _is_left(upload: dict[str, Any], ours: str, before: datetime) -> bool:
    name = upload["Key"].rpartition("/")[2]
    return bool(name.startswith(ours) and upload["Initiated"] < before)
