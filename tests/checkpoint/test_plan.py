"""Who writes what: the parts of all ranks make up every tensor exactly, whatever the shapes and however many ranks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.world import shared
from trainer_runtime.checkpoint.documents import find_index_fault
from trainer_runtime.checkpoint.dtypes import DTYPES
from trainer_runtime.checkpoint.image import PAGE_BYTES
from trainer_runtime.checkpoint.staging.pieces import SavePlan
from trainer_runtime.checkpoint.staging.plan import WHOLE_BYTES, Planner, build_plan
from trainer_runtime.contract.manifest import FileEntry, RankIndex
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state.leaves import Kind, Leaf

shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    st.tuples(st.integers(1, 40), st.integers(10_000, 200_000)),
    st.tuples(st.integers(1, 9), st.just(700), st.just(700)),
)
tensors = st.builds(
    lambda shape, dtype: torch.empty((), dtype=dtype).expand(shape), shapes, st.sampled_from([torch.float32, torch.bfloat16, torch.int8])
)


def index_of(plan: SavePlan, rank: int) -> RankIndex:
    files = tuple(FileEntry(file.path, file.size, "", 1, ()) for file in plan.files)
    return RankIndex(rank, files, plan.tensors, ())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(tensors, st.sampled_from(Kind)), max_size=8), st.integers(1, 9), st.sampled_from([300_000, 1 << 30]))
def test_the_parts_of_all_ranks_tile_every_tensor(held: list[tuple[torch.Tensor, Kind]], world_size: int, max_file_bytes: int) -> None:
    leaves = [shared(f"model/{number}", tensor, kind) for number, (tensor, kind) in enumerate(held)]
    plans = [build_plan(leaves, rank, world_size, max_file_bytes) for rank in range(world_size)]

    assert find_index_fault([index_of(plan, rank) for rank, plan in enumerate(plans)], world_size) is None
    assert {entry.name for plan in plans for entry in plan.tensors} == {leaf.name for leaf in leaves}
    for plan in plans:
        for file in plan.files:
            assert len(file.header) % PAGE_BYTES == 0
            assert [piece.begin for piece in file.pieces] == running_sum([piece.nbytes for piece in file.pieces]), "no holes"
            items = [DTYPES[piece.dtype].itemsize for piece in file.pieces]
            assert items == sorted(items, reverse=True), "larger elements first, so that each is aligned"


def running_sum(sizes: list[int]) -> list[int]:
    return [sum(sizes[:end]) for end in range(len(sizes))]


def test_the_parts_are_equal_up_to_one_row() -> None:
    leaves = [shared(f"model/{number}", torch.empty(1).expand(1000, 4096)) for number in range(3)]
    parts = [sum(piece.nbytes for file in build_plan(leaves, rank, 8).files for piece in file.pieces) for rank in range(8)]
    assert max(parts) - min(parts) <= 4096 * 4
    assert sum(parts) == 3 * 1000 * 4096 * 4


def test_a_small_tensor_is_not_cut() -> None:
    rows = WHOLE_BYTES // 4 // 64
    plans = [build_plan([shared("model/w", torch.empty(rows, 64))], rank, 4) for rank in range(4)]
    assert [len(plan.tensors) for plan in plans] == [1, 0, 0, 0]


def test_a_row_larger_than_a_file_gets_a_file_of_its_own() -> None:
    plan = build_plan([shared("model/a", torch.empty(3, 1000)), shared("model/b", torch.empty(10))], 0, 1, max_file_bytes=100)
    assert [len(file.pieces) for file in plan.files] == [1, 1, 1, 1]
    assert math.prod(plan.files[-1].pieces[0].shape) == 10


def test_a_plan_is_made_once_for_a_structure_and_again_for_another() -> None:
    planner = Planner(0, 1)
    first = planner.plan([shared("model/w", torch.zeros(4))])
    assert planner.plan([shared("model/w", torch.ones(4))]) is first
    for changed in (torch.zeros(4, dtype=torch.float64), torch.zeros(2, 2)):
        assert planner.plan([shared("model/w", changed)]) is not first


def test_an_alias_is_listed_and_its_bytes_are_written_once() -> None:
    weight = torch.zeros(8)
    plan = build_plan([shared("model/w", weight), Leaf("model/head", weight, Kind.MODEL, True, alias_of="model/w")], 0, 1)
    assert [(entry.name, entry.alias_of, len(entry.chunks)) for entry in plan.tensors] == [
        ("model/w", None, 1),
        ("model/head", "model/w", 0),
    ]
    assert sum(piece.nbytes for file in plan.files for piece in file.pieces) == weight.nbytes


REFUSED = [
    pytest.param([shared("model/w", torch.zeros(1, dtype=torch.complex128))], "model/w: dtype torch.complex128 cannot", id="complex128"),
    pytest.param([shared("model/w", torch.zeros(2, 2).to_sparse())], "model/w: a Tensor .torch.sparse_coo", id="sparse"),
    pytest.param([shared("model/w", torch.empty(2, device="meta"))], "model/w: a Tensor .*on meta", id="meta"),
    pytest.param([shared("model/w", torch.zeros(1)), shared("model/w", torch.zeros(1))], "model/w: two tensors", id="one name twice"),
    pytest.param([Leaf("a", torch.zeros(1), Kind.MODEL, True, alias_of="b")], "a: is an alias of b, which is not", id="alias of nothing"),
    pytest.param(
        [shared("b", torch.zeros(2)), Leaf("a", torch.zeros(1), Kind.MODEL, True, alias_of="b")],
        "a: .* differs",
        id="alias of another shape",
    ),
]


@pytest.mark.parametrize(("leaves", "message"), REFUSED)
def test_what_cannot_be_saved_is_refused_by_name(leaves: list[Leaf], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_plan(leaves, 0, 1)
