"""Files of tensors that training does not change: named by what they hold, stored once per run, referred to by every checkpoint.

``frozen/<BLAKE3>.safetensors`` lies beside ``steps/``. A path that begins so is relative to the run; every other path of a checkpoint is
relative to the checkpoint. Two writers of one name write the same bytes, so that it does not matter who was first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Final

import xxhash

from trainer_runtime.contract.layout import FROZEN, TMP, TRASH
from trainer_runtime.contract.manifest import FileEntry, RankIndex
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.base import AlreadyInStore, NotInStore, Store

_SUFFIX: Final = ".safetensors"


def frozen_path(blake3: str) -> str:
    """Return the path of the file with this digest, relative to the run."""
    return f"{FROZEN}/{blake3}{_SUFFIX}"


def is_frozen(path: str) -> bool:
    """Say whether a file's path is one of a frozen file."""
    return path.startswith(f"{FROZEN}/")


def locate(run: str, directory: str, path: str) -> str:
    """Return where a checkpoint's file lies in the store. ``directory``: the checkpoint's, ``<run>/steps/<step>-<attempt>``."""
    return f"{run}/{path}" if is_frozen(path) else f"{directory}/{path}"


def named_in(indexes: Iterable[RankIndex]) -> frozenset[str]:
    """Return the frozen files that a checkpoint refers to, relative to the run: what retention must leave while it keeps the checkpoint."""
    return frozenset(file.path for index in indexes for file in index.files if is_frozen(file.path))


def write(store: Store, run: str, file: FileEntry, image: memoryview) -> None:
    """Store a frozen file unless an intact one is there. ``image``: as for `Store.write_file`; ``file``: its identity, taken of ``image``.

    Raises SaveFailed when the bytes are not those that its name says: a frozen tensor changed while it was staged. A file of that name
    whose bytes are wrong heals: it goes to the trash, and this one takes its place.
    """
    if file.path != frozen_path(file.blake3):
        raise SaveFailed(f"{file.path}: a frozen tensor changed while it was staged; the next save writes it anew")
    put(store, run, file, lambda draft: store.write_file(draft, image, file.size))


def put(store: Store, run: str, file: FileEntry, write_draft: Callable[[str], None]) -> bool:
    """Have a frozen file written, unless an intact one is there, and say whether it was written. ``write_draft``: writes it to the path
    that it is given, from where it moves to its name when it is whole: a writer that is killed leaves nothing under the name.

    A file of that name whose bytes are wrong goes to the trash, and the new one takes its place.
    """
    path = f"{run}/{file.path}"
    if is_intact(store, path, file):
        return False
    if store.exists(path):
        _move(store, path, f"{run}/{TRASH}/{file.blake3}-{uuid.uuid4().hex[:8]}/{file.blake3}{_SUFFIX}")
    draft = f"{run}/{TMP}/frozen-{file.blake3}-{uuid.uuid4().hex[:8]}"
    write_draft(draft)
    try:
        store.move(draft, path)
    except AlreadyInStore:  # another rank or a retry of ours was faster, with the same bytes
        store.remove(draft)
    return True


def is_intact(store: Store, path: str, file: FileEntry) -> bool:
    """Say whether the file is there and every byte of it, read back from the storage, is what ``file`` says."""
    try:
        if store.size(path) != file.size:
            return False
        digests = tuple(xxhash.xxh3_128_hexdigest(block) for block in store.read_back(path, file.chunk_size))
    except NotInStore:
        return False
    return digests == file.xxh3_128


def _move(store: Store, path: str, to: str) -> None:
    try:
        store.move(path, to)
    except NotInStore:
        return  # another rank moved it
