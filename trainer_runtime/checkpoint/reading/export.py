"""A checkpoint's model as a plain directory of safetensors files, as `transformers` and every other reader of safetensors takes it.

Tensors that were cut over ranks are put together again, names lose the ``model/`` in front, nothing is cast. It is made under another name
and renamed when it is complete. It exports no optimizer, no random state and no position in the data: that is what resuming is for.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from trainer_runtime.checkpoint.documents import Documents
from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.image import Placed, header_bytes
from trainer_runtime.checkpoint.keeping.snapshots import read_snapshots
from trainer_runtime.checkpoint.reading.chunks import Reader
from trainer_runtime.contract.layout import MANIFEST
from trainer_runtime.contract.manifest import TensorEntry
from trainer_runtime.errors import ConfigurationError, StoreUnavailable
from trainer_runtime.store.base import Store

MODEL: Final = "model/"
"""What the names of a model's tensors begin with."""
MAX_SHARD_BYTES: Final = 5 * 10**9
"""Data bytes per file, as `transformers` cuts its own; a larger tensor gets a file of its own."""
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True)
class Exported:
    """What was written."""

    tensors: int
    total_bytes: int
    aliases: Mapping[str, str]
    """Names that share the bytes of another and were left out, as is the custom of safetensors."""
    files: tuple[str, ...]
    """Relative to the directory."""


def export_model(
    store: Store,
    documents: Documents,
    directory: Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_bytes: Callable[[int], None] = lambda _bytes: None,
) -> Exported:
    """Write the model of a checkpoint into a directory that does not exist yet, or is empty. ``on_bytes`` is told of each batch written.

    Raises ConfigurationError for a directory that holds something, cannot be made, or a checkpoint without a model; CheckpointDamaged for
    bytes that are not what was staged; StoreUnavailable when either side fails. Then no part of the directory is there.
    """
    model = {name.removeprefix(MODEL): entry for name, entry in sorted(documents.tensors.items()) if name.startswith(MODEL)}
    if not model:
        raise ConfigurationError(f"{documents.reference.uri} holds no model: no tensor's name begins with {MODEL!r}")
    draft = _make_draft(directory)
    try:
        exported = _write(store, documents, model, draft, max_shard_bytes, on_bytes)
        _write_snapshots(store, documents, draft)
        if directory.exists():
            directory.rmdir()
        draft.rename(directory)
    except OSError as error:
        raise StoreUnavailable(f"cannot export to {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return exported


def _make_draft(directory: Path) -> Path:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigurationError(f"directory: {directory} is there already and not empty; name one that is not")
    draft = directory.absolute().with_name(f".{directory.absolute().name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise ConfigurationError(f"directory: {directory} cannot be made: {error.strerror}") from error
    return draft


def _write(
    store: Store,
    documents: Documents,
    model: Mapping[str, TensorEntry],
    draft: Path,
    max_shard_bytes: int,
    on_bytes: Callable[[int], None],
) -> Exported:
    aliases = {name: entry.alias_of.removeprefix(MODEL) for name, entry in model.items() if entry.alias_of is not None}
    own = {name: _size(entry) for name, entry in model.items() if entry.alias_of is None}
    shards = cut_into_shards(own, max_shard_bytes)
    files = [SINGLE] if len(shards) == 1 else [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    reader = Reader(store, documents)
    for file, names in zip(files, shards, strict=True):
        entries = {name: model[name] for name in sorted(names, key=lambda name: (-ITEM_BYTES[model[name].dtype], name))}
        _write_shard(reader, entries, {name: kept for name, kept in aliases.items() if kept in entries}, draft / file, on_bytes)
    total = sum(own.values())
    if len(shards) > 1:
        placed = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
        (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return Exported(len(own), total, aliases, tuple(files))


def cut_into_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Deal tensors out to files in the order of their names, so that no file holds more than ``max_bytes`` unless it holds one tensor."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _write_shard(
    reader: Reader, entries: Mapping[str, TensorEntry], aliases: Mapping[str, str], path: Path, on_bytes: Callable[[int], None]
) -> None:
    placed, end = [], 0
    for name, entry in entries.items():
        begin, end = end, end + _size(entry)
        placed.append(Placed(name, entry.dtype, entry.global_shape, begin, end))
    with path.open("xb") as file:
        file.write(header_bytes(placed, aliases))
        for entry in entries.values():
            for batch in reader.batches(entry.name):
                file.write(batch.data)
                on_bytes(len(batch))
        file.flush()
        os.fsync(file.fileno())


def _write_snapshots(store: Store, documents: Documents, draft: Path) -> None:
    """Put the files of config and tokenizer beside the weights, where `from_pretrained` looks for them."""
    for files in documents.manifest.snapshots.values():
        for name, data in read_snapshots(store, documents.reference, files):
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts:
                raise documents.reference.damaged(MANIFEST, f"the name {name!r} of a snapshot leads out of the directory")
            (draft / place).parent.mkdir(parents=True, exist_ok=True)
            (draft / place).write_bytes(data)


def _size(entry: TensorEntry) -> int:
    return math.prod(entry.global_shape) * ITEM_BYTES[entry.dtype]
