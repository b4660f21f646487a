"""How two checkpoints differ: what they hold, under which settings, and in which tensors the bytes are not equal.

Tensors whose files have equal digests are equal without being read; the others are read, proven and compared, whatever ranks wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer_runtime.checkpoint.documents import Documents
from trainer_runtime.checkpoint.reading.chunks import Reader
from trainer_runtime.contract.manifest import Chunk, TensorEntry
from trainer_runtime.store.base import Store


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints."""

    store: Store
    documents: Documents


@dataclass(frozen=True)
class Comparison:
    """What differs, one line each; nothing in any list: the two resume alike."""

    structure: tuple[str, ...]
    """Names, dtypes, shapes, aliases of tensors."""
    settings: tuple[str, ...]
    """What a strict resume compares, and the size of the world."""
    values: tuple[str, ...]
    """Values that are not tensors."""
    tensors: tuple[str, ...]
    """Tensors of equal structure and unequal bytes."""
    equal_tensors: int

    @property
    def is_equal(self) -> bool:
        return not (self.structure or self.settings or self.values or self.tensors)


def compare(left: Side, right: Side, on_tensor: Callable[[str], None] = lambda _name: None) -> Comparison:
    """Compare two checkpoints. ``on_tensor`` is told the name of each tensor before it is compared.

    Raises CheckpointDamaged and StoreUnavailable for what cannot be read.
    """
    one, two = left.documents.tensors, right.documents.tensors
    structure = [
        f"{name}: only in the {side}" for side, mine, other in (("first", one, two), ("second", two, one)) for name in mine.keys() - other
    ]
    common = sorted(one.keys() & two.keys())
    same_structure = []
    for name in common:
        lines = [
            f"{name}: {what} {a!r} and {b!r}"
            for what, a, b in zip(("dtype", "shape", "alias of"), _structure(one[name]), _structure(two[name]), strict=True)
            if a != b
        ]
        structure += lines
        same_structure += [] if lines else [name]
    readers = Reader(left.store, left.documents), Reader(right.store, right.documents)
    digests = _digests(left.documents), _digests(right.documents)
    differing = []
    own = [name for name in same_structure if one[name].alias_of is None]
    for name in own:
        on_tensor(name)
        if _placement(one[name], digests[0]) != _placement(two[name], digests[1]) and not _are_equal(readers, name):
            differing.append(name)
    return Comparison(
        tuple(sorted(structure)),
        tuple(_setting_lines(left.documents, right.documents)),
        tuple(_value_lines(left.documents, right.documents)),
        tuple(differing),
        len(own) - len(differing),
    )


def _structure(entry: TensorEntry) -> tuple[str, list[int], str | None]:
    return entry.dtype, list(entry.global_shape), entry.alias_of


def _digests(documents: Documents) -> dict[str, str]:
    return {file.path: file.blake3 for index in documents.indexes for file in index.files}


def _placement(entry: TensorEntry, digests: Mapping[str, str]) -> set[tuple[Any, ...]]:
    """Equal placements in files of equal digests are equal bytes."""

    def place(chunk: Chunk) -> tuple[Any, ...]:
        return chunk.offset, chunk.size, digests[chunk.file], chunk.byte_offset

    return {place(chunk) for chunk in entry.chunks}


def _are_equal(readers: tuple[Reader, Reader], name: str) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(readers[0].batches(name), readers[1].batches(name), strict=True))


def _setting_lines(left: Documents, right: Documents) -> Iterator[str]:
    one = {"world_size": left.manifest.world_size, **left.manifest.strict}
    two = {"world_size": right.manifest.world_size, **right.manifest.strict}
    yield from _unequal(one, two)


def _value_lines(left: Documents, right: Documents) -> Iterator[str]:
    one, two = ({entry.name: entry.value for index in side.indexes for entry in index.objects} for side in (left, right))
    yield from _unequal(one, two)


def _unequal(one: Any, two: Any, path: str = "") -> Iterator[str]:
    """Yield the places where two JSON values differ, as deep as both are objects."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            place = f"{path}.{key}" if path else key
            if key not in one or key not in two:
                yield f"{place}: only in the {'first' if key in one else 'second'}"
            else:
                yield from _unequal(one[key], two[key], place)
    elif one != two:
        yield f"{path}: {_short(one)} and {_short(two)}"


def _short(value: Any, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}…"
