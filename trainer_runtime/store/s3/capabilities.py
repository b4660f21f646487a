"""What this server can do, found out by asking it, before anything depends on it.

One small object per store is made for that and stays: a write to it that must be refused shows in one request that conditions are obeyed.
A server that ignores them is no store for checkpoints: two attempts could both create a fence, or a commit could replace another one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import ClientError

from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.store.s3.answers import code_of, status_of
from trainer_runtime.store.s3.api import Api, Outcome
from trainer_runtime.store.s3.crc32 import to_base64

PROBE_KEY: Final = "rtj-probe"
"""Directly below the store's prefix."""
_TEXT: Final = (
    b"rtj writes this object once, and asks the server not to write it again: so it learns whether conditional writes are obeyed.\n"
)
_WRONG_CRC32: Final = "AAAAAA=="
"""The checksum of no bytes at all."""


@dataclass(frozen=True)
class Capabilities:
    """What uploads may rely on, besides conditional writes."""

    checks_parts: bool
    """A part whose CRC-32 is wrong is refused."""
    checks_whole: bool
    """A multipart object whose CRC-32 as a whole is wrong is refused."""


def find_capabilities(api: Api, prefix: str) -> Capabilities:
    """Ask the server. Raises StoreUnavailable, naming the capability, for one that ignores or does not know conditional writes."""
    key = f"{prefix}{PROBE_KEY}"
    _require_conditions(api, key)
    upload = api.call("begin an upload of", key, lambda: _begin_checked(api, key))
    if upload is None:
        return Capabilities(checks_parts=False, checks_whole=False)
    try:
        checks_parts = _checks_parts(api, key, upload["UploadId"])
    finally:
        abort(api, key, upload["UploadId"])
    return Capabilities(checks_parts, checks_parts and upload.get("ChecksumType") == "FULL_OBJECT")


def begin_request(bucket: str, key: str, with_checksums: bool) -> dict[str, Any]:
    """Return the request that begins a multipart upload, with checksums of the parts and, where the server knows that, of the whole."""
    checksums = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"} if with_checksums else {}
    return {"Bucket": bucket, "Key": key, **checksums}


def abort(api: Api, key: str, upload: str) -> None:
    """Drop a multipart upload and the room it takes; nothing to do when it is gone."""

    def send() -> None:
        try:
            api.client.abort_multipart_upload(Bucket=api.bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if status_of(error) != 404 or code_of(error) == "NoSuchBucket":
                raise

    api.call("abort an upload of", key, send)


def _require_conditions(api: Api, key: str) -> None:
    def send() -> None:
        api.client.put_object(Bucket=api.bucket, Key=key, Body=_TEXT, IfNoneMatch="*")

    for _ in range(2):  # the first process in a new store makes the object, and asks again
        outcome, _ = api.send_new("write", key, send)
        if outcome is Outcome.REFUSED:
            return
    raise StoreUnavailable(
        f"s3://{api.bucket}/{key}: this server does not obey conditional writes (PutObject with If-None-Match: * replaced an object that "
        "was there), so two attempts could both commit; use a server that does (Amazon S3, MinIO, Ceph RGW and others do in their current "
        "versions), or a file:// store"
    )


def _begin_checked(api: Api, key: str) -> dict[str, Any] | None:
    """Return the answer to the beginning of an upload with checksums, or None when the server refuses what it does not know."""
    try:
        return dict(api.client.create_multipart_upload(**begin_request(api.bucket, key, with_checksums=True)))
    except ClientError as error:
        if status_of(error) in (400, 501):
            return None
        raise


def _checks_parts(api: Api, key: str, upload: str) -> bool:
    """Send a part with a wrong checksum, and when that is refused, the same with the right one: the first alone may be refused for more
    reasons than one."""

    def is_taken(crc32: str) -> bool:
        request = {"Bucket": api.bucket, "Key": key, "UploadId": upload, "PartNumber": 1, "ChecksumCRC32": crc32}
        try:
            api.client.upload_part(**request, Body=_TEXT)
        except ClientError as error:
            if status_of(error) == 400:
                return False
            raise
        return True

    doing = "upload a part of"
    return not api.call(doing, key, lambda: is_taken(_WRONG_CRC32)) and api.call(doing, key, lambda: is_taken(to_base64(zlib.crc32(_TEXT))))
