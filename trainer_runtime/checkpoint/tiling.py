"""Do the pieces of a tensor make up the tensor: every element once, none twice? Pure."""

from __future__ import annotations

import math

from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.contract.manifest import Chunk, TensorEntry


def find_tiling_fault(tensor: TensorEntry) -> str | None:
    """Return what is wrong with a tensor's chunks, or None when they tile it exactly. An empty tensor needs one (empty) chunk as well, so
    that losing it is noticed."""
    item_bytes = ITEM_BYTES.get(tensor.dtype)
    if item_bytes is None:
        return f"{tensor.name}: unknown dtype {tensor.dtype!r}"
    if tensor.alias_of is not None:
        return f"{tensor.name}: is an alias of {tensor.alias_of} and has bytes of its own" if tensor.chunks else None
    if not tensor.chunks:
        return f"{tensor.name}: no bytes at all"
    volume = 0
    for chunk in tensor.chunks:
        if len(chunk.offset) != len(tensor.global_shape) or len(chunk.size) != len(tensor.global_shape):
            return f"{tensor.name}: {_place(chunk)} has not the rank of shape {tensor.global_shape}"
        for offset, size, extent in zip(chunk.offset, chunk.size, tensor.global_shape, strict=True):
            if offset < 0 or size < 0 or offset + size > extent:
                return f"{tensor.name}: {_place(chunk)} lies outside of shape {tensor.global_shape}"
        if chunk.nbytes != math.prod(chunk.size) * item_bytes:
            return f"{tensor.name}: {_place(chunk)} has {chunk.nbytes} bytes, its shape needs {math.prod(chunk.size) * item_bytes}"
        volume += math.prod(chunk.size)
    overlap = _find_overlap(tensor.chunks)
    if overlap is not None:
        return f"{tensor.name}: {_place(overlap[0])} and {_place(overlap[1])} overlap"
    if volume != math.prod(tensor.global_shape):
        return f"{tensor.name}: the chunks hold {volume} of {math.prod(tensor.global_shape)} elements"
    return None


def _find_overlap(chunks: tuple[Chunk, ...]) -> tuple[Chunk, Chunk] | None:
    """Sweep along the first axis: only boxes that are open at the same row can meet."""
    solid = [chunk for chunk in chunks if math.prod(chunk.size) > 0]
    open_boxes: list[Chunk] = []
    for chunk in sorted(solid, key=lambda chunk: chunk.offset):
        if chunk.offset:
            open_boxes = [other for other in open_boxes if other.offset[0] + other.size[0] > chunk.offset[0]]
        for other in open_boxes:
            if _meet(chunk, other):
                return other, chunk
        open_boxes.append(chunk)
    return None


def _meet(one: Chunk, other: Chunk) -> bool:
    sides = zip(one.offset, one.size, other.offset, other.size, strict=True)
    return all(a < b + b_size and b < a + a_size for a, a_size, b, b_size in sides)


def _place(chunk: Chunk) -> str:
    return f"the chunk at {list(chunk.offset)} of size {list(chunk.size)} in {chunk.file}"
