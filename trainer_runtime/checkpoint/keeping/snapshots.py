"""Keeps what a run was started with (tokenizer, configuration) beside its checkpoints, each file once, under its own digest.

Written by rank 0 when an attempt begins, before any manifest can name it, and read back there and then. A file that is damaged later costs
no resume, which needs none of them; whoever asks for it is told.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.layout import TRASH, snapshot_path
from trainer_runtime.contract.manifest import SnapshotFile, digest
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store

if TYPE_CHECKING:  # whoever only reads snapshots needs no torch
    from trainer_runtime.state.attachments import Attachment

_BLOCK_BYTES: Final = 4 * 1024**2


def name_snapshots(attachments: Mapping[str, Sequence[Attachment]]) -> dict[str, tuple[SnapshotFile, ...]]:
    """Return what a manifest says of them. Kinds of which nothing was given are left out."""
    return {
        kind: tuple(SnapshotFile(file.name, snapshot_path(file.sha256), file.sha256, file.size) for file in files)
        for kind, files in attachments.items()
        if files
    }


def paths_in(named: Mapping[str, Sequence[SnapshotFile]]) -> frozenset[str]:
    """Return where the files lie that a manifest names, relative to the run: what must stay while the checkpoint does."""
    return frozenset(file.path for files in named.values() for file in files)


def keep_snapshots(store: Store, run: str, attachments: Mapping[str, Sequence[Attachment]]) -> None:
    """Write every file that is not there, and prove all of them. One that is damaged goes to the trash and is written anew.

    Raises StoreUnavailable when the store does not give back what was written.
    """
    for files in attachments.values():
        for file in files:
            path = f"{run}/{snapshot_path(file.sha256)}"
            if store.exists(path):
                if _is_intact(store, path, file.sha256):
                    continue
                store.move(path, f"{run}/{TRASH}/{file.sha256}-{uuid.uuid4().hex[:8]}")
            with suppress(AlreadyInStore):  # another process keeps the same bytes; what is there is proven below
                store.create(path, file.read())
            if not _is_intact(store, path, file.sha256):
                raise StoreUnavailable(f"{store.uri}/{path}: was written, and is not what was written when it is read back")


def read_snapshots(store: Store, reference: Reference, files: Sequence[SnapshotFile]) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each file, proven by its digest. Raises CheckpointDamaged for one that is missing or not what it was."""
    for file in files:
        try:
            data = store.read(f"{reference.run}/{file.path}")
        except NotInStore as error:
            raise reference.damaged(file.path, f"the snapshot of {file.name} is missing") from error
        if digest(data) != file.sha256:
            raise reference.damaged(file.path, f"the snapshot of {file.name} is not what was kept")
        yield file.name, data


def _is_intact(store: Store, path: str, sha256: str) -> bool:
    """Say whether the storage, not a cache of it, gives the bytes of that digest."""
    found = hashlib.sha256()
    try:
        for block in store.read_back(path, _BLOCK_BYTES):
            found.update(block)
    except NotInStore:
        return False
    return found.hexdigest() == sha256
