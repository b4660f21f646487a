"""An error that comes again is the program's own only when no progress lies between: weeks of verified steps are worth another try."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.decide.world import World, record

Fault = Callable[[World], None]

FAULTS: list[tuple[str, Fault, int]] = [
    ("host_oom", lambda world: world.exit(1, 137, reason="OOMKilled"), 2),
    ("segfault_without_a_step", lambda world: world.exit(1, 139), 2),
    ("cuda_oom", lambda world: world.fail(1, "torch.OutOfMemoryError: CUDA out of memory", step=None), 2),
    ("device_fault", lambda world: world.fail(1, "AcceleratorError: CUDA error: an illegal memory access was encountered", step=None), 2),
]
TABLE = pytest.mark.parametrize(("fault", "times"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])


def round_(world: World, fault: Fault, verified_step: int | None) -> None:
    """Fail once, and come back to a gang that trains, perhaps after a new verified step."""
    if verified_step is not None:
        world.records.append(record(verified_step, world.status.attempt))
        world.settle()
    world.beats.clear()
    fault(world)
    world.settle()
    world.end_deleted()
    world.settle()
    if world.phase == "Failed":
        return
    world.after(700).settle()
    world.start()
    world.train((verified_step or 0) + 1)
    world.settle()


@TABLE
def test_the_same_error_with_progress_between_is_a_new_story_each_time(fault: Fault, times: int) -> None:
    world = World(spec=World().spec | {"recovery": {"budgets": {"application": 100}}}).launch()
    for number in range(1, times + 3):
        round_(world, fault, number * 1000)
        assert world.phase == "Running", world.status.ending


@TABLE
def test_the_same_error_without_progress_ends_the_job(fault: Fault, times: int) -> None:
    world = World(spec=World().spec | {"recovery": {"budgets": {"application": 100}, "noProgressLimit": 100}}).launch()
    for _ in range(times):
        round_(world, fault, None)
    assert world.phase == "Failed"
