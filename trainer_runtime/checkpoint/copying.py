"""A checkpoint from one store to another, byte for byte: every byte is proven when it is read and again where it lands.

The copy has the same manifest, so it is the same checkpoint by its digest, wherever it is restored from. It is committed as a save is: data
and indexes below ``tmp/``, then one atomic step, then read-back and the mark. It decides nothing about what is copied, or when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from trainer_runtime.checkpoint.documents import Documents, find_reference, is_verified, read_documents
from trainer_runtime.checkpoint.frozen import is_frozen, locate
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.snapshots import read_snapshots
from trainer_runtime.checkpoint.verify import mark_verified, read_chunk, verify_checkpoint
from trainer_runtime.contract.layout import MANIFEST, rank_index_path, staging_path, step_path
from trainer_runtime.contract.manifest import FileEntry, SnapshotFile, digest
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store


def copy_checkpoint(
    source: Store, reference: Reference, target: Store, attempt: int, by: str, on_block: Callable[[int], None] = lambda _bytes: None
) -> Reference:
    """Copy a checkpoint with all it needs, verify the copy, and return its reference. One that is there already is verified, not copied.

    ``attempt`` is the copier's: what an older one left half copied is not ours. ``by`` goes into the verified mark. ``on_block`` is told
    the bytes of each block before it is written, and may raise to end the copy: then nothing of it stays.

    Raises CheckpointDamaged when either side is not what the manifest says, StoreUnavailable, and SaveFailed when the target holds another
    checkpoint under this name.
    """
    copy = replace(reference, store_uri=target.uri)
    there = find_reference(target, copy.run, copy.name)
    if there is None:
        _transfer(source, read_documents(source, reference), target, attempt, on_block)
    elif there != copy:
        raise SaveFailed(f"{copy.uri} holds another checkpoint: manifest {there.manifest_sha256}, not {copy.manifest_sha256}")
    if not is_verified(target, copy):
        verify_checkpoint(target, copy)
        mark_verified(target, copy, time.time(), by)
    return copy


def proven_blocks(store: Store, reference: Reference, file: FileEntry) -> Iterator[memoryview]:
    """Yield a data file, one verification chunk at a time, each proven. A view is valid until the next one.

    Raises CheckpointDamaged for the first chunk that is not what was staged, StoreUnavailable when it cannot be read.
    """
    view = memoryview(bytearray(min(file.chunk_size, file.size)))
    for number in range(-(-file.size // file.chunk_size)):
        yield read_chunk(store, reference, file, number, view)


def _transfer(source: Store, documents: Documents, target: Store, attempt: int, on_block: Callable[[int], None]) -> None:
    reference = documents.reference
    staging = f"{reference.run}/{staging_path(reference.name)}.{attempt}"
    target.remove(staging)  # a copy of ours that was cut off
    try:
        for index in documents.indexes:
            for file in index.files:
                _transfer_file(source, reference, file, target, staging, on_block)
        for files in documents.manifest.snapshots.values():
            _transfer_snapshots(source, reference, files, target)
        for entry in documents.manifest.indexes:
            path = rank_index_path(entry.rank)
            target.create(f"{staging}/{path}", _read_exactly(source, reference, path, entry.sha256))
        manifest = _read_exactly(source, reference, MANIFEST, reference.manifest_sha256)
        target.commit(staging, f"{reference.run}/{step_path(reference.name)}", MANIFEST, manifest)
    except AlreadyInStore as error:
        raise SaveFailed(f"{reference.uri} was not copied to {target.uri}: somebody else writes there ({error})") from error
    except BaseException:
        target.remove(staging)
        raise


def _transfer_file(
    source: Store, reference: Reference, file: FileEntry, target: Store, staging: str, on_block: Callable[[int], None]
) -> None:
    """A frozen file goes to its own place, which an earlier copy may have filled already; whether rightly, the verification finds out."""
    to = locate(reference.run, staging, file.path)
    if is_frozen(file.path) and target.exists(to):
        return
    target.write_blocks(to, _told(proven_blocks(source, reference, file), on_block), file.size)


def _transfer_snapshots(source: Store, reference: Reference, files: Sequence[SnapshotFile], target: Store) -> None:
    missing = [file for file in files if not target.exists(f"{reference.run}/{file.path}")]
    for file, (_name, data) in zip(missing, read_snapshots(source, reference, missing), strict=True):
        with suppress(AlreadyInStore):  # two names of the same bytes
            target.create(f"{reference.run}/{file.path}", data)


def _told(blocks: Iterator[memoryview], on_block: Callable[[int], None]) -> Iterator[memoryview]:
    for block in blocks:
        on_block(len(block))
        yield block


def _read_exactly(store: Store, reference: Reference, path: str, sha256: str) -> bytes:
    try:
        data = store.read(f"{reference.directory}/{path}")
    except NotInStore as error:
        raise reference.damaged(path, "is missing") from error
    if digest(data) != sha256:
        raise reference.damaged(path, "changed while it was copied")
    return data
