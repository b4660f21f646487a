"""A number per tensor that does not depend on how the tensor was cut: what shows that a reshard put every element in its place.

An element, taken as an unsigned number of its own bits, is multiplied by one odd weight per axis, chosen by its index in the *whole*
tensor; the fingerprint is the sum modulo 2^32. So the fingerprints of any set of blocks that make up a tensor add up to the tensor's own.
It is computed of the staged bytes (0.05 processor seconds per GB for elements of four bytes). It guards against elements that were
misplaced, lost or taken twice; damage to bytes is what the files' digests are for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.names import find_owner
from trainer_runtime.contract.manifest import RankIndex, TensorEntry

MODULUS: Final = 1 << 32
_BLOCK_WORDS: Final = 1 << 18
"""Words that are widened or weighted at a time: 1 MiB, so that they stay in a core's cache."""
_LEAST_ROW: Final = 64
"""A row shorter than this is not worth a call of its own inner loop."""
_REMEMBERED_WORDS: Final = 1 << 14
_Words = npt.NDArray[np.uint32]


def of_block(dtype: str, offset: tuple[int, ...], shape: tuple[int, ...], data: Any) -> int:
    """Return the fingerprint of one block. ``offset``: where it begins in the whole tensor; ``data``: its bytes, in row-major order."""
    words, axes = _as_words(dtype, data, offset, shape)
    if words.size == 0:
        return 0
    row, count = axes[0]
    rest = _weights(1, *axes[1]) if len(axes) > 1 else np.ones(1, np.uint32)
    for number, axis in enumerate(axes[2:], start=2):
        rest = np.multiply.outer(rest, _weights(number, *axis)).ravel()
    rows = words.reshape(count, len(rest))
    step = max(1, _BLOCK_WORDS // len(rest))
    total = 0
    for begin in range(0, count, step):
        block = rows[begin : begin + step].astype(np.uint32, copy=False)
        weights = _weights(0, row + begin, len(block))
        if len(rest) >= _LEAST_ROW:
            part = np.einsum("r,r->", np.einsum("rc,c->r", block, rest), weights)
        else:
            part = np.einsum("i,i->", block.ravel(), np.multiply.outer(weights, rest).ravel())
        total += int(part)
    return total % MODULUS


def of_staged(tensors: Iterable[TensorEntry], images: Mapping[str, memoryview]) -> tuple[TensorEntry, ...]:
    """Return a rank's tensors with the fingerprint of each chunk whose file is in ``images`` (by path); other chunks stay as they are."""
    return tuple(replace(entry, chunks=tuple(_of_chunk(entry, chunk, images) for chunk in entry.chunks)) for entry in tensors)


def totals(indexes: Iterable[RankIndex]) -> dict[str, int]:
    """Return the fingerprint of every tensor that the ranks hold together, by name. Aliases and ranks' own tensors have none."""
    found: dict[str, int] = {}
    for index in indexes:
        for entry in index.tensors:
            if entry.alias_of is None and find_owner(entry.name) is None:
                part = sum(chunk.fingerprint for chunk in entry.chunks)
                found[entry.name] = (found.get(entry.name, 0) + part) % MODULUS
    return found


def combined(indexes: Iterable[RankIndex]) -> str:
    """Return one digest for all that the ranks hold together: equal states saved by different layouts have the same."""
    hasher = hashlib.sha256()
    for name, value in sorted(totals(indexes).items()):
        hasher.update(f"{name}\0{value:08x}\n".encode())
    return hasher.hexdigest()


def _of_chunk(entry: TensorEntry, chunk: Any, images: Mapping[str, memoryview]) -> Any:
    image = images.get(chunk.file)
    if image is None:
        return chunk
    data = image[chunk.byte_offset : chunk.byte_offset + chunk.nbytes]
    return replace(chunk, fingerprint=of_block(entry.dtype, chunk.offset, chunk.size, data))


def _as_words(dtype: str, data: Any, offset: tuple[int, ...], shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], list[tuple[int, int]]]:
    """Return the block as words of at most four bytes, and (first index, length) along each axis. Eight bytes are two words on an axis of
    their own, and a number without axes has one of length one."""
    item = ITEM_BYTES[dtype]
    axes = list(zip(offset, shape, strict=True)) or [(0, 1)]
    if item == 8:
        axes.append((0, 2))
    words: npt.NDArray[Any] = np.frombuffer(data, {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}[item])
    assert words.size == math.prod(length for _, length in axes)
    return words, axes


def _weights(axis: int, first: int, length: int) -> _Words:
    """Return the weights of the indexes ``first`` to ``first + length`` of an axis. Short ones come again and again, long ones would fill
    the memory."""
    return (_remembered if length <= _REMEMBERED_WORDS else _mixed)(axis, first, length)


def _mixed(axis: int, first: int, length: int) -> _Words:
    """Return odd, well-mixed numbers (the finaliser of MurmurHash3)."""
    mixed = np.arange(first + 1, first + 1 + length, dtype=np.uint64).astype(np.uint32)
    mixed += np.uint32((0x9E3779B9 * (axis + 1)) % MODULUS)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    mixed |= np.uint32(1)
    mixed.flags.writeable = False
    return mixed


_remembered = lru_cache(maxsize=256)(_mixed)
