"""A victim's word often comes first: an incident is judged anew while the gang is being stopped, also one that was about to end the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.decide.test_recovery import last, relaunch, report
from tests.decide.world import World, evidence, spec_of
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
