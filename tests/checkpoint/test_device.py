"""Staging from a GPU. Most of it needs one: deselected where there is none. When a save is refused is decided on the host."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.checkpoint.world import WAIT_SECONDS
from trainer_runtime.checkpoint.staging.device import DeviceCopier, Pending, Transfer
from trainer_runtime.checkpoint.staging.plan import Planner, build_plan
from trainer_runtime.checkpoint.staging.stage import Filled, Stage
from trainer_runtime.checkpoint.staging.windows import in_windows
from trainer_runtime.errors import SaveFailed
from trainer_runtime.state.leaves import Kind, Leaf

needs_gpu = pytest.mark.cuda

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


@needs_gpu
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


@needs_gpu
def test_a_change_without_an_optimizer_refuses_the_save() -> None:
    weight = parameter()
    done, _image = filled(Stage(), weight)
    assert done.pending is not None
    with torch.no_grad():
        weight.add_(1.0)
    with pytest.raises(SaveFailed, match="model/w: was changed while it was staged"):
        done.pending.wait()


@needs_gpu
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


@needs_gpu
def test_the_stage_is_pinned() -> None:
    stage = Stage()
    filled(stage, parameter())
    assert isinstance(stage._device, DeviceCopier)
    assert torch.frombuffer(stage.arena.memory, dtype=torch.uint8).is_pinned()


@needs_gpu
def test_the_memory_of_a_stage_is_given_back_when_its_copies_have_ended() -> None:
    stage = Stage()
    done, _image = filled(stage, parameter())
    assert done.pending is not None
    done.pending.wait()
    stage.release()
    assert stage._arena is None


class Copying:
    """The end of a copy that a GPU makes beside training, as the driver's events tell it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.is_awaited = threading.Event()
        self.is_fenced = False

    def wait(self) -> None:
        self.is_fenced = True

    def query(self) -> bool:
        return self.ended.is_set()

    def synchronize(self) -> None:
        self.is_awaited.set()
        assert self.ended.wait(WAIT_SECONDS)


def pending_copy(tensor: Any) -> tuple[Pending, Copying]:
    copying: Any = Copying()
    leaf = Leaf("model/w", torch.ones(1), Kind.MODEL, True, requires_grad=True)
    return Pending([copying], [Transfer(leaf, tensor, torch.empty(1))]), copying


def change(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1.0)


def is_refused(pending: Pending) -> bool:
    try:
        pending.wait()
    except SaveFailed as error:
        assert "model/w: was changed while it was staged" in str(error)
        return True
    return False


WHEN = [
    pytest.param("fence", False, id="an optimizer's step"),
    pytest.param("fence change", False, id="a step, then the script"),
    pytest.param("fence change fence change", False, id="two steps"),
    pytest.param("", False, id="nothing"),
    pytest.param("change", True, id="the script"),
    pytest.param("change fence", True, id="the script, then a step"),
    pytest.param("change fence change", True, id="the script before and after a step"),
]


@pytest.mark.parametrize(("acts", "refused"), WHEN)
@pytest.mark.parametrize("is_awaited", [False, True], ids=["before anybody waits", "while one waits"])
def test_a_save_is_refused_when_something_changed_before_the_first_fence(acts: str, refused: bool, is_awaited: bool) -> None:
    weight = torch.ones(4)
    pending, copying = pending_copy(weight)
    ends: list[bool] = []
    waiting = threading.Thread(target=lambda: ends.append(is_refused(pending)))
    if is_awaited:
        waiting.start()
        assert copying.is_awaited.wait(WAIT_SECONDS)
    for act in acts.split():
        if act == "fence":
            pending.fence()
        else:
            change(weight)
    copying.ended.set()
    if not is_awaited:
        waiting.start()
    waiting.join(WAIT_SECONDS)
    assert ends == [refused]
    assert copying.is_fenced == ("fence" in acts)


def test_a_step_while_the_versions_are_compared_refuses_nothing() -> None:
    class Stepping:
        """A parameter that another thread's step changes at the very moment in which its version is asked for."""

        def __init__(self) -> None:
            self.version = self.looks = 0

        @property
        def _version(self) -> int:
            self.looks += 1
            if self.looks == 2:  # the first one is the copy's
                stepping.start()
                stepping.join(0.2)  # it ends at once where nothing holds it up
            return self.version

    def step() -> None:
        pending.fence()
        parameter.version += 1

    parameter = Stepping()
    stepping = threading.Thread(target=step)
    pending, copying = pending_copy(parameter)
    copying.ended.set()
    pending.wait()
    stepping.join(WAIT_SECONDS)
    assert parameter.version == 1


def test_what_changes_after_the_copy_was_waited_for_refuses_nothing() -> None:
    weight = torch.ones(4)
    pending, copying = pending_copy(weight)
    copying.ended.set()
    pending.wait()
    change(weight)
    pending.fence()
    pending.wait()


class Device:
    """A GPU that copies into a stage, as the stage asks it."""

    def __init__(self, is_idle: bool) -> None:
        self._is_idle = is_idle

    def copy(self, _transfers: Any) -> None:
        """Take the copies."""

    def is_idle(self) -> bool:
        return self._is_idle


@pytest.mark.parametrize("is_idle", [False, True], ids=["a GPU that still copies", "one that has ended"])
def test_a_stage_keeps_its_memory_while_a_gpu_copies_into_it(is_idle: bool) -> None:
    stage = Stage()
    leaf = Leaf("model/w", torch.ones(4), Kind.MODEL, True)
    stage.fill(Planner(0, 1).plan([leaf]), [leaf])
    device: Any = Device(is_idle)
    stage._device = device
    stage.release()
    assert (stage._arena is None) is is_idle


def test_a_copy_has_ended_when_the_driver_says_so() -> None:
    pending, copying = pending_copy(torch.ones(4))
    assert not pending.has_ended()
    copying.ended.set()
    assert pending.has_ended()


def test_a_driver_that_has_failed_counts_as_one_that_still_copies() -> None:
    class Failed(Copying):
        def query(self) -> bool:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    copier = DeviceCopier.__new__(DeviceCopier)  # one of its own would pin memory, which takes a GPU
    event: Any = Failed()
    copier._pending = Pending([event], [])
    assert not copier.is_idle()
    copier._pending = None
    assert copier.is_idle()
