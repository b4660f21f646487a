"""What a pod may say about a machine: only its own, and alone it cordons nothing where its namespace is not trusted."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from tests.decide.world import SETTINGS, World, evidence
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.evidence import Strength
from trainer_runtime.contract.exit_report import ExitReport, FirstFailure, Outcome

XID = "gpu_ecc_uncorrectable"


def test_a_pod_cannot_accuse_a_node_that_it_does_not_run_on() -> None:
    world = World().launch()
    own = world.pod(1).node
    fact = dataclasses.replace(evidence(XID, Strength.NODE, world.now, 1), node="n5")
    world.beat(1, Phase.TRAIN, 2, evidence=(fact,))
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and failure.node == own
    assert [view.name for view in world.nodes.values() if view.unschedulable] == [own]


@pytest.mark.parametrize("reason", ["OOMKilled", "Error"])
def test_what_the_kubelet_says_of_another_fault_does_not_make_a_pods_own_word_trusted(reason: str) -> None:
    world = World(settings=dataclasses.replace(SETTINGS, trusted_namespaces=("ops",))).launch()
    world.beat(1, Phase.TRAIN, 2, evidence=(evidence(XID, Strength.NODE, world.now, 1),))
    world.exit(1, 137, reason=reason)
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and failure.row == "3" and "not trusted" in failure.node_action
    assert not any(view.unschedulable for view in world.nodes.values())


def test_a_nodes_own_condition_is_trusted_whatever_the_namespace() -> None:
    world = World(settings=dataclasses.replace(SETTINGS, trusted_namespaces=("ops",))).launch()
    bad = world.pod(1).node
    assert bad is not None
    world.set_condition(bad, "GpuMemWatch")
    world.settle()
    assert world.nodes[bad].unschedulable


@pytest.mark.parametrize("seconds", [30, 1200], ids=["at_once", "after_an_absence_of_the_operator"])
@pytest.mark.parametrize("source", ["beat", "condition"])
def test_the_fact_that_moves_a_job_is_the_one_it_is_blamed_on_however_old_it_is(source: str, seconds: int) -> None:
    world = World().launch()
    bad = world.pod(1).node
    assert bad is not None
    if source == "condition":
        world.set_condition(bad, "GpuMemWatch")
    fact = evidence(XID, Strength.NODE, world.now, 1)
    world.after(seconds)
    world.train(2)
    if source == "beat":
        world.beat(1, Phase.TRAIN, 2, evidence=(fact,))
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.node) == ("3", bad)


def test_a_worker_whose_clock_is_wrong_is_believed_about_its_machine() -> None:
    world = World().launch()
    fact = evidence(XID, Strength.NODE, world.now + timedelta(hours=3), 1)
    world.beat(1, Phase.TRAIN, 2, evidence=(fact,))
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.worker) == ("3", 1)


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1.0, 1e300], ids=str)
def test_a_fact_at_a_time_that_does_not_exist_counts_from_when_it_was_heard(at: float) -> None:
    world = World().launch()
    world.beat(1, Phase.TRAIN, 2, evidence=(dataclasses.replace(evidence(XID, Strength.NODE, world.now, 1), at=at),))
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and failure.row == "3" and failure.evidence[0].at == world.now


def test_a_failure_at_a_time_that_does_not_exist_is_still_judged() -> None:
    world = World().launch()
    first = FirstFailure(1, 10**400, "ValueError: bad batch", 7)
    world.exit(1, 1, ExitReport(1, 1, Outcome.FAILED, 1, first_failure=first))
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and (failure.row, failure.step) == ("13b", 7)
