"""Staging from a GPU. Needs one: deselected where there is none."""

from __future__ import annotations

import pytest
import torch

from trainer_runtime.checkpoint.device import DeviceCopier
from trainer_runtime.checkpoint.plan import Planner, build_plan
from trainer_runtime.checkpoint.stage import Filled, Stage
from trainer_runtime.checkpoint.windows import in_windows
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Kind, Leaf

pytestmark = pytest.mark.cuda

ELEMENTS = 64 * 1024 * 1024


def parameter() -> torch.Tensor:
    return torch.nn.Parameter(torch.ones(ELEMENTS, device="cuda"))


def filled(stage: Stage, tensor: torch.Tensor) -> tuple[Filled, torch.Tensor]:
    """Begin to stage, and return where the bytes will be."""
    leaf = Leaf("model/w", tensor, Kind.MODEL, True, requires_grad=True)
    plan = Planner(0, 1).plan([leaf])
    done = stage.fill(plan, [leaf])
    (file,) = plan.files
    begin = file.stage_offset + len(file.header)
    image = stage.arena.generation(done.generation)[begin : begin + tensor.nbytes]
    return done, torch.frombuffer(image, dtype=torch.float32)


def test_an_optimizer_step_waits_for_the_copy() -> None:
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones_like(weight)
    done, image = filled(Stage(), weight)
    assert done.pending is not None
    optimizer.step()
    done.pending.wait()
    assert bool((image == 1.0).all())
    assert bool((weight == 0.0).all())


def test_a_change_without_an_optimizer_refuses_the_save() -> None:
    weight = parameter()
    done, _image = filled(Stage(), weight)
    assert done.pending is not None
    with torch.no_grad():
        weight.add_(1.0)
    with pytest.raises(SaveFailed, match="model/w: was changed while it was staged"):
        done.pending.wait()


def test_each_window_is_whole_when_its_own_copies_are_waited_for() -> None:
    weights = [torch.full((ELEMENTS,), float(number), device="cuda") for number in range(3)]
    leaves = [Leaf(f"model/{number}", weight, Kind.MODEL, True, requires_grad=True) for number, weight in enumerate(weights)]
    plan = in_windows(build_plan(leaves, 0, 1, weights[0].nbytes), weights[0].nbytes + 4096)
    assert plan.windows == len(plan.files) == 3
    stage = Stage()
    for number, file in enumerate(plan.files):
        done = stage.fill(plan, leaves, number)
        assert done.pending is not None
        done.pending.wait()
        begin = file.stage_offset + len(file.header)
        image = stage.arena.generation(done.generation)[begin : begin + weights[number].nbytes]
        assert bool((torch.frombuffer(image, dtype=torch.float32) == float(number)).all())


def test_the_stage_is_pinned() -> None:
    stage = Stage()
    filled(stage, parameter())
    assert isinstance(stage._device, DeviceCopier)
    assert torch.frombuffer(stage.arena.memory, dtype=torch.uint8).is_pinned()
