"""Which bytes of a checkpoint's files a set of live tensors needs, and how they get from a file's block to their places.

The tensors may lie on other ranks, and be cut along other axes, than when they were saved: what is needed is the rectangle in which a saved
piece and a live block meet, and the run of bytes in the file that holds it. It reads nothing by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.contract.manifest import Chunk, FileEntry, TensorEntry
from trainer_runtime.state.leaves import Leaf
from trainer_runtime.state.raw import bytes_of

Box = tuple[tuple[int, int], ...]
"""(first index, length) along each axis."""


class NotCovered(ValueError):
    """The saved pieces do not hold every element of a live tensor. The message names it."""


class Need:
    """The part of one saved piece that one live tensor takes, and the bytes of the file from its first element to its last."""

    def __init__(self, leaf: Leaf, chunk: Chunk, item_bytes: int, box: Box) -> None:
        """``box``: what is needed, in the piece's own indexes."""
        strides = [math.prod(chunk.size[axis + 1 :]) for axis in range(len(chunk.size))]
        first = sum(begin * stride for (begin, _), stride in zip(box, strides, strict=True))
        last = sum((begin + length - 1) * stride for (begin, length), stride in zip(box, strides, strict=True))
        self.begin = chunk.byte_offset + first * item_bytes
        self.end = chunk.byte_offset + (last + 1) * item_bytes
        self._chunk = chunk
        self._box = box
        self._target = _part_of(leaf, chunk, box)
        is_one_run = self.end - self.begin == self._target.nbytes
        direct = is_one_run and self._target.is_contiguous() and self._target.device.type == "cpu"
        self._bytes = self._target.reshape(-1).view(torch.uint8) if direct else None

    @property
    def nbytes(self) -> int:
        """Bytes that are taken."""
        return self._target.nbytes

    def memory(self, begin: int, end: int) -> memoryview | None:
        """Return the live memory that the file's bytes ``begin`` to ``end`` are to fill as they are; None when they are not to lie so."""
        if self._bytes is None or begin < self.begin or end > self.end:
            return None
        return bytes_of(self._bytes[begin - self.begin : end - self.begin])

    def take(self, block: torch.Tensor, at: int) -> None:
        """Copy what is needed of ``block``, whose bytes lie at ``at`` in the file. Nothing is cast."""
        first, last = max(self.begin, at), min(self.end, at + len(block))
        if first >= last:
            return
        data = block[first - at : last - at]
        if self._bytes is not None:
            self._bytes[first - self.begin : last - self.begin].copy_(data)
            return
        item = self._target.dtype.itemsize
        _scatter(data.view(self._target.dtype), (first - self._chunk.byte_offset) // item, self._chunk.size, self._box, self._target)


@dataclass(frozen=True)
class FileNeeds:
    """What is needed of one file, in the file's order."""

    file: FileEntry
    needs: tuple[Need, ...]

    def chunks(self) -> list[int]:
        """Return the numbers of the verification chunks that hold a needed byte."""
        numbers: set[int] = set()
        for need in self.needs:
            numbers.update(range(need.begin // self.file.chunk_size, (need.end - 1) // self.file.chunk_size + 1))
        return sorted(numbers)


def find_needs(leaves: Iterable[Leaf], saved: Mapping[str, TensorEntry], files: Mapping[str, FileEntry]) -> list[FileNeeds]:
    """Return, by file, what ``leaves`` need of the tensors of their names. Raises NotCovered."""
    by_file: dict[str, list[Need]] = {}
    for leaf in leaves:
        entry = saved[leaf.name]
        found = 0
        for chunk in entry.chunks:
            box = _meeting(leaf, chunk)
            if box is not None:
                by_file.setdefault(chunk.file, []).append(Need(leaf, chunk, ITEM_BYTES[entry.dtype], box))
                found += math.prod(length for _, length in box)
        if found != leaf.tensor.numel():
            raise NotCovered(f"{leaf.name}: the checkpoint holds {found} of the {leaf.tensor.numel()} elements that this rank needs")
    return [FileNeeds(files[path], tuple(sorted(needs, key=lambda need: need.begin))) for path, needs in sorted(by_file.items())]


def _meeting(leaf: Leaf, chunk: Chunk) -> Box | None:
    """Return where a live block and a saved piece meet, in the piece's indexes, or None when they do not."""
    offset = leaf.shard.offset if leaf.shard is not None else (0,) * leaf.tensor.dim()
    box = []
    for own, extent, begin, size in zip(offset, leaf.tensor.shape, chunk.offset, chunk.size, strict=True):
        first, last = max(own, begin), min(own + extent, begin + size)
        if first >= last:
            return None
        box.append((first - begin, last - first))
    return tuple(box)


def _part_of(leaf: Leaf, chunk: Chunk, box: Box) -> torch.Tensor:
    offset = leaf.shard.offset if leaf.shard is not None else (0,) * leaf.tensor.dim()
    view = leaf.tensor.detach()
    for axis, ((first, length), begin, own) in enumerate(zip(box, chunk.offset, offset, strict=True)):
        view = view.narrow(axis, first + begin - own, length)
    return view


def _scatter(run: torch.Tensor, start: int, shape: Sequence[int], box: Box, target: torch.Tensor) -> None:
    """Put a run of elements, which begins at element ``start`` of an array of ``shape``, into ``target``, the array's part ``box``.

    A run is the rest of a row, whole rows, and the beginning of a row; the first and the last are runs of an array with one axis less.
    """
    if not shape:
        target.copy_(run[0])
        return
    (first, count), inner = box[0], box[1:]
    row_length = math.prod(shape[1:])
    while len(run) > 0:
        row, within = divmod(start, row_length)
        length = min(row_length - within, len(run)) if within or len(run) < row_length else len(run) // row_length * row_length
        part = run[:length]
        if length < row_length:
            if first <= row < first + count:
                _scatter(part, within, shape[1:], inner, target[row - first])
        else:
            low, high = max(row, first), min(row + length // row_length, first + count)
            if low < high:
                rows = part.view(-1, *shape[1:])[low - row : high - row]
                for axis, (begin, size) in enumerate(inner, start=1):
                    rows = rows.narrow(axis, begin, size)
                target[low - first : high - first].copy_(rows)
        run, start = run[length:], start + length
