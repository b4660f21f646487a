"""A victim's word often comes first: an incident is judged anew while the gang is being stopped, also one that was about to end the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rtj_operator.decide.observation import ContainerView, PodCondition
from tests.decide.test_recovery import last, relaunch, report
from tests.decide.world import UID, World, evidence, spec_of
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.contract.exit_report import ExitReport, Outcome

Fault = Callable[[World], None]


def victims(world: World) -> None:
    """The survivors report that they waited for somebody."""
    for worker in (0, 2):
        fact = evidence("nccl_timeout", Strength.VICTIM, world.now, world.status.attempt, "Watchdog caught collective operation timeout")
        report(world, worker, Outcome.FAILED, 134, evidence=(fact,))


def silent_ends(world: World) -> None:
    """The survivors end without a word."""
    for worker in (0, 2):
        world.exit(worker, 1)


def own_error(world: World) -> None:
    """A survivor raises what it raised in the attempt before."""
    world.fail(0, step=11)


def ecc_error(world: World) -> None:
    """The machine's own word comes half a second later."""
    world.after(0.5)
    fact = evidence("gpu_ecc_uncorrectable", Strength.NODE, world.now, world.status.attempt, "Xid 48")
    world.exit(1, 1, ExitReport(world.status.attempt, 1, Outcome.FAILED, 1, evidence=(fact,)))


def power_cut(world: World) -> None:
    """Time goes on until the node that lost its power counts as lost."""
    world.after(10)
    world.end_deleted()
    world.settle()
    world.after(51)


FIRST: list[Any] = [
    pytest.param(victims, {"noProgressLimit": 2}, id="victims without progress"),
    pytest.param(silent_ends, {"noProgressLimit": 2}, id="unknown ends without progress"),
    pytest.param(victims, {"budgets": {"hang": 0}, "noProgressLimit": 100}, id="victims beyond their budget"),
    pytest.param(own_error, {}, id="the same error twice"),
]
THEN = [
    pytest.param(ecc_error, ("3", "gpu_ecc_uncorrectable", "infrastructure"), id="the machine's own word"),
    pytest.param(power_cut, ("4", "node_lost", "infrastructure"), id="a node that turns out to be lost"),
]


@pytest.mark.parametrize(("then", "expected"), THEN)
@pytest.mark.parametrize(("first", "recovery"), FIRST)
def test_better_evidence_saves_a_job_that_an_incident_was_about_to_end(
    first: Fault, recovery: dict[str, Any], then: Fault, expected: tuple[str, str, str]
) -> None:
    world = World(spec=spec_of(recovery=recovery)).launch()
    world.fail(0, step=11)
    relaunch(world).launch(10)
    counted = world.status.restarts
    window = sum(bucket.n for bucket in world.status.budget_window)
    bad = world.pod(1).node or ""
    if then is power_cut:
        world.lose_node(bad)
    first(world)
    world.run_pass()
    assert world.status.ending is not None and world.status.restarts == counted, "it is about to end"
    then(world)
    world.settle()
    world.end_deleted()
    world.settle()
    assert (last(world), world.phase) == (expected, "Recovering")
    assert (world.status.attempt, [entry.node for entry in world.status.excluded_nodes]) == (3, [bad])
    assert world.status.restarts == counted.evolve(total=counted.total + 1, infrastructure=counted.infrastructure + 1)
    assert sum(bucket.n for bucket in world.status.budget_window) == window + 1
    assert world.status.no_progress_count == 1
    assert "Failed" not in world.told()


def test_an_incident_that_ends_the_job_stays_when_nothing_better_comes() -> None:
    world = World(spec=spec_of(recovery={"noProgressLimit": 1})).launch()
    victims(world)
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], last(world)[0]) == ("Failed", "NoProgress", "9")
    world.nodes.pop("n1")
    world.after(600).settle()
    assert (world.phase, last(world)[0]) == ("Failed", "9"), "terminal is final"


def test_an_ending_may_be_revised_to_another_one() -> None:
    world = World(spec=spec_of(recovery={"noProgressLimit": 1})).launch()
    victims(world)
    world.run_pass()
    report(world, 1, Outcome.REFUSED, 77, message="lr differs")
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1], world.status.restarts.total) == ("Failed", "ResumeRefused", 0)


@contextmanager
def at_another_time(world: World, seconds: float) -> Iterator[None]:
    """Let what happens be stamped with another time."""
    now = world.now
    world.now += timedelta(seconds=seconds)
    yield
    world.now = now


GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error [10.0.0.1]:28048: Connection reset by peer"


def killed(world: World) -> None:
    """A rank is killed, and nobody has noticed yet."""
    world.tell_failure(1, "SIGKILL")


def killed_by_a_clock_ahead(world: World) -> None:
    """The same on a node whose clock is three seconds ahead."""
    with at_another_time(world, +3):
        world.tell_failure(1, "SIGKILL")


def program_error(world: World) -> None:
    """A rank raises."""
    world.tell_failure(1)


def stuck_pod(world: World) -> None:
    """A pod that somebody deleted does not end, and is forced."""
    world.change_pod(1, deleting_since=world.now)
    world.after(60).train(9, workers=[0, 2])


def nothing(_world: World) -> None:
    """No more is heard."""


def survivors_complain(world: World) -> None:
    """The survivors report that their peer is gone, which they saw before they were stopped."""
    with at_another_time(world, -1):
        for worker in (0, 2):
            world.fail(worker, GLOO)


def survivor_is_drained(world: World) -> None:
    """The cluster took a survivor away a moment after the failure."""
    target = PodCondition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drained", at=world.now - timedelta(seconds=1))
    pod = world.pod(0)
    world.change_pod(0, conditions=(*pod.conditions, target))


RESTS: list[Any] = [
    pytest.param(killed, survivors_complain, ("20", "sigkill", "unknown"), id="a killed rank, then its victims"),
    pytest.param(killed_by_a_clock_ahead, survivors_complain, ("20", "sigkill", "unknown"), id="the same under a clock that is ahead"),
    pytest.param(killed_by_a_clock_ahead, nothing, ("20", "sigkill", "unknown"), id="a clock that is ahead, then nothing"),
    pytest.param(program_error, survivors_complain, ("13b", "user_error", "application"), id="an error, then its victims"),
    pytest.param(program_error, survivor_is_drained, ("13b", "user_error", "application"), id="an error, then a drain"),
    pytest.param(stuck_pod, nothing, ("19", "stuck_pod", "infrastructure"), id="a stuck pod, then nothing"),
    pytest.param(stuck_pod, survivors_complain, ("19", "stuck_pod", "infrastructure"), id="a stuck pod, then its victims"),
]


@pytest.mark.parametrize(("first", "then", "expected"), RESTS)
def test_what_an_incident_rests_on_still_counts_when_its_pod_is_gone(first: Fault, then: Fault, expected: tuple[str, str, str]) -> None:
    world = World().launch()
    first(world)
    world.after(1).run_pass()
    assert last(world) == expected
    before = world.status.last_failure
    world.after(0.5)
    if "gpt-1-1" in world.pods:
        world.lose_pod(1)
    then(world)
    world.run_pass()
    assert (last(world), world.status.last_failure) == (expected, before)


def test_better_evidence_joins_what_the_incident_rests_on() -> None:
    world = World().launch()
    killed(world)
    world.run_pass()
    world.lose_pod(1)
    world.after(0.5)
    fact = evidence("gpu_ecc_uncorrectable", Strength.NODE, world.now, world.status.attempt, "Xid 48")
    report(world, 2, Outcome.FAILED, 1, evidence=(replace(fact, rank=2),))
    world.run_pass()
    failure = world.status.last_failure
    assert last(world) == ("3", "gpu_ecc_uncorrectable", "infrastructure")
    assert failure is not None
    assert [(item.fault_class, item.worker, item.step) for item in failure.evidence] == [("gpu_ecc_uncorrectable", 2, 1), ("sigkill", 1, 7)]


def wait_in(world: World, reason: str) -> None:
    """Every worker has a node, and its container waits."""
    world.schedule()
    for pod in world.gang:
        world.change_pod(pod.worker, container=ContainerView("waiting", reason, 'Back-off pulling image "gpt:1"'))


def test_a_fact_that_is_only_remembered_is_not_judged_again() -> None:
    world = World().launch()
    world.exit(1, 1)
    relaunch(world).after(600).settle()
    for attempt in (2, 3):
        wait_in(world, "ImagePullBackOff")
        world.after(1).settle()
        world.after(1300).run_pass()
        assert (world.status.attempt, last(world)) == (attempt, ("14b", "image_pull", None))
        relaunch(world)
        assert (world.phase, last(world)) == ("Recovering", ("14b", "image_pull", None)), (
            "a registry that is away is no error of the program"
        )
        world.after(600).settle()


def test_a_run_of_another_job_stays_one_when_the_pod_that_saw_its_fence_is_gone() -> None:
    world = World(live_job_uids=frozenset({UID, "uid-2"})).launch()
    fenced = ExitReport(1, 0, Outcome.FENCED, 79, message="fence 7 stands", highest_fence=7, fence_job_uid="uid-2")
    world.beat(0, Phase.STOPPED, 1, failure=fenced)
    world.run_pass()
    assert last(world)[0] == "18b"
    relaunch(world.after(1))
    assert (last(world)[0], world.phase, world.condition("Failed")[1]) == ("18b", "Failed", "RunOwnedByAnotherJob")


def test_containers_that_start_while_the_gang_is_stopped_make_no_node_of_the_others_guilty() -> None:
    world = World()
    world.settle()
    wait_in(world, "ContainerCreating")
    for _minute in range(60):
        if world.status.last_failure is None:
            world.after(60).run_pass()
    assert last(world)[0] == "14b"
    world.change_pod(0, container=ContainerView("running", started_at=world.now), phase="Running")
    world.after(1).run_pass()
    assert (last(world)[0], world.status.excluded_nodes) == ("14b", ())


@pytest.mark.parametrize("number", [-5, 2**63])
def test_a_step_or_rank_that_cannot_be_is_left_out(number: int) -> None:
    world = World().launch()
    fact = evidence("nccl_timeout", Strength.VICTIM, world.now, 1, rank=number)
    world.fail(1, step=number, rank=number, evidence=(replace(fact, step=number),))
    world.run_pass()
    failure = world.status.last_failure
    assert failure is not None
    assert (last(world)[0], failure.rank) == ("13b", None)
    assert {(item.rank, item.step) for item in failure.evidence} <= {(None, 1), (None, None)}


def test_a_stuck_pod_that_is_still_there_does_not_become_one_that_was_taken_away() -> None:
    world = World().launch()
    stuck_pod(world)
    pod = world.pod(1)
    world.run_pass()
    assert last(world)[0] == "19"
    world.pods[pod.name] = pod
    world.after(1).run_pass()
    assert last(world)[0] == "19"
