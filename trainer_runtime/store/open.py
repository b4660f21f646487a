"""From the URL a person writes to the store it means. The one place that knows which kinds of store there are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainer_runtime.errors import ConfigurationError, StoreUnavailable
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore

SUPPORTED = "file:///absolute/path"
"""What `open_store` takes, for messages."""


def open_store(url: str, *, create: bool = False) -> Store:
    """Return the store at ``url``.

    ``create``: make the directory when it is missing; for a default location on one's own machine. A place that a person or an operator
    named is never made: there, a missing directory is a missing mount.

    Raises ConfigurationError for a URL of another kind, StoreUnavailable when the directory is not there.
    """
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise ConfigurationError(f"store: {url!r} is not supported; write {SUPPORTED}")
    path = Path(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not path.is_absolute():
        raise ConfigurationError(f"store: {url!r} is not {SUPPORTED}: three slashes, then an absolute path and nothing after it")
    if create:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{path}: this directory for checkpoints cannot be made: {error.strerror}") from error
    return PosixStore(path, url)
