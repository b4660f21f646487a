"""Do chunks make up a tensor: exactly, with a hole, overlapping, outside, of the wrong length."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_runtime.checkpoint.tiling import find_tiling_fault
from trainer_runtime.contract.manifest import Chunk, TensorEntry


def chunk(offset: tuple[int, ...], size: tuple[int, ...], nbytes: int | None = None) -> Chunk:
    return Chunk(offset, size, "data/f", 4096, math.prod(size) * 4 if nbytes is None else nbytes)


def entry(shape: tuple[int, ...], *chunks: Chunk, dtype: str = "F32", alias_of: str | None = None) -> TensorEntry:
    return TensorEntry("w", dtype, shape, chunks, alias_of=alias_of)


CASES = [
    pytest.param(entry((4, 6), chunk((0, 0), (4, 6))), None, id="one chunk"),
    pytest.param(entry((4, 6), chunk((2, 0), (2, 6)), chunk((0, 0), (2, 6))), None, id="rows, in any order"),
    pytest.param(entry((4, 6), chunk((0, 0), (4, 3)), chunk((0, 3), (4, 3))), None, id="columns"),
    pytest.param(entry((), chunk((), ())), None, id="a number"),
    pytest.param(entry((3, 0), chunk((0, 0), (3, 0))), None, id="empty"),
    pytest.param(entry((2,), alias_of="v"), None, id="an alias"),
    pytest.param(entry((3, 0)), "w: no bytes at all", id="empty and lost"),
    pytest.param(entry((4, 6), chunk((0, 0), (3, 6))), "w: the chunks hold 18 of 24 elements", id="a hole"),
    pytest.param(entry((4, 6), chunk((0, 0), (3, 6)), chunk((2, 0), (2, 6))), "overlap", id="two write a row"),
    pytest.param(entry((2, 2), chunk((0, 0), (1, 2)), chunk((0, 0), (1, 2))), "overlap", id="the same chunk twice, right volume"),
    pytest.param(entry((), chunk((), ()), chunk((), ())), "overlap", id="a number twice"),
    pytest.param(entry((4,), chunk((2,), (3,))), "outside of shape", id="too far"),
    pytest.param(entry((4,), chunk((-1,), (4,))), "outside of shape", id="negative"),
    pytest.param(entry((4,), chunk((0, 0), (2, 2))), "has not the rank", id="another rank"),
    pytest.param(entry((4,), chunk((0,), (4,), nbytes=15)), "has 15 bytes, its shape needs 16", id="wrong length"),
    pytest.param(entry((4,), chunk((0,), (4,)), dtype="F31"), "unknown dtype 'F31'", id="no such dtype"),
    pytest.param(entry((4,), chunk((0,), (4,)), alias_of="v"), "has bytes of its own", id="an alias with bytes"),
]


@pytest.mark.parametrize(("tensor", "fault"), CASES)
def test_the_fault_of_a_tiling_is_named(tensor: TensorEntry, fault: str | None) -> None:
    found = find_tiling_fault(tensor)
    assert found is None if fault is None else fault in (found or "")


cuts = st.lists(st.integers(1, 11), max_size=4, unique=True).map(sorted)


@given(cuts, cuts, st.data())
def test_any_grid_tiles_and_any_missing_or_repeated_cell_is_noticed(rows: list[int], columns: list[int], data: st.DataObject) -> None:
    cells = [
        chunk((top, left), (bottom - top, right - left))
        for top, bottom in zip([0, *rows], [*rows, 12], strict=True)
        for left, right in zip([0, *columns], [*columns, 12], strict=True)
    ]
    shuffled = data.draw(st.permutations(cells))
    assert find_tiling_fault(entry((12, 12), *shuffled)) is None
    assert find_tiling_fault(entry((12, 12), *shuffled[1:])) is not None
    assert "overlap" in (find_tiling_fault(entry((12, 12), *shuffled, shuffled[0])) or "")
