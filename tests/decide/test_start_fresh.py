"""``startFresh`` acts once per job: what an attempt that began at step 0 has saved is gone on from, however the operator learned of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.decide.test_recovery import relaunch, report
from tests.decide.world import World, record, spec_of
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.exit_report import ExitReport, Outcome, VerifiedCheckpoint

OLDER = (record(900, 0), record(800, 0))
"""What another job has left in the run."""


def verified(step: int) -> VerifiedCheckpoint:
    """A checkpoint as a report names it."""
    told = record(step, 1)
    return VerifiedCheckpoint(told.step, told.uri, told.manifest_sha256)


def in_a_beat(world: World) -> None:
    """The beats of the training gang arrive."""
    world.train(500)
    world.settle()
    world.records.append(record(500, 1))
    world.settle()
    world.fail(1, step=501)


def in_the_report_of_a_failed_worker(world: World) -> None:
    """Only the word of the worker that failed arrives."""
    world.fail(1, step=501, verified=verified(500))


def in_the_report_of_a_stopped_worker(world: World) -> None:
    """Only the word of a worker that was stopped for another's failure arrives."""
    world.exit(1, 139)
    world.settle()
    report(world, 0, Outcome.PREEMPTED_SAVED, 75, verified=verified(500))


def in_the_report_of_a_drained_worker(world: World) -> None:
    """The pod was taken away after a save."""
    report(world, 2, Outcome.PREEMPTED_SAVED, 75, verified=verified(500))


def in_a_last_beat(world: World) -> None:
    """Plain torchrun has no termination message: the report comes in a beat."""
    world.beat(1, Phase.STOPPED, failure=ExitReport(1, 1, Outcome.FAILED, 1, verified=verified(500)))


def fresh_world() -> World:
    """A job that begins at step 0 beside older checkpoints, and of which no beat arrives."""
    world = World(spec={**spec_of(), "checkpoint": {"store": "file:///checkpoints", "startFresh": True}})
    world.records += OLDER
    world.settle()
    world.start()
    world.settle()
    assert world.status.starts_fresh
    return world


@pytest.mark.parametrize(
    "learn",
    [
        in_a_beat,
        in_the_report_of_a_failed_worker,
        in_the_report_of_a_stopped_worker,
        in_the_report_of_a_drained_worker,
        in_a_last_beat,
    ],
)
def test_the_next_attempt_goes_on_from_what_the_fresh_one_saved(learn: Callable[[World], None]) -> None:
    world = fresh_world()
    learn(world)
    relaunch(world)
    world.after(700).settle()
    assert (world.status.attempt, world.status.starts_fresh) == (2, False)
    assert world.status.resume_point is not None
    assert (world.status.resume_point.step, world.status.resume_point.attempt) == (500, 1)
    world.launch(501)
    assert {(known.step, known.attempt) for known in world.status.checkpoints if known.abandoned} == {(900, 0), (800, 0)}


def test_an_attempt_that_saved_nothing_leaves_the_wish_to_the_next_one() -> None:
    world = fresh_world()
    world.exit(1, 139)
    relaunch(world)
    assert (world.status.attempt, world.status.starts_fresh, world.status.resume_point) == (2, True, None)
