"""Staging takes what the tensors hold at this moment, whatever was done to them since the last time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoint.world import shared
from trainer_runtime.checkpoint.staging.plan import Planner
from trainer_runtime.checkpoint.staging.scatter import PARTS_PER_CALL, Scattered
from trainer_runtime.checkpoint.staging.stage import LEAST_RUN, SMALL_BYTES, Stage
from trainer_runtime.errors import ConfigurationError, SaveFailed
from trainer_runtime.state.leaves import Leaf


def tensors() -> list[torch.Tensor]:
    """Many small ones of three types, an empty one, numbers, and some that are too large to be gathered."""
    small = [torch.arange(12.0).reshape(3, 4) + number for number in range(40)]
    counts = [torch.tensor(number) for number in range(20)]
    waves = [torch.full((2,), complex(number, 1)) for number in range(20)]
    return [*small, *counts, *waves, torch.zeros(0, 3), torch.arange(float(SMALL_BYTES)), torch.arange(float(SMALL_BYTES)) + 1]


def leaves_of(values: list[torch.Tensor]) -> list[Leaf]:
    return [shared(f"model/{number:03d}", value) for number, value in enumerate(values)]


def staged(stage: Stage, planner: Planner, leaves: list[Leaf]) -> dict[str, torch.Tensor]:
    """Plan and fill, as every save does, and read every tensor back from the generation that was filled."""
    plan = planner.plan(leaves)
    filled = stage.fill(plan, leaves).generation
    generation = stage.arena.generation(filled)
    found = {}
    for file in plan.files:
        for piece in file.pieces:
            begin = file.stage_offset + len(file.header) + piece.begin
            live = leaves[piece.leaf].tensor
            found[piece.name] = (
                torch.frombuffer(bytearray(generation[begin : begin + piece.nbytes]), dtype=live.dtype).view(live.shape)
                if piece.nbytes
                else torch.zeros_like(live)
            )
    return found


def change_in_place(values: list[torch.Tensor]) -> None:
    for value in values:
        value.add_(1)


def put_other_memory(values: list[torch.Tensor]) -> None:
    for value in values:
        value.data = value.data.clone().add_(1)


def transpose_in_place(values: list[torch.Tensor]) -> None:
    values[5].data = torch.arange(12.0).reshape(4, 3).t()


def conjugate_in_place(values: list[torch.Tensor]) -> None:
    for place, value in enumerate(values):
        values[place] = value.conj()


def negate_in_place(values: list[torch.Tensor]) -> None:
    for place, value in enumerate(values):
        values[place] = value._neg_view()


def point_into_one_buffer(values: list[torch.Tensor]) -> None:
    buffer = torch.arange(1_000_000.0)
    for number, value in enumerate(values[:40]):
        value.data = buffer[number * 12 : number * 12 + 12].view(3, 4)


@pytest.mark.parametrize(
    "change", [change_in_place, put_other_memory, transpose_in_place, conjugate_in_place, negate_in_place, point_into_one_buffer]
)
def test_what_is_staged_is_what_the_tensors_hold_now(change: Callable[[list[torch.Tensor]], None]) -> None:
    values = tensors()
    leaves = leaves_of(values)
    stage, planner = Stage(), Planner(0, 1)
    for _ in range(3):  # both generations, and again
        found = staged(stage, planner, leaves)
        assert all(torch.equal(found[leaf.name], leaf.tensor) for leaf in leaves)
        change(values)
        leaves = leaves_of(values)


@pytest.mark.parametrize("is_torchs", [True, False], ids=["torch's check of forms", "our own"])
def test_what_is_staged_in_inference_mode_for_the_first_time_is_staged_outside_of_it_too(
    is_torchs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_torchs:
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    values = tensors()
    leaves = leaves_of(values)
    stage, planner = Stage(), Planner(0, 1)
    for is_inside in (True, False, True, False):
        with torch.inference_mode(is_inside):
            found = staged(stage, planner, leaves)
        assert all(torch.equal(found[leaf.name], leaf.tensor) for leaf in leaves)
        change_in_place(values)


def test_many_tensors_without_elements_and_nothing_else_can_be_staged() -> None:
    leaves = leaves_of([torch.zeros(0, 3)] * LEAST_RUN)
    stage = Stage()
    assert stage.fill(Planner(0, 1).plan(leaves), leaves).generation == 0


def test_generations_take_turns_so_that_the_last_one_stays_whole() -> None:
    leaves = leaves_of(tensors())
    stage = Stage()
    plan = Planner(0, 1).plan(leaves)
    first = stage.fill(plan, leaves).generation
    kept = bytes(stage.arena.generation(first))
    for leaf in leaves:
        leaf.tensor.add_(1)
    second = stage.fill(plan, leaves).generation
    assert (first, second) == (0, 1)
    assert bytes(stage.arena.generation(first)) == kept
    assert bytes(stage.arena.generation(second)) != kept
    assert stage.fill(plan, leaves).generation == first


@pytest.mark.parametrize("position", [3, -1], ids=["a small one", "a large one"])
def test_a_tensor_whose_memory_was_freed_is_refused_by_name(position: int) -> None:
    values = tensors()
    leaves = leaves_of(values)
    stage = Stage()
    plan = Planner(0, 1).plan(leaves)
    stage.fill(plan, leaves)
    values[position].untyped_storage().resize_(0)
    with pytest.raises(ConfigurationError, match=f"{leaves[position].name}: its memory was freed"):
        stage.fill(plan, leaves)


def test_memory_that_is_gone_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    with (tmp_path / "stage").open("wb") as file, pytest.raises(SaveFailed, match="Bad address"):
        Scattered([1], [64]).write(file.fileno(), 0)


def test_more_parts_than_the_kernel_takes_at_once_arrive_in_order(tmp_path: Path) -> None:
    values = torch.arange(3 * PARTS_PER_CALL, dtype=torch.int32)
    with (tmp_path / "stage").open("w+b") as file:
        Scattered([value.data_ptr() for value in values], [4] * len(values)).write(file.fileno(), 8)
        file.seek(8)
        assert torch.equal(torch.frombuffer(bytearray(file.read()), dtype=torch.int32), values)
