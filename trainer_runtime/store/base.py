"""What a store can do, as one small protocol. Paths are relative to the store's root, with ``/`` between the parts.

Who owns what, when: while a save is in flight, each rank owns the files that carry its rank and nobody else touches them. From `commit`
on, nobody owns the directory: it is read by all and changed by none, until rank 0 of the attempt that holds the highest fence moves it to
trash. A store knows the names of `contract.layout`, for not every kind of storage can rename a directory, and nothing of what is in the
files: `trainer_runtime.checkpoint` gives them their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.errors import RuntimeProblem


class NotInStore(RuntimeProblem, LookupError):
    """The store answered, and it has no such file. Never raised when the store could not be asked."""


class AlreadyInStore(RuntimeProblem):
    """Something of that name is there already, and nothing there is ever overwritten."""


class Store(Protocol):
    """Files below one root. Every method may raise StoreUnavailable, which names the path and the cause; it never means "not there"."""

    @property
    def uri(self) -> str:
        """The root as the user wrote it, without a trailing slash: ``file:///data/checkpoints``."""

    @property
    def rereads_from_cache(self) -> bool:
        """Whether reading a range again soon costs little, because the system remembers it (a page cache)."""

    @property
    def s3(self) -> S3Settings:
        """How S3 is reached from here: for a checkpoint to resume from that lies in another store."""

    def read(self, path: str) -> bytes:
        """Return a small file's bytes. Raises NotInStore."""

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises NotInStore."""

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        """Fill ``into`` from ``offset`` on and return the number of bytes read: fewer only at the end of the file. Raises NotInStore."""

    def read_back(self, path: str, block_bytes: int) -> Iterator[memoryview]:
        """Yield the whole file in blocks, as the storage holds it and not as a cache remembers it. Each view is valid until the next one
        is asked for. Only the last block may be shorter. Raises NotInStore."""

    def create(self, path: str, data: bytes) -> None:
        """Write a small file that did not exist: afterwards it is whole and durable, or not there. Raises AlreadyInStore; but a store whose
        answers can be lost takes a file of the same bytes for its own success, so who wants to be the only one writes a nonce."""

    def write_file(self, path: str, image: memoryview, size: int) -> None:
        """Write a data file that did not exist and make it durable. ``image`` is the file's bytes, from a page-aligned buffer whose length
        is a multiple of 4096; the file ends after ``size`` bytes. On failure no part of it stays. Raises AlreadyInStore."""

    def write_blocks(self, path: str, blocks: Iterable[memoryview], size: int) -> None:
        """Write a data file that did not exist from its blocks, one at a time, and make it durable: for files that are in no memory as a
        whole. A block is used before the next one is asked for. On failure, also of ``blocks``, no part of it stays. Raises AlreadyInStore,
        and StoreUnavailable when the blocks are not ``size`` bytes."""

    def list(self, path: str) -> tuple[str, ...]:
        """Return the sorted names directly below a directory; empty when it does not exist."""

    def exists(self, path: str) -> bool:
        """Say whether a file or directory is there."""

    def modified_at(self, path: str) -> float:
        """Return when a file or directory last changed, as Unix seconds by the store's clock. Raises NotInStore."""

    def commit(self, staging: str, final: str, name: str, data: bytes) -> None:
        """Make the directory ``staging``, with ``data`` added as file ``name``, appear as ``final``: all of it, durably, or nothing.
        It never replaces a directory that holds anything. Raises AlreadyInStore, NotInStore where ``staging`` has to be a directory and is
        not there, and CommitUndecided when it may yet happen, or has happened."""

    def move(self, path: str, to: str) -> None:
        """Move a file or directory to a name that does not exist. Raises NotInStore and AlreadyInStore."""

    def remove(self, path: str) -> None:
        """Delete a file or a whole directory; nothing to do when it is gone. For trash and for a save of our own that was abandoned: one
        that turned out to be committed stays."""
