"""What was saved by ranks that held blocks comes back on other ranks, cut in other ways: every element in its place, nothing else read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.world import attempt_on, only, point
from trainer_runtime.checkpoint.documents import find_index_fault, merge_tensors
from trainer_runtime.checkpoint.fingerprint import MODULUS, of_block
from trainer_runtime.checkpoint.reading.filling import NotCovered, find_needs
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.staging.plan import Planner, build_plan
from trainer_runtime.contract.manifest import CHUNK_BYTES, FileEntry, RankIndex
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.leaves import Kind, Leaf, Shard, Snapshot
from trainer_runtime.store.posix import PosixStore

NAME = "model/w"


def blocks(whole: torch.Tensor, grid: Sequence[int], replicas: int = 1) -> list[Leaf]:
    """Cut ``whole`` along each axis into so many parts, as torch.chunk does; each block lies on so many ranks, one after the other."""
    cells: list[tuple[tuple[int, int], ...]] = [()]
    for extent, parts in zip(whole.shape, grid, strict=True):
        size = max(1, math.ceil(extent / parts))
        ranges = [(min(part * size, extent), min((part + 1) * size, extent)) for part in range(parts)]
        cells = [(*cell, bounds) for cell in cells for bounds in ranges]
    leaves = []
    for number, cell in enumerate(cells):
        ranks = tuple(range(number * replicas, (number + 1) * replicas))
        block = whole[tuple(slice(*bounds) for bounds in cell)]
        shard = Shard(tuple(whole.shape), tuple(first for first, _ in cell), ranks)
        leaves += [Leaf(NAME, block.clone(), Kind.MODEL, False, requires_grad=True, shard=shard) for _ in ranks]
    return leaves


def empty(leaf: Leaf) -> Leaf:
    return Leaf(leaf.name, torch.zeros_like(leaf.tensor), leaf.kind, leaf.replicated, leaf.requires_grad, leaf.alias_of, leaf.shard)


def counted(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


LAYOUTS = [
    pytest.param((8, 6), (4, 1), 1, (2, 1), 1, id="rows on 4 -> rows on 2"),
    pytest.param((8, 6), (4, 1), 1, (1, 4), 1, id="rows -> columns"),
    pytest.param((7, 5), (3, 1), 1, (2, 1), 1, id="7 rows on 3 -> on 2"),
    pytest.param((3, 5), (4, 1), 1, (1, 1), 1, id="one of 4 ranks holds nothing -> whole"),
    pytest.param((7, 9), (2, 2), 1, (3, 1), 1, id="a mesh of two dimensions -> rows"),
    pytest.param((7, 9), (2, 1), 2, (1, 3), 1, id="replicated shards -> columns"),
    pytest.param((5, 4, 6), (2, 1, 2), 1, (1, 3, 1), 2, id="three axes -> replicated shards along another"),
    pytest.param((11,), (4,), 1, (3,), 1, id="one axis"),
    pytest.param((0, 3), (2, 1), 1, (3, 1), 1, id="no elements at all"),
]


@pytest.mark.parametrize(("shape", "grid", "replicas", "new_grid", "new_replicas"), LAYOUTS)
def test_blocks_come_back_in_another_layout(
    store: PosixStore, shape: tuple[int, ...], grid: tuple[int, ...], replicas: int, new_grid: tuple[int, ...], new_replicas: int
) -> None:
    whole = counted(*shape)
    saved = blocks(whole, grid, replicas)
    with attempt_on(store, ranks=len(saved)) as attempt:
        record = attempt.saved(1, [only(leaf) for leaf in saved])
    checkpoint = open_checkpoint(store, point(record))
    wanted = blocks(whole, new_grid, new_replicas)
    sums = []
    for rank, leaf in enumerate(wanted):
        live = empty(leaf)
        checkpoint.fill([live], rank)
        assert torch.equal(live.tensor, leaf.tensor)
        sums.append(checkpoint.fingerprints(rank, len(wanted)))
    assert checkpoint.find_misplaced(sums) == []


def test_the_same_state_has_the_same_fingerprint_however_it_is_cut(store: PosixStore, tmp_path: Path) -> None:
    whole = counted(7, 9)
    found = set()
    for number, (grid, replicas) in enumerate([((1, 1), 1), ((2, 2), 1), ((3, 1), 1), ((1, 2), 2)]):
        (tmp_path / str(number)).mkdir()
        other = PosixStore(tmp_path / str(number))
        saved = blocks(whole, grid, replicas)
        with attempt_on(other, ranks=len(saved)) as attempt:
            record = attempt.saved(1, [only(leaf) for leaf in saved])
        found.add(open_checkpoint(other, point(record)).manifest.fingerprint)
    assert len(found) == 1
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(*blocks(whole.flip(0), (1, 1)))])
    assert open_checkpoint(store, point(record)).manifest.fingerprint not in found


def test_a_misplaced_row_shows_after_a_reshard(store: PosixStore) -> None:
    whole = counted(6, 4)
    with attempt_on(store, ranks=3) as attempt:
        record = attempt.saved(1, [only(leaf) for leaf in blocks(whole, (3, 1))])
    checkpoint = open_checkpoint(store, point(record))
    (live,) = blocks(torch.zeros(6, 4), (1, 1))
    checkpoint.fill([live], 0)
    live.tensor[[0, 1]] = live.tensor[[1, 0]].clone()
    assert checkpoint.find_misplaced([checkpoint.fingerprints(0, 1)]) == [NAME]


shapes = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60, deadline=None)
@given(shapes, st.data())
def test_the_plans_of_all_ranks_tile_every_sharded_tensor(shape: tuple[int, ...], data: st.DataObject) -> None:
    grid = data.draw(st.tuples(*(st.integers(1, 3) for _ in shape)))
    held = blocks(torch.zeros(shape), grid, data.draw(st.integers(1, 3)))
    plans = [build_plan([leaf], rank, len(held)) for rank, leaf in enumerate(held)]
    indexes = [
        RankIndex(rank, tuple(FileEntry(file.path, file.size, "", 1, ()) for file in plan.files), plan.tensors, ())
        for rank, plan in enumerate(plans)
    ]
    assert find_index_fault(indexes, len(held)) is None
    assert len({plan.structure_sha256 for plan in plans}) == 1


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from(["F32", "BF16", "I8", "F64", "C64"]), st.data())
def test_the_fingerprints_of_any_blocks_add_up_to_the_tensors_own(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    item = {"F32": 4, "BF16": 2, "I8": 1, "F64": 8, "C64": 8}[dtype]
    whole = torch.randint(0, 256, (*shape, item), dtype=torch.uint8)
    grid = data.draw(st.tuples(*(st.integers(1, 3) for _ in shape)))
    parts = [
        of_block(dtype, shard.offset[:-1], tuple(leaf.tensor.shape[:-1]), leaf.tensor.numpy().tobytes())
        for leaf in blocks(whole, (*grid, 1))
        if (shard := leaf.shard) is not None and leaf.tensor.numel()
    ]
    assert sum(parts) % MODULUS == of_block(dtype, (0,) * len(shape), shape, whole.numpy().tobytes())


def test_only_the_chunks_that_hold_needed_rows_are_read(tmp_path: Path) -> None:
    class Watching(PosixStore):
        chunks: set[tuple[str, int]] = set()

        def read_range(self, path: str, offset: int, into: memoryview) -> int:
            self.chunks.add((path, offset // CHUNK_BYTES))
            return super().read_range(path, offset, into)

    rows = 4 * CHUNK_BYTES // 1024 // 4
    whole = torch.ones(rows, 1024)
    store = Watching(tmp_path)
    with attempt_on(store) as attempt:
        record = attempt.saved(1, [only(*blocks(whole, (1, 1)))])
    checkpoint = open_checkpoint(store, point(record))
    store.chunks.clear()
    last = empty(blocks(whole, (4, 1))[3])
    checkpoint.fill([last], 0)
    assert {number for _, number in store.chunks} == {3, 4}
    assert bool(last.tensor.all())


def test_a_shard_that_is_not_covered_is_damage() -> None:
    saved = blocks(counted(4, 2), (2, 1))
    plan = build_plan(saved[:1], 0, 2)
    merged = merge_tensors([RankIndex(0, (), plan.tensors, ())])
    with pytest.raises(NotCovered, match="model/w: the checkpoint holds 4 of the 8 elements"):
        find_needs(
            blocks(torch.zeros(4, 2), (1, 1)), merged, {file.path: FileEntry(file.path, file.size, "", 1, ()) for file in plan.files}
        )


def test_replicas_that_disagree_refuse_the_save_and_name_the_odd_rank(store: PosixStore) -> None:
    whole = counted(8, 4)
    held = blocks(whole, (1, 1), 3)
    held[2].tensor[5, 1] += 1
    with attempt_on(store, ranks=3) as attempt:
        results = attempt.save(1, [only(leaf) for leaf in held])
    for result in results:
        assert "the replicas on ranks 0,1,2 hold different values: rank 2 differs from the others" in str(result.error)
    assert store.list("run/steps") == ()


def test_a_shard_under_a_ranks_own_name_is_refused() -> None:
    (leaf,) = blocks(counted(2, 2), (1, 1))
    wrong = Leaf("rank00000/w", leaf.tensor, Kind.MODEL, False, shard=leaf.shard)
    with pytest.raises(ConfigurationError, match="said to be a shard of what all ranks hold together"):
        build_plan([wrong], 0, 1)


def test_a_plan_is_made_anew_when_placements_change() -> None:
    planner = Planner(0, 2)
    rows = blocks(counted(4, 4), (2, 1))[:1]
    first = planner.plan(rows)
    assert planner.plan(blocks(torch.ones(4, 4), (2, 1))[:1]) is first
    moved = Leaf(NAME, rows[0].tensor, Kind.MODEL, False, requires_grad=True, shard=Shard((4, 4), (2, 0), (0,)))
    assert planner.plan([moved]) is not first


def test_an_alias_of_a_shard_is_listed_once(store: PosixStore) -> None:
    held = blocks(counted(4, 4), (2, 1))
    snapshots = []
    for leaf in held:
        tied = Leaf("model/tied", leaf.tensor, Kind.MODEL, False, True, NAME, leaf.shard)
        snapshots.append(Snapshot((leaf, tied)))
    with attempt_on(store, ranks=2) as attempt:
        record = attempt.saved(1, snapshots)
    assert open_checkpoint(store, point(record)).tensors["model/tied"].alias_of == NAME
