"""Which frozen tensors are still what is stored of them, so that only what training changes is copied and written again.

A frozen file is hashed once per attempt, from the live tensors. After that a tensor counts as unchanged while its version counter, its
address and a sample of its bytes are what they were; and in every save one verification chunk of every frozen file is hashed again, in
turn. torch counts every change it makes in place. One made behind its back (through ``.data``, or by a foreign kernel) is found by the
sample when it touches the tensor as a whole, and else when its chunk's turn comes. A tensor that changed once is written like any other
from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import xxhash

from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.frozen import frozen_path
from trainer_runtime.checkpoint.identity import identify
from trainer_runtime.checkpoint.staging.pieces import FilePlan, Piece
from trainer_runtime.contract.manifest import CHUNK_BYTES, FileEntry
from trainer_runtime.errors import CheckpointDamaged
from trainer_runtime.state.leaves import Leaf, refuse_freed
from trainer_runtime.state.raw import bytes_of

LEAST_BYTES: Final = 64 * 1024
"""A tensor smaller than this is written every time: that costs less than looking at it."""
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096
"""Bytes of each of the pages that are hashed in each save; they lie evenly apart, the first and the last byte among them."""


@dataclass(frozen=True)
class _Mark:
    """What a tensor looked like."""

    version: int
    address: int
    sample: str


@dataclass(frozen=True)
class _Known:
    """A frozen file that was hashed: what lies in it, and its identity."""

    file: FilePlan
    entry: FileEntry


class Unchanged:
    """What one rank knows of its frozen tensors. ``stored``: paths that the checkpoint it resumed from has proven to be in the run.

    A save looks once: `look`, then `identify` for each file that the plan makes of frozen pieces.
    """

    def __init__(self, stored: frozenset[str] = frozenset()) -> None:
        self._stored = set(stored)
        self._marks: dict[str, _Mark] = {}
        self._thawed: set[str] = set()
        self._known: dict[tuple[object, ...], _Known] = {}
        self._looks = 0

    def look(self, leaves: Sequence[Leaf]) -> tuple[frozenset[str], frozenset[str]]:
        """Look at every frozen leaf again. Returns what a plan depends on: the names of those that changed, and what is stored. Raises
        ConfigurationError for one whose memory was freed."""
        self._looks += 1
        for leaf in [leaf for leaf in leaves if leaf.frozen_version is not None]:
            if self.is_frozen(leaf):
                mark = _mark_of(leaf)
                if mark is None or self._marks.setdefault(leaf.name, mark) != mark:
                    self._thawed.add(leaf.name)
        for key, known in list(self._known.items()):
            if not self._still_fits(known, leaves):
                del self._known[key]
        return frozenset(self._thawed), frozenset(self._stored)

    def is_frozen(self, leaf: Leaf) -> bool:
        """Whether the leaf goes to a frozen file."""
        return leaf.frozen_version is not None and leaf.tensor.nbytes >= LEAST_BYTES and leaf.name not in self._thawed

    def identify(self, file: FilePlan, leaves: Sequence[Leaf]) -> FileEntry:
        """Return the identity of a file of frozen pieces; hashes the live tensors when it is not known."""
        key = (file.header, *((piece.leaf, piece.first_row, piece.rows) for piece in file.pieces))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(file, _identify(file, leaves))
        return known.entry

    def forget(self) -> None:
        """Frozen files are cut in another way from now on: what was hashed is none of them."""
        self._known.clear()

    def is_stored(self, path: str) -> bool:
        """Whether a checkpoint of this run is known to refer to the file, so that it need not be staged."""
        return path in self._stored

    def _still_fits(self, known: _Known, leaves: Sequence[Leaf]) -> bool:
        pieces = known.file.pieces
        if not all(piece.leaf < len(leaves) and self._still_holds(leaves[piece.leaf], piece) for piece in pieces):
            return False
        number = self._looks % len(known.entry.xxh3_128)
        if _chunk_digest(known.file, leaves, number) == known.entry.xxh3_128[number]:
            return True
        self._thawed.update(piece.name for piece in pieces)
        return False

    def _still_holds(self, leaf: Leaf, piece: Piece) -> bool:
        """Whether the leaf is what the piece was cut from, as far as its name and form tell."""
        form = (leaf.name, tuple(leaf.tensor.shape), ITEM_BYTES[piece.dtype])
        return self.is_frozen(leaf) and form == (piece.name, piece.block, leaf.tensor.itemsize)

    def settle(self, paths: Sequence[str], error: Exception | None) -> None:
        """Take in how a save ended that referred to ``paths``. Only one that was verified proves that they are there.

        Damage names one file, and others may be missing with it: all are staged again, and those that are intact are not written again.
        """
        if error is None:
            self._stored.update(paths)
        elif isinstance(error, CheckpointDamaged):
            self._stored.difference_update(paths)


def _mark_of(leaf: Leaf) -> _Mark | None:
    """Return what the leaf looks like now, or None for one whose bytes cannot be looked at where they lie."""
    if leaf.frozen_version is None or not leaf.tensor.is_contiguous():
        return None
    refuse_freed(leaf)
    data = _flat(leaf.tensor)
    starts = [number * (len(data) - _SAMPLE_BYTES) // (_SAMPLES - 1) for number in range(_SAMPLES)]
    sample = torch.cat([data[start : start + _SAMPLE_BYTES] for start in starts])
    return _Mark(leaf.frozen_version, leaf.tensor.data_ptr(), xxhash.xxh3_128_hexdigest(bytes_of(sample.cpu())))


def _identify(file: FilePlan, leaves: Sequence[Leaf]) -> FileEntry:
    entry = identify(file.path, file.size, lambda begin, end: _image(file, leaves, begin, end))
    return replace(entry, path=frozen_path(entry.blake3))


def _chunk_digest(file: FilePlan, leaves: Sequence[Leaf], number: int) -> str:
    chunk = xxhash.xxh3_128()
    for part in _image(file, leaves, number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, file.size)):
        chunk.update(part)
    return chunk.hexdigest()


def _image(file: FilePlan, leaves: Sequence[Leaf], begin: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes ``begin`` to ``end`` of the file as it would be staged, without staging it."""
    header = len(file.header)
    if begin < header:
        yield memoryview(file.header)[begin:end]
    for piece in file.pieces:
        first, last = max(begin, header + piece.begin), min(end, header + piece.begin + piece.nbytes)
        if first < last:
            tensor = leaves[piece.leaf].tensor
            rows = tensor if piece.is_whole else tensor.narrow(0, piece.first_row, piece.rows)
            at = header + piece.begin
            yield bytes_of(_flat(rows)[first - at : last - at].cpu())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
