"""From the URL a person writes to the store it means. The one place that knows which kinds of store there are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.place import parse_store
from trainer_runtime.errors import ConfigurationError, StoreUnavailable
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore

SUPPORTED = "file:///absolute/path or s3://bucket/prefix"
"""What `open_store` takes, for messages."""


def open_store(url: str, s3: S3Settings | None = None, *, create: bool = False) -> Store:
    """Return the store at ``url``.

    ``s3``: endpoint and region of an s3:// store; default: what the AWS SDK finds in its own variables and files.
    ``create``: make the directory when it is missing; for a default location on one's own machine. A place that a person or an operator
    named is never made: there, a missing directory is a missing mount.

    Raises ConfigurationError for a URL of another kind, and for s3:// where boto3 is not installed; StoreUnavailable when the directory or
    the bucket is not there or cannot be looked at.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return _open_s3(url, s3)
    if parts.scheme != "file":
        raise ConfigurationError(f"store: {url!r} is not supported; write {SUPPORTED}")
    path = Path(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not path.is_absolute():
        raise ConfigurationError(f"store: {url!r} is not file:///absolute/path: three slashes, then an absolute path and nothing after it")
    if create:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{path}: this directory for checkpoints cannot be made: {error.strerror}") from error
    return PosixStore(path, url, s3)


def _open_s3(url: str, settings: S3Settings | None) -> Store:
    try:
        place = parse_store(url)
    except ContractError as error:
        raise ConfigurationError(f"store: {error}") from error
    try:
        from trainer_runtime.store.s3.store import S3Store  # half a second of imports that only S3 needs, and an extra that may be missing
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise ConfigurationError(f"store: {url!r} needs boto3, which is not installed here; run: pip install 'rtj[s3]'") from error
    return S3Store(place.bucket, place.path, settings)
