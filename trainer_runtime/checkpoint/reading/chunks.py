"""The tensors of a checkpoint as plain bytes, a few rows at a time: for commands that need no torch and may not fill the memory.

Every byte is proven by its verification chunk before it is given out. It casts nothing and fills no live tensor: that is `restore`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_runtime.checkpoint.documents import Documents
from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.verify import read_chunk
from trainer_runtime.contract.manifest import Chunk, FileEntry, TensorEntry
from trainer_runtime.store.base import Store

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a tensor given out at a time; one row, if a row is larger."""
MAX_REMEMBERED: Final = 32
"""Verification chunks kept at most. A tensor that is cut into columns is read from as many files at once as it has columns, each a bit at a
time; one that is cut into rows needs one chunk and the next."""
_ELEMENTS: Final = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Whole numbers of an element's size: numpy moves those many at a time, and no bit of them changes."""

Rows = npt.NDArray[np.uint8]
"""Some rows of a tensor as bytes, in the order of the tensor's elements."""


class Reader:
    """One checkpoint's tensors. Not thread-safe. Holds as many chunks as a batch comes from, at most MAX_REMEMBERED, and one batch."""

    def __init__(self, store: Store, documents: Documents) -> None:
        self._store, self._documents = store, documents
        self._files = {file.path: file for index in documents.indexes for file in index.files}
        self._chunks: OrderedDict[tuple[str, int], bytearray] = OrderedDict()

    def entry(self, name: str) -> TensorEntry:
        """Return what is known of a tensor; of an alias, what it is an alias of."""
        entry = self._documents.tensors[name]
        return entry if entry.alias_of is None else self.entry(entry.alias_of)

    def batches(self, name: str, batch_bytes: int = BATCH_BYTES) -> Iterator[Rows]:
        """Yield all bytes of a tensor, a batch of rows at a time. Raises CheckpointDamaged at the first chunk that is not as staged."""
        entry = self.entry(name)
        shape = entry.global_shape or (1,)
        row_bytes = math.prod(shape[1:]) * ITEM_BYTES[entry.dtype]
        rows = max(1, batch_bytes // row_bytes) if row_bytes else max(1, shape[0])
        for first in range(0, shape[0], rows):
            yield self._rows(entry, shape, first, min(rows, shape[0] - first))

    def _rows(self, entry: TensorEntry, shape: tuple[int, ...], first: int, count: int) -> Rows:
        """Put rows together from every piece that has some of them. A piece's own rows lie one after the other in its file."""
        element = _ELEMENTS[ITEM_BYTES[entry.dtype]]
        touched = 0
        out: npt.NDArray[Any] = np.empty((count, *shape[1:]), element)
        for chunk in entry.chunks:
            offset, size = chunk.offset or (0,), chunk.size or (1,)
            begin, end = max(first, offset[0]), min(first + count, offset[0] + size[0])
            if begin >= end or chunk.nbytes == 0:
                continue
            data = self._bytes_of(chunk, (begin - offset[0]) * (chunk.nbytes // size[0]), (end - begin) * (chunk.nbytes // size[0]))
            place = (slice(begin - first, end - first), *(slice(o, o + s) for o, s in zip(offset[1:], size[1:], strict=True)))
            out[place] = data.view(element).reshape(end - begin, *size[1:])
            touched += 1
        self._forget(touched)
        return out.reshape(-1).view(np.uint8)

    def _bytes_of(self, chunk: Chunk, offset: int, length: int) -> Rows:
        file = self._files[chunk.file]
        data = np.empty(length, np.uint8)
        begin = chunk.byte_offset + offset
        for number in range(begin // file.chunk_size, (begin + length - 1) // file.chunk_size + 1):
            at = number * file.chunk_size
            first, last = max(begin, at), min(begin + length, at + file.chunk_size)
            data[first - begin : last - begin] = np.frombuffer(self._proven(file, number), np.uint8)[first - at : last - at]
        return data

    def _proven(self, file: FileEntry, number: int) -> bytearray:
        key = (file.path, number)
        known = self._chunks.pop(key, None)
        self._chunks[key] = known if known is not None else self._read_chunk(file, number)
        self._forget(MAX_REMEMBERED)
        return self._chunks[key]

    def _forget(self, kept: int) -> None:
        while len(self._chunks) > kept:
            self._chunks.popitem(last=False)

    def _read_chunk(self, file: FileEntry, number: int) -> bytearray:
        block = bytearray(min(file.chunk_size, file.size - number * file.chunk_size))
        read_chunk(self._store, self._documents.reference, file, number, memoryview(block))
        return block
