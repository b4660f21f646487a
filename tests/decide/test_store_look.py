"""Where the operator may read the store, a resume point is chosen from what lies there; a store that does not answer holds nobody up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtj_operator.decide.launch import awaits_resume_point
from rtj_operator.decide.observation import StoreView
from tests.decide.world import World, record, spec_of

AWAITED = StoreView(is_awaited=True)


def stopped(world: World) -> World:
    """Let the present gang fail and end, up to the moment before the next launch."""
    world.fail(1, step=7)
    world.settle()
    world.end_deleted()
    return world


def test_a_launch_waits_for_the_look_and_then_begins_with_what_it_found() -> None:
    world = World(look=AWAITED)
    plan = world.settle()
    assert (world.status.attempt, plan.actions) == (0, ())
    assert plan.look_again_at is not None
    world.look = StoreView(found=(record(9, 2), record(5, 1)))
    world.settle()
    point = world.status.resume_point
    assert point is not None and (world.status.attempt, point.step, point.attempt) == (1, 9, 2)


def test_a_checkpoint_that_no_beat_told_of_is_found_in_the_store() -> None:
    world = World().launch()
    world.records.append(record(5, 1))
    world.settle()
    world.look = AWAITED
    stopped(world).after(60).settle()
    assert world.status.attempt == 1
    world.look = StoreView(found=(record(8, 1),))
    world.settle()
    point = world.status.resume_point
    assert point is not None and (world.status.attempt, point.step) == (2, 8)


def test_what_the_fences_abandoned_is_not_chosen() -> None:
    world = World(look=StoreView(found=(replace(record(9, 1), abandoned=True), record(5, 2))))
    world.settle()
    point = world.status.resume_point
    assert point is not None and (point.step, point.attempt) == (5, 2)


def test_a_store_that_does_not_answer_is_told_and_the_choice_is_made_from_what_was_reported() -> None:
    world = World().launch()
    world.records.append(record(5, 1))
    world.settle()
    world.look = StoreView(problem="cannot list s3://bucket: 503 SlowDown")
    stopped(world).after(60).settle()
    point = world.status.resume_point
    assert point is not None and (world.status.attempt, point.step) == (2, 5)
    assert world.condition("CheckpointHealthy") == ("False", "StoreUnavailable")
    told = [event for event in world.events if event.reason == "StoreUnavailable"]
    assert len(told) == 1 and "503 SlowDown" in told[0].message
    world.start()
    world.train(6)
    world.settle()
    assert world.condition("CheckpointHealthy") == ("True", "Verified")
    stopped(world).settle()
    assert world.condition("CheckpointHealthy") == ("True", "Verified")  # what went wrong at the last launch says nothing about this one


def test_a_record_in_the_store_is_no_proof_that_this_jobs_attempt_has_its_fence() -> None:
    world = World(look=StoreView(found=(record(9, 1),)))
    world.settle()
    assert [start.fenced for start in world.status.run.starts] == [False]


NOT_DUE = [
    pytest.param(World().launch(), id="while an attempt runs"),
    pytest.param(World(spec=spec_of(suspend=True)), id="while the job is suspended"),
    pytest.param(World(template_check=None), id="before the spec is known to be usable"),
    pytest.param(World(spec=spec_of(workers=0)), id="with a spec that cannot be used"),
]


@pytest.mark.parametrize("world", NOT_DUE)
def test_no_look_is_due(world: World) -> None:
    assert not awaits_resume_point(world.observe(), world.now)


def test_a_look_is_due_when_nothing_runs_and_the_wait_before_a_relaunch_is_over() -> None:
    assert awaits_resume_point(World().observe(), World().now)
    world = World(look=AWAITED)
    world.settle()
    world.look = StoreView()
    world.launch()
    world.look = AWAITED
    world.fail(1, step=7)
    world.run_pass()
    assert not awaits_resume_point(world.observe(), world.now)
    world.end_deleted()
    world.settle()
    world.end_deleted()
    world.status = world.status.evolve(next_launch_after=world.now)
    assert awaits_resume_point(world.observe(), world.now)
