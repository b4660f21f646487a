"""The requests a store makes of S3, each sent again until it succeeds, is refused, or its time is over.

This is the only layer that retries: boto's own retries are off, so that there is one deadline and one place that knows whether an earlier
try may have been carried out. It knows buckets and keys, and nothing about directories.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import create_loader
from tenacity import Retrying, retry_if_exception, stop_before_delay

from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.store.base import NotInStore
from trainer_runtime.store.s3.answers import code_of, describe, is_absent, is_passing, is_refused_condition, is_undecided
from trainer_runtime.store.s3.jitter import wait_seconds

T = TypeVar("T")

DEFAULT_REGION: Final = "us-east-1"
"""For signatures, when an endpoint is given and no region: servers that are not Amazon's take any."""
_CONNECTIONS: Final = 32
_BOTO_ERRORS: Final = (ClientError, BotoCoreError, ConnectionError)


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    connect: float = 5.0
    answer: float = 60.0
    """Silence of the server within one request."""
    request: float = 180.0
    """One request with all its retries: longer than a server's restart or a throttled minute."""
    first: float = 20.0
    """The same for the very first request, which finds wrong addresses."""


class Outcome(Enum):
    """How a write ended that the server must refuse when the object exists."""

    DONE = "done"
    REFUSED = "refused"
    """An object was there: another's, or that of an earlier try whose answer was lost."""
    UNKNOWN = "unknown"
    """A try got no clear answer and may have been carried out, or may be carried out yet."""


@dataclass(frozen=True)
class Found:
    """What the server says of an object."""

    size: int
    modified_at: float
    metadata: dict[str, str]


class Api:
    """One bucket. Thread-safe."""

    def __init__(self, bucket: str, settings: S3Settings, limits: Limits) -> None:
        self.bucket = bucket
        self.limits = limits
        session = _new_session()
        region = settings.region or session.region_name or (DEFAULT_REGION if settings.endpoint else None)
        config = Config(
            connect_timeout=limits.connect,
            read_timeout=limits.answer,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            tcp_keepalive=True,
            # checksums are sent where the server was found to check them; a trailer that it does not know is an error on some
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # the bytes are proven by reading them back; a second SHA-256 of them for the signature proves less
            s3={"payload_signing_enabled": False, "addressing_style": "path" if settings.endpoint else "auto"},
        )
        try:
            self.client: Any = session.client("s3", endpoint_url=settings.endpoint, region_name=region, config=config)
        except (BotoCoreError, ValueError) as error:
            raise StoreUnavailable(f"s3://{bucket}: no S3 client can be made: {error}") from error
        self.client.meta.events.register("request-created.s3", _send_body_at_once)

    def call(self, doing: str, key: str, send: Callable[[], T], seconds: float | None = None) -> T:
        """Return what ``send`` returns, sending again what may pass. Raises NotInStore, or StoreUnavailable with the cause."""
        try:
            for attempt in self._tries(seconds):
                with attempt:
                    return send()
        except _BOTO_ERRORS as error:
            if is_absent(error):
                raise NotInStore(f"s3://{self.bucket}/{key}: no such file in the store") from error
            raise self.unavailable(doing, key, error) from error
        raise AssertionError("tenacity ended without a result")

    def send_new(self, doing: str, key: str, send: Callable[[], object]) -> tuple[Outcome, Exception | None]:
        """Send a write that must not replace anything, and return how it ended; UNKNOWN comes with the error that ended it.

        Raises StoreUnavailable when it was surely not carried out.
        """
        was_undecided = False

        def once() -> Outcome:
            nonlocal was_undecided
            try:
                send()
            except _BOTO_ERRORS as error:
                if is_refused_condition(error):
                    return Outcome.REFUSED
                was_undecided = was_undecided or is_undecided(error)
                raise
            return Outcome.DONE

        try:
            for attempt in self._tries(None):
                with attempt:
                    return once(), None
        except _BOTO_ERRORS as error:
            if was_undecided:
                return Outcome.UNKNOWN, error
            raise self.unavailable(doing, key, error) from error
        raise AssertionError("tenacity ended without a result")

    def unavailable(self, doing: str, key: str, error: BaseException) -> StoreUnavailable:
        """Return the error that a person reads."""
        return StoreUnavailable(f"cannot {doing} s3://{self.bucket}/{key}: {describe(error)}")

    def read(self, key: str) -> bytes:
        """Return an object's bytes. Raises NotInStore."""

        def send() -> bytes:
            with closing(self.client.get_object(Bucket=self.bucket, Key=key)["Body"]) as body:
                return bytes(body.read())

        return self.call("read", key, send)

    def look(self, key: str) -> Found:
        """Return what is known of an object. Raises NotInStore."""
        answer = self.call("look at", key, lambda: self.client.head_object(Bucket=self.bucket, Key=key))
        metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
        return Found(int(answer["ContentLength"]), _seconds(answer["LastModified"]), metadata)

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return what lies directly below ``prefix`` (which ends with a slash, or is empty), in order.

        All keys are asked for, not their common prefixes: servers on top of directories answer those with directories that are empty.
        """
        return tuple(sorted({key.removeprefix(prefix).partition("/")[0] for key in self.below(prefix)}))

    def below(self, prefix: str) -> dict[str, float]:
        """Return every key that begins with ``prefix``, with the time it was written as Unix seconds."""
        return {item["Key"]: _seconds(item["LastModified"]) for page in self._pages(prefix) for item in page.get("Contents", ())}

    def has_any(self, prefix: str, seconds: float | None = None) -> bool:
        """Say whether any key begins with ``prefix``."""
        request = {"Bucket": self.bucket, "Prefix": prefix, "MaxKeys": 1}
        return bool(self.call("list", prefix, lambda: self.client.list_objects_v2(**request), seconds).get("Contents"))

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield key and upload id of every multipart upload below ``prefix`` that never ended."""
        more: dict[str, str] = {}
        while True:
            page = self.call("list uploads to", prefix, functools.partial(self._uploads_page, Bucket=self.bucket, Prefix=prefix, **more))
            for item in page.get("Uploads", ()):
                yield item["Key"], item["UploadId"]
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def delete(self, key: str) -> None:
        """Delete an object; nothing to do when it is gone."""
        self.call("remove", key, lambda: self.client.delete_object(Bucket=self.bucket, Key=key))

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket, metadata included. Raises NotInStore."""
        request = {"Bucket": self.bucket, "Key": to, "CopySource": {"Bucket": self.bucket, "Key": key}}
        self.call("copy", key, lambda: self.client.copy_object(**request))

    def _uploads_page(self, **request: str) -> dict[str, Any]:
        try:
            return dict(self.client.list_multipart_uploads(**request))
        except ClientError as error:
            if code_of(error) == "NoSuchUpload":  # some servers answer so when there are none
                return {}
            raise

    def _pages(self, prefix: str) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self.call("list", prefix, functools.partial(self.client.list_objects_v2, Bucket=self.bucket, Prefix=prefix, **token))
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _tries(self, seconds: float | None) -> Retrying:
        return Retrying(
            retry=retry_if_exception(is_passing),
            stop=stop_before_delay(seconds or self.limits.request),
            wait=wait_seconds,
            reraise=True,
        )


def _new_session() -> Any:
    """Return a session of one's own, for credentials; what boto knows of S3 is read once per process, for it takes a tenth of a second."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _read_once())
    return boto3.session.Session(botocore_session=session)


@functools.cache
def _read_once() -> Any:
    return create_loader()


def _send_body_at_once(request: Any, **_event: Any) -> None:
    """boto asks "may I?" (Expect: 100-continue) before each body: a round trip per file, and a second where the server does not answer."""
    del request.headers["Expect"]


def _seconds(at: datetime) -> float:
    return at.timestamp()
