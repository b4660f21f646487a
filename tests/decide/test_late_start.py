"""``startSeconds`` bounds a start whose containers run: a mount, a download or a collective that hangs ends no process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from rtj_operator.decide.observation import ContainerView
from tests.decide.test_recovery import last, relaunch
from tests.decide.world import UID, World, evidence, record, spec_of
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.evidence import Strength

START_SECONDS = 300
Say = Callable[[World], None]


def starting_world() -> World:
    """A gang whose containers run since its pods found their nodes."""
    world = World(spec=spec_of(3, recovery={"startSeconds": START_SECONDS}))
    world.settle()
    world.start()
    world.settle()
    return world


def all_start(world: World) -> None:
    """Every worker says that it starts."""
    for worker in range(3):
        world.beat(worker, Phase.START)


def worker_0_holds(world: World) -> None:
    """Worker 0 asks before its fence and is answered; the others wait for it."""
    world.beat(0, Phase.HOLD, inventory=())
    for worker in (1, 2):
        world.beat(worker, Phase.START)


def one_is_heard(world: World) -> None:
    """Of the others no beat ever arrived; while one starts, nobody trains."""
    world.beat(2, Phase.START)


def keep_saying(world: World, say: Say, seconds: float) -> None:
    """Let workers repeat what they say while time goes on."""
    for _ in range(int(seconds // 20)):
        say(world)
        world.after(20).settle()
    say(world)
    world.after(seconds % 20)


@pytest.mark.parametrize("say", [all_start, worker_0_holds, one_is_heard])
def test_a_gang_that_runs_and_does_not_begin_to_train_in_time_is_started_anew(say: Say) -> None:
    world = starting_world()
    say(world)
    assert world.settle().look_again_at is not None
    keep_saying(world, say, START_SECONDS - 1)
    world.settle()
    assert (world.status.last_failure, world.status.attempt) == (None, 1)
    say(world)
    world.after(1).settle()
    assert last(world) == ("9", "starts_late", "hang")
    failure = world.status.last_failure
    assert failure is not None and (failure.worker, failure.node, world.status.excluded_nodes) == (None, None, ())
    assert "start" in failure.message and "300 s" in failure.message
    relaunch(world)
    assert (world.status.attempt, world.status.restarts.hang, world.phase) == (2, 1, "Recovering")
    world.launch()


def test_starts_that_come_to_nothing_again_and_again_end_the_job() -> None:
    world = starting_world()
    for attempt in (1, 2, 3):
        assert world.status.attempt == attempt
        all_start(world)
        world.after(START_SECONDS)
        all_start(world)
        relaunch(world)
        world.start()
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "NoProgress")


def test_the_time_to_start_begins_when_the_last_worker_has_its_node() -> None:
    world = World(spec=spec_of(3, recovery={"startSeconds": START_SECONDS}))
    world.settle()
    world.start([0, 1])
    for worker in (0, 1):
        world.beat(worker, Phase.START)
    world.after(290).settle()
    world.start([2])
    keep_saying(world, all_start, START_SECONDS - 1)
    world.settle()
    assert world.status.last_failure is None
    all_start(world)
    world.after(1).settle()
    assert last(world)[1] == "starts_late"


def trains(world: World) -> None:
    """They began to train, compiling first."""
    all_start(world)
    for worker in range(3):
        world.beat(worker, Phase.COMPILE)


def one_trains(world: World) -> None:
    """One is past its start: the others are about to follow."""
    all_start(world)
    world.beat(1, Phase.TRAIN, step=0)


def nobody_is_heard(world: World) -> None:
    """Plain torchrun, or a channel that was never open."""


def starts_once_more(world: World) -> None:
    """A script attaches a second time, long after it began to train."""
    world.train(1)
    world.settle()
    all_start(world)


def saved_already(world: World) -> None:
    """The one beat that said train was lost, but a checkpoint of this attempt is known."""
    world.records.append(record(5, world.status.attempt))
    world.settle()
    all_start(world)


def waits_for_another_job(world: World) -> None:
    """Worker 0 holds before the fence of a job that may be alive."""
    world.beat(0, Phase.HOLD, highest_fence=3, fence_job_uid="uid-old", quiet_seconds=None)
    for worker in (1, 2):
        world.beat(worker, Phase.START)


def is_being_taken_away(world: World) -> None:
    """A drain gives a pod an hour."""
    all_start(world)
    if world.pod(1).deleting_since is None:
        world.change_pod(1, deleting_since=world.now, deleting_until=world.now + timedelta(hours=1))


@pytest.mark.parametrize(
    "say", [trains, one_trains, nobody_is_heard, starts_once_more, saved_already, waits_for_another_job, is_being_taken_away]
)
def test_no_start_is_late(say: Say) -> None:
    world = starting_world()
    keep_saying(world, say, 2 * START_SECONDS)
    world.settle()
    assert (world.status.attempt, world.status.last_failure, world.status.stopping_since) == (1, None, None)


@pytest.mark.parametrize("ready", ["True", "Unknown"], ids=["nodes are Ready", "nodes are cut off too"])
def test_a_gang_that_was_last_heard_of_in_its_start_may_train_by_now(ready: str) -> None:
    world = starting_world()
    all_start(world)
    world.settle()
    if ready != "True":
        world.senders = replace(world.senders, api_outage_until=world.now + timedelta(hours=1))
        for pod in world.gang:
            world.nodes[pod.node or ""] = replace(world.nodes[pod.node or ""], ready=ready)
    for _ in range(20):
        plan = world.after(60).settle()
        assert world.status.last_failure is None
    assert plan.look_again_at is not None, "a worker that is heard again brings no news"
    one_is_heard(world)
    world.settle()
    assert last(world)[1] == "starts_late"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(("gpu_ecc_uncorrectable", Strength.NODE), ("3", "gpu_ecc_uncorrectable", "infrastructure"), id="a broken machine"),
        pytest.param(("ib_link", Strength.SUSPECT), ("7", "ib_link", "infrastructure"), id="a suspicious one"),
    ],
)
def test_what_else_is_known_says_why_a_start_is_late(fault: tuple[str, Strength], expected: tuple[str, str, str]) -> None:
    world = starting_world()
    world.after(START_SECONDS)
    all_start(world)
    world.beat(1, Phase.START, evidence=(evidence(*fault, world.now, 1),))
    world.settle()
    assert last(world) == expected
    assert [entry.node for entry in world.status.excluded_nodes] == [world.nodes["n1"].name]


def test_a_container_that_does_not_run_is_what_keeps_the_others_in_their_start() -> None:
    world = starting_world()
    world.change_pod(1, phase="Pending", container=ContainerView("waiting", "ContainerCreating"))
    for worker in (0, 2):
        world.beat(worker, Phase.START)
    world.after(START_SECONDS).settle()
    assert last(world) == ("14", "not_started", None)


def test_a_worker_that_fails_late_in_the_start_is_blamed_for_it() -> None:
    world = starting_world()
    world.after(START_SECONDS)
    all_start(world)
    world.fail(1, "FileNotFoundError: /data/tokens.bin", step=None)
    world.settle()
    assert last(world) == ("13b", "user_error", "application")


def test_an_operator_that_was_away_judges_the_start_by_what_it_hears() -> None:
    world = starting_world()
    world.after(3 * 3600)
    world.senders = replace(world.senders, listening_since=world.now)
    world.settle()
    assert world.status.last_failure is None
    world.after(5)
    all_start(world)
    world.beat(0, Phase.HOLD, inventory=(), fence_job_uid=UID)
    world.settle()
    assert last(world)[1] == "starts_late"
