"""A gang on its way up: what it waits for, for how long, and what is not taken for a fault of a machine or of the program."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rtj_operator.decide.observation import ContainerView, PodCondition
from tests.decide.world import World, node, record, spec_of


def unschedulable(world: World) -> None:
    """Let the scheduler say of every pod without a node that it fits nowhere."""
    for pod in world.gang:
        if pod.node is None:
            condition = PodCondition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available", world.now)
            world.change_pod(pod.worker, conditions=(condition,))


def waiting(world: World, *workers: int, reason: str = "ImagePullBackOff") -> None:
    """Let the kubelets of these workers wait with an error, and run the others."""
    world.schedule()
    for pod in world.gang:
        container = ContainerView("waiting", reason) if pod.worker in workers else ContainerView("running", started_at=world.now)
        world.change_pod(pod.worker, container=container)


def test_a_gang_that_waited_long_for_room_is_not_given_back_when_its_first_pod_finds_some() -> None:
    world = World()
    world.settle()
    world.after(7200).settle()
    world.schedule([0])
    world.settle()
    assert (world.status.attempt, world.status.stop_reason) == (1, None)
    world.after(599).settle()
    assert world.status.stop_reason is None
    world.after(2).settle()
    assert world.status.attempt == 1 and world.status.next_launch_after is not None


def test_a_gang_that_fits_nowhere_because_of_its_own_exclusions_gives_up_the_weakest() -> None:
    world = World(nodes={f"n{i}": node(f"n{i}", World().now) for i in range(3)})
    world.launch()
    lost = world.pod(1).node
    assert lost is not None
    world.lose_node(lost)
    world.after(61).settle()
    world.end_deleted()
    world.settle()
    assert [entry.node for entry in world.status.excluded_nodes] == [lost]
    world.nodes[lost] = replace(world.nodes[lost], ready="True")
    unschedulable(world)
    world.after(599).settle()
    assert world.status.attempt == 2
    world.after(2).settle()
    assert world.status.excluded_nodes == ()
    assert f"node {lost} is not avoided any more" in world.events[-1].message
    world.after(60).settle()
    assert world.status.attempt == 3
    assert world.status.restarts.total == 1


def test_a_machine_that_confessed_stays_excluded_however_long_the_gang_waits() -> None:
    world = World()
    world.launch()
    bad = world.pod(1).node
    assert bad is not None
    world.set_condition(bad, "GpuMemWatch")
    world.settle()
    world.end_deleted()
    world.settle()
    world.nodes[bad] = replace(world.nodes[bad], unschedulable=False)
    unschedulable(world)
    world.after(3600).settle()
    assert world.status.attempt == 2 and [entry.node for entry in world.status.excluded_nodes] == [bad]


def test_a_gang_without_exclusions_that_fits_nowhere_keeps_its_place_in_the_queue() -> None:
    world = World()
    world.settle()
    unschedulable(world)
    world.after(7200).settle()
    assert (world.status.attempt, world.status.stop_reason) == (1, None)


def test_a_container_that_never_starts_is_given_up_after_the_start_time_and_its_node_is_avoided() -> None:
    world = World(spec=spec_of(3, recovery={"startSeconds": 300}))
    world.settle()
    waiting(world, 1, reason="ContainerCreating")
    stuck = world.pod(1).node
    plan = world.settle()
    assert plan.look_again_at is not None
    world.after(299).settle()
    assert world.status.last_failure is None
    world.after(2).settle()
    failure = world.status.last_failure
    assert failure is not None and (failure.cause, failure.row, failure.node, failure.charge) == ("not_started", "14", stuck, None)
    assert [entry.node for entry in world.status.excluded_nodes] == [stuck]


def test_when_no_container_starts_no_machine_is_blamed_and_the_job_tries_again() -> None:
    world = World(spec=spec_of(3, recovery={"startSeconds": 300}))
    world.settle()
    waiting(world, 0, 1, 2, reason="ContainerCreating")
    world.after(301).settle()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.charge) == ("14b", None)
    assert world.status.excluded_nodes == ()
    assert world.status.ending is None and world.status.next_launch_after is not None


def test_an_image_that_was_pulled_before_and_cannot_be_pulled_now_fails_no_job() -> None:
    world = World()
    world.launch()
    world.records.append(record(500, 1))
    world.settle()
    world.exit(1, 75)
    world.settle()
    world.end_deleted()
    world.settle()
    assert world.status.attempt == 2
    for attempt in (3, 4, 5):
        waiting(world, 0, 1, 2)
        world.settle()
        world.after(121).settle()
        failure = world.status.last_failure
        assert failure is not None and (failure.cause, failure.row, failure.charge) == ("image_pull", "14b", None)
        world.end_deleted()
        world.settle()
        world.after(700).settle()
        assert world.status.attempt == attempt
    world.start()
    world.train(501)
    world.settle()
    assert world.phase == "Running"


def test_an_image_that_two_of_three_nodes_cannot_pull_is_no_error_of_the_program() -> None:
    world = World()
    world.settle()
    waiting(world, 1, 2)
    world.settle()
    world.after(121).settle()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.charge) == ("14b", None)


def test_a_pod_on_a_node_that_the_operator_has_not_seen_yet_is_not_lost() -> None:
    world = World()
    world.settle()
    world.after(3600).settle()
    for pod in world.gang:
        world.change_pod(pod.worker, node=f"new-{pod.worker}", conditions=(PodCondition("PodScheduled", "True", at=world.now),))
    world.settle()
    assert (world.status.attempt, world.status.last_failure) == (1, None)


@pytest.mark.parametrize(("finished_before_deletion", "succeeds"), [(False, False), (True, True)], ids=["while_deleted", "before"])
def test_plain_torchrun_that_ends_with_0_because_its_pod_is_taken_away_is_not_done(finished_before_deletion: bool, succeeds: bool) -> None:
    world = World(spec=spec_of(1)).launch()
    world.beats.clear()
    asked = world.now
    if not finished_before_deletion:
        world.change_pod(0, deleting_since=asked)
        world.after(5)
    world.exit(0, 0, reason="Completed")
    world.after(5)
    if finished_before_deletion:
        world.change_pod(0, deleting_since=world.now)
    world.settle()
    assert (world.phase == "Succeeded") is succeeds
    assert any(action.attempt == 2 for action in world.created) is not succeeds


def test_a_drain_with_a_longer_grace_than_the_jobs_own_does_not_make_a_pod_stuck() -> None:
    world = World().launch()
    world.change_pod(1, deleting_since=world.now, deleting_until=world.now + timedelta(minutes=10))
    world.after(120)
    world.train(2)
    world.settle()
    assert world.status.last_failure is None


def test_a_suspended_plain_torchrun_that_ends_with_0_on_sigterm_has_not_succeeded() -> None:
    world = World(spec=spec_of(2)).launch()
    world.beats.clear()
    world.spec["suspend"] = True
    world.settle()
    world.after(31).settle()
    assert all(pod.deleting_since is not None for pod in world.gang)
    world.after(1)
    for worker in (0, 1):
        world.exit(worker, 0, reason="Completed")
    world.settle()
    assert world.phase == "Suspended"
