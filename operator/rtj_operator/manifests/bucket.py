"""The small files of an S3 bucket, read with deadlines. Nothing is ever written: the operator's credentials need no more than to read.

It runs in a thread, because boto3 blocks. It knows keys, not what they mean (`run_listing` does).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from rtj_operator.manifests.run_listing import StoreTrouble
from rtj_operator.settings import ManifestPrefix
from trainer_runtime.contract.place import parse_store

T = TypeVar("T")

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 5.0
"""Silence within one request. Manifests are a few kilobytes."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one document: larger than the manifest of any job, smaller than what would hurt the operator's pod."""
DEFAULT_REGION: Final = "us-east-1"
"""For signatures, when an endpoint is given and no region: servers that are not Amazon's take any."""
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
_FROM_FILES: Final = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


class Clients:
    """One S3 client for each place that may be read, made when it is first needed. For several threads."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._made: dict[ManifestPrefix, tuple[dict[str, str], Any]] = {}
        self._lock = threading.Lock()

    def get(self, allowed: ManifestPrefix) -> Any:
        """Return the client; a new one when the files with its credentials have changed. Raises StoreTrouble when none can be made."""
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            max_pool_connections=self._connections,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "path" if allowed.endpoint else "auto"},
        )
        try:
            credentials = _read_credentials(allowed.credentials)
            with self._lock:
                known = self._made.get(allowed)
                if known is not None and known[0] == credentials:
                    return known[1]
                session = boto3.session.Session(**credentials)
                region = allowed.region or session.region_name or (DEFAULT_REGION if allowed.endpoint else None)
                client = session.client("s3", endpoint_url=allowed.endpoint, region_name=region, config=config)
                self._made[allowed] = (credentials, client)
                return client
        except (BotoCoreError, OSError, ValueError) as error:
            raise StoreTrouble(f"{allowed.prefix}: no S3 client can be made: {error}") from error


class Bucket:
    """The documents below one store's URL, until a deadline. Implements `run_listing.Documents`."""

    def __init__(self, client: Any, store_url: str, seconds: float) -> None:
        """``seconds``: after which every request that is still to be sent fails."""
        place = parse_store(store_url)
        self._client = client
        self._bucket, self._prefix = place.bucket, f"{place.path}/" if place.path else ""
        self._end = time.monotonic() + seconds

    def names(self, directory: str) -> tuple[str, ...]:
        """Return the names of what lies directly below a directory, in order. Raises StoreTrouble.

        All keys are asked for, not their common prefixes: servers on top of directories answer those with directories that are empty, or
        not at all. There are two keys for a step.
        """
        prefix = f"{self._prefix}{directory}/"
        found: set[str] = set()
        token: dict[str, str] = {}
        while True:
            page = self._send("list", prefix, partial(self._client.list_objects_v2, Bucket=self._bucket, Prefix=prefix, **token))
            found.update(item["Key"].removeprefix(prefix).partition("/")[0] for item in page.get("Contents", ()))
            if not page.get("IsTruncated"):
                return tuple(sorted(found))
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, path: str) -> bytes | None:
        """Return an object's bytes, None when it is not there. Raises StoreTrouble."""
        key = f"{self._prefix}{path}"
        try:
            return self._send("read", key, partial(self._get, key))
        except _Absent:
            return None

    def _get(self, key: str) -> bytes:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if _status(error) == 404 and _code(error) != "NoSuchBucket":
                raise _Absent from error
            raise
        with answer["Body"] as body:
            data = bytes(body.read(MAX_BYTES + 1))
        if len(data) > MAX_BYTES:
            raise StoreTrouble(f"s3://{self._bucket}/{key} is longer than {MAX_BYTES} bytes")
        return data

    def _send(self, doing: str, key: str, send: Callable[[], T]) -> T:
        left = self._end - time.monotonic()
        if left <= 0:
            raise StoreTrouble(f"s3://{self._bucket}: the look took too long, at {key}")
        tries = Retrying(
            retry=retry_if_exception(_is_passing),
            stop=stop_after_delay(max(0.0, left - ANSWER_SECONDS)),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            reraise=True,
        )
        try:
            return tries(send)
        except ClientError as error:
            raise StoreTrouble(f"cannot {doing} s3://{self._bucket}/{key}: {_status(error)} {_code(error)}") from error
        except BotoCoreError as error:
            raise StoreTrouble(f"cannot {doing} s3://{self._bucket}/{key}: {error}") from error


class _Absent(Exception):
    """There is no such object."""


def _read_credentials(directory: str | None) -> dict[str, str]:
    if directory is None:
        return {}
    files = {argument: Path(directory, name) for argument, name in _FROM_FILES.items()}
    found = {argument: file.read_text().strip() for argument, file in files.items() if argument != "aws_session_token" or file.exists()}
    return {argument: value for argument, value in found.items() if value}


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, ClientError):
        return _status(error) in _PASSING
    return isinstance(error, BotoCoreError)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
