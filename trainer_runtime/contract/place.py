"""What the URL of a store and the URI of a checkpoint say, read in one way by both halves.

It takes texts apart and says what is wrong with them; whether anything lies there is the store's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from trainer_runtime.contract.codec import ContractError
from trainer_runtime.contract.layout import STEPS, StepName, is_run_name, step_path

FILE: Final = "file"
S3: Final = "s3"
FORMS: Final = "file:///<path> or s3://<bucket>/<prefix>"
"""What a store's URL may look like, for messages."""
S3_FORM: Final = (
    "s3://<bucket>/<prefix>: a bucket has 3 to 63 lower-case letters, digits, '.' and '-', begins and ends with a letter or digit, has no "
    "'..' and is no IPv4 address; a prefix has letters, digits and . _ = + @ - between single slashes, and no part '.' or '..'"
)
BUCKET: Final = "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
"""A bucket's name, as S3's naming rules have it; two more of them are in NO_BUCKET."""
NO_BUCKET: Final = r"\.\.|^[0-9]+(\.[0-9]+){3}$"
"""What a bucket's name may not be: with two dots in a row, or formed like an IPv4 address."""
PREFIX: Final = "(/[A-Za-z0-9._=+@-]+)*/?"
"""The part behind the bucket: names that need no escaping, in a URL or a signature."""
_S3_URL: Final = re.compile(f"s3://({BUCKET})({PREFIX})")


@dataclass(frozen=True)
class StorePlace:
    """A store, as its URL says."""

    scheme: str
    """FILE or S3."""
    bucket: str
    """Empty for a file store."""
    path: str
    """The absolute path of a file store; the key prefix of an s3 one, without slashes at its ends, maybe empty."""

    @property
    def url(self) -> str:
        """The URL without a slash at its end: two URLs of one place are equal."""
        if self.scheme == FILE:
            return f"file://{self.path}"
        return f"s3://{self.bucket}/{self.path}".rstrip("/")


@dataclass(frozen=True)
class CheckpointPlace:
    """A checkpoint, as its URI says."""

    store: StorePlace
    run: str
    name: StepName

    @property
    def uri(self) -> str:
        """``<store>/<run>/steps/<step>-<attempt>``."""
        return f"{self.store.url}/{self.run}/{step_path(self.name)}"


def parse_store(url: str) -> StorePlace:
    """Take a store's URL apart. Raises ContractError that says what is allowed."""
    if url.startswith("file://"):
        path = url.removeprefix("file://").rstrip("/")
        if not re.match("/[^/]", path) or ".." in PurePosixPath(path).parts:
            raise ContractError(f"{url!r} is not file:///<path> with an absolute path below / and without '..'")
        return StorePlace(FILE, "", path)
    if url.startswith("s3://"):
        match = _S3_URL.fullmatch(url)
        if match is None or re.search(NO_BUCKET, match[1]) or {".", ".."} & set(match[2].split("/")):
            raise ContractError(f"{url!r} is not {S3_FORM}")
        prefix = match[2].strip("/")
        return StorePlace(S3, match[1], prefix)
    raise ContractError(f"{url!r} is not {FORMS}")


def parse_checkpoint(uri: str) -> CheckpointPlace:
    """Take ``<store>/<run>/steps/<step>-<attempt>`` apart. Raises ContractError that says what is allowed."""
    store, run, name = split_checkpoint(uri)
    return CheckpointPlace(parse_store(store), run, name)


def split_checkpoint(uri: str) -> tuple[str, str, StepName]:
    """Return the store's URL as it is written, the run and the checkpoint's name. Raises ContractError that says what is allowed."""
    parts = uri.rstrip("/").rsplit("/", 3)
    name = StepName.parse(parts[-1])
    if len(parts) != 4 or parts[2] != STEPS or name is None or not is_run_name(parts[1]):
        raise ContractError(f"{uri!r} is not the address of a checkpoint: <store>/<run>/{STEPS}/<step 10 digits>-<attempt 8 digits>")
    return parts[0], parts[1], name
