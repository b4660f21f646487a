"""However a tensor was cut over files, its bytes come out whole, in order, and proven."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.world import RUN
from trainer_runtime.checkpoint.documents import Documents
from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.reading.chunks import Reader
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Chunk, FileEntry, JobIdentity, Manifest, RankIndex, TensorEntry
from trainer_runtime.errors import CheckpointDamaged
from trainer_runtime.store.posix import PosixStore

CHUNK_BYTES = 64
"""Small, so that pieces cross the borders of verification chunks."""
REFERENCE = Reference("", RUN, StepName(1, 1), "")


def written(store: PosixStore, values: npt.NDArray[np.int16], cuts: list[list[int]], gap: int = 7) -> Reader:
    """Write every box of the grid ``cuts`` to a file of its own, ``gap`` bytes behind its start, and return a reader."""
    files, chunks = [], []
    for number, box in enumerate(itertools.product(*(itertools.pairwise(edges) for edges in cuts))):
        piece = values[tuple(slice(begin, end) for begin, end in box)]
        data = bytes(gap) + np.ascontiguousarray(piece).tobytes()
        path = f"data/{number:05d}-model-0.safetensors"
        store.create(f"{REFERENCE.directory}/{path}", data)
        digests = tuple(xxhash.xxh3_128_hexdigest(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES))
        files.append(FileEntry(path, len(data), "", CHUNK_BYTES, digests))
        offset, size = tuple(begin for begin, _ in box), tuple(end - begin for begin, end in box)
        chunks.append(Chunk(offset, size, path, gap, len(data) - gap))
    entry = TensorEntry("model/w", "I16", values.shape, tuple(chunks))
    manifest = Manifest(RUN, 1, 1, 0, JobIdentity(), 1, (), 0)
    return Reader(store, Documents(REFERENCE, manifest, (RankIndex(0, tuple(files), (entry,), ()),), {"model/w": entry}))


@st.composite
def cut_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[int]]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=3)))
    inner = [draw(st.sets(st.integers(1, extent), max_size=3)) - {extent} for extent in shape]
    return shape, [[0, *sorted(edges), extent] for edges, extent in zip(inner, shape, strict=True)]


@settings(max_examples=60, deadline=None)
@given(cut_shapes(), st.integers(1, 200))
def test_a_tensor_that_was_cut_in_any_way_comes_out_whole(cut: tuple[tuple[int, ...], list[list[int]]], batch_bytes: int) -> None:
    shape, cuts = cut
    values = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    with tempfile.TemporaryDirectory() as root:
        batches = list(written(PosixStore(Path(root)), values, cuts).batches("model/w", batch_bytes))
    assert b"".join(batch.tobytes() for batch in batches) == values.tobytes()
    row_bytes = values.nbytes // (shape[0] if shape else 1)
    assert max(len(batch) for batch in batches) <= max(batch_bytes, row_bytes)


def test_a_tensor_without_elements_has_no_bytes(store: PosixStore) -> None:
    values = np.zeros((0, 4), np.int16)
    assert b"".join(batch.tobytes() for batch in written(store, values, [[0, 0], [0, 4]]).batches("model/w")) == b""


def test_a_byte_that_changed_is_never_given_out(store: PosixStore) -> None:
    values = np.arange(200, dtype=np.int16)
    reader = written(store, values, [[0, 100, 200]])
    path = store._root / REFERENCE.directory / "data" / "00001-model-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CheckpointDamaged, match=r"00001-model-0.safetensors: chunk 3"):
        list(reader.batches("model/w"))


def test_the_sizes_of_elements_are_torchs() -> None:
    assert {word: dtype.itemsize for word, dtype in DTYPES.items()} == ITEM_BYTES
