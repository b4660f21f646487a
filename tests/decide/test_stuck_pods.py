"""A pod of a Ready node that does not end: how long it is waited for is the grace that this deletion gave it, whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rtj_operator.decide.plan import DeletePod
from tests.decide.test_recovery import last
from tests.decide.world import World, record, spec_of

STUCK_AFTER = 30
"""Seconds that a pod may outlive its grace."""
OWN_GRACE = 600
"""spec.recovery.terminationSeconds: the time of an emergency save, which most stops do not give."""


def training_world(grace: int = OWN_GRACE) -> World:
    """A gang whose pods have that much time to end by themselves."""
    return World(spec=spec_of(3, recovery={"terminationSeconds": grace})).launch()


def an_incident(world: World) -> None:
    """A worker fails, the others are stopped."""
    world.fail(0)
    world.settle()


def a_better_start(world: World) -> None:
    """The attempt is superseded."""
    world.beat(1, step=5, attempt=7)
    world.settle()


def a_suspend(world: World) -> None:
    """The user suspends, and the save that was asked for is there."""
    world.spec["suspend"] = True
    world.settle()
    world.after(1)
    world.records.append(record(5, 1))
    world.settle()


def a_drain(world: World) -> None:
    """Somebody deletes a pod with an hour's grace."""
    world.change_pod(1, deleting_since=world.now, deleting_until=world.now + timedelta(hours=1))
    world.settle()


def somebody_in_a_hurry(world: World) -> None:
    """Somebody deletes a pod with less than its own grace."""
    world.change_pod(1, deleting_since=world.now, deleting_until=world.now + timedelta(seconds=5))
    world.settle()


def a_cluster_that_does_not_tell(world: World) -> None:
    """The end of the grace is not known: it is the pod's own."""
    world.change_pod(1, deleting_since=world.now, deleting_until=None)
    world.settle()


def forced(world: World) -> set[str]:
    """Names of pods that the next pass deletes by force."""
    return {action.name for action in world.plan().actions if isinstance(action, DeletePod) and action.grace_seconds == 0}


@pytest.mark.parametrize(
    ("stop", "grace"),
    [(an_incident, 10), (a_better_start, 10), (a_suspend, OWN_GRACE), (a_drain, 3600), (somebody_in_a_hurry, 5)]
    + [(a_cluster_that_does_not_tell, OWN_GRACE)],
)
def test_a_pod_is_stuck_when_it_outlives_the_grace_of_its_own_deletion(stop: Callable[[World], None], grace: int) -> None:
    world = training_world()
    stop(world)
    assert world.pod(1).deleting_since == world.now
    world.after(grace + STUCK_AFTER - 1)
    assert world.pod(1).name not in forced(world)
    assert world.plan().look_again_at is not None
    world.after(1)
    assert world.pod(1).name in forced(world)


def test_a_process_that_cannot_be_killed_holds_the_relaunch_for_seconds_not_for_the_time_of_a_save() -> None:
    world = training_world()
    an_incident(world)
    world.after(10 + STUCK_AFTER).settle()
    assert (world.status.attempt, last(world)[1]) == (2, "user_error")
    assert {entry.cause for entry in world.status.excluded_nodes} == {"stuck_pod"}


def test_a_grace_that_is_shorter_than_an_incidents_is_kept_to() -> None:
    world = training_world(grace=5)
    an_incident(world)
    world.after(5 + STUCK_AFTER - 1)
    assert forced(world) == set()
    world.after(1)
    assert forced(world) == {"gpt-1-1", "gpt-1-2"}
