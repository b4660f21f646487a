"""A checkpoint from one store to another, byte for byte: every byte is proven when it is read and again where it lands.

The copy has the same manifest, so it is the same checkpoint by its digest, wherever it is restored from. It is committed as a save is: data
and indexes below ``tmp/``, then one atomic step, then read-back and the mark. It decides nothing about what is copied, or when.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from trainer_runtime.checkpoint.documents import Documents, find_reference, is_still_there, is_verified, read_documents
from trainer_runtime.checkpoint.frozen import is_frozen, put
from trainer_runtime.checkpoint.keeping.retention import ABANDONED_SECONDS
from trainer_runtime.checkpoint.keeping.snapshots import read_snapshots
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.checkpoint.verify import mark_verified, read_chunk, verify_files
from trainer_runtime.contract.layout import MANIFEST, TMP, rank_index_path, staging_path, step_path
from trainer_runtime.contract.manifest import FileEntry, SnapshotFile, digest
from trainer_runtime.errors import CheckpointDamaged, CommitUndecided, RuntimeProblem, SaveFailed
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store


def copy_checkpoint(
    source: Store, reference: Reference, target: Store, attempt: int, by: str, on_block: Callable[[int], None] = lambda _bytes: None
) -> Reference:
    """Copy a checkpoint with all it needs, verify the copy, and return its reference. One that is there already is verified, not copied.

    ``attempt`` is the copier's: by it `remove_leftovers` tells what nobody works on any more. ``by`` goes into the verified mark.
    ``on_block`` is told the bytes of each block before it is written, and again when it was read back, then from several threads. It may
    raise to end the copy: of one that was not committed nothing stays, one that was stays unverified, for the next call to verify.

    Raises CheckpointDamaged when either side is not what the manifest says, StoreUnavailable, and SaveFailed when the target holds another
    checkpoint under this name, or the source lost this one meanwhile.
    """
    copy = replace(reference, store_uri=target.uri)
    there = find_reference(target, copy.run, copy.name)
    proven: frozenset[str] = frozenset()
    if there is None:
        try:
            proven = _transfer(source, read_documents(source, reference), target, attempt, on_block)
        except CheckpointDamaged as error:
            if is_still_there(source, reference):
                raise
            raise SaveFailed(f"{reference.uri} was deleted while it was copied") from error
    elif there != copy:
        raise SaveFailed(f"{copy.uri} holds another checkpoint: manifest {there.manifest_sha256}, not {copy.manifest_sha256}")
    if not is_verified(target, copy):
        for index in read_documents(target, copy).indexes:
            verify_files(target, copy, index, proven, on_block)
        mark_verified(target, copy, time.time(), by)
    return copy


def remove_leftovers(target: Store, run: str, attempt: int, now: float) -> None:
    """Delete what copiers of other attempts than ``attempt`` left half copied 24 hours ago or earlier. ``now``: Unix seconds."""
    for name in target.list(f"{run}/{TMP}"):
        path = f"{run}/{TMP}/{name}"
        try:
            is_old = now - target.modified_at(path) >= ABANDONED_SECONDS
        except NotInStore:
            continue  # committed or removed since it was listed
        if is_old and f".{attempt}-" not in name:
            target.remove(path)


def proven_blocks(store: Store, reference: Reference, file: FileEntry) -> Iterator[memoryview]:
    """Yield a data file, one verification chunk at a time, each proven. A view is valid until the next one.

    Raises CheckpointDamaged for the first chunk that is not what was staged, StoreUnavailable when it cannot be read.
    """
    view = memoryview(bytearray(min(file.chunk_size, file.size)))
    for number in range(-(-file.size // file.chunk_size)):
        yield read_chunk(store, reference, file, number, view)


def _transfer(source: Store, documents: Documents, target: Store, attempt: int, on_block: Callable[[int], None]) -> frozenset[str]:
    """Copy and commit, and return the paths of frozen files that were there and proven, so that nobody need read them again.

    Each try has a directory of its own: one whose commit nobody can decide must stay, and must not be in the way of the next.
    """
    reference = documents.reference
    staging = f"{reference.run}/{staging_path(reference.name)}.{attempt}-{uuid.uuid4().hex[:8]}"
    proven = set()
    try:
        for index in documents.indexes:
            for file in index.files:
                if not _transfer_file(source, reference, file, target, staging, on_block):
                    proven.add(file.path)
        for files in documents.manifest.snapshots.values():
            _transfer_snapshots(source, reference, files, target)
        for entry in documents.manifest.indexes:
            path = rank_index_path(entry.rank)
            target.create(f"{staging}/{path}", _read_exactly(source, reference, path, entry.sha256))
        manifest = _read_exactly(source, reference, MANIFEST, reference.manifest_sha256)
        target.commit(staging, f"{reference.run}/{step_path(reference.name)}", MANIFEST, manifest)
    except CommitUndecided:
        raise
    except BaseException as error:
        _clear(target, staging, error)
        if isinstance(error, AlreadyInStore):
            raise SaveFailed(f"{reference.uri} was not copied to {target.uri}: somebody else writes there ({error})") from error
        raise
    return frozenset(proven)


def _clear(target: Store, staging: str, error: BaseException) -> None:
    try:
        target.remove(staging)
    except RuntimeProblem as problem:
        error.add_note(f"what was copied stays: {problem}")


def _transfer_file(
    source: Store, reference: Reference, file: FileEntry, target: Store, staging: str, on_block: Callable[[int], None]
) -> bool:
    """Copy a file and say whether it was copied. A frozen file goes to its own place, which an earlier copy may have filled already."""

    def write(path: str) -> None:
        target.write_blocks(path, _told(proven_blocks(source, reference, file), on_block), file.size)

    if is_frozen(file.path):
        return put(target, reference.run, file, write)
    write(f"{staging}/{file.path}")
    return True


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
