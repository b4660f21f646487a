"""Another job's fence in the run: who may take it over when, who waits, and who must not."""

from __future__ import annotations

from typing import Any

import pytest

from rtj_operator.decide.reply import reply
from tests.decide.test_recovery import last, relaunch, report
from tests.decide.world import UID, World, record
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.exit_report import Outcome

OLD = "uid-old"
FENCE = 3


def hold(world: World, quiet: float | None = None, fence: int = FENCE, uid: str = OLD, **fields: Any) -> None:
    """Let worker 0 hold before another job's fence."""
    world.beat(0, Phase.HOLD, highest_fence=fence, fence_job_uid=uid, quiet_seconds=quiet, **fields)


def holding(quiet: float | None = None, **fields: Any) -> World:
    """A new job whose worker 0 holds before another job's fence."""
    world = World(**fields)
    world.settle()
    world.start()
    hold(world, quiet)
    return world


def give_up_hold(world: World, fence: int = FENCE, uid: str = OLD) -> World:
    """Nobody answered: the worker ends as fenced, and the next attempt's workers start after the wait."""
    world.after(30)
    report(world, 0, Outcome.FENCED, 79, highest_fence=fence, fence_job_uid=uid)
    relaunch(world)
    if world.status.next_launch_after is not None:
        world.after((world.status.next_launch_after - world.now).total_seconds())
        world.settle()
    if world.phase != "Failed":
        world.start()
    return world


def may_go_on(world: World) -> bool:
    """Whether the holding worker is named an assignment."""
    return reply(world.job, world.beats[0].beat, frozenset(), world.now).assignment is not None


def test_a_job_that_was_deleted_and_applied_again_goes_on_from_its_old_checkpoints_at_once() -> None:
    world = World(ended_job_uids=frozenset({OLD}))
    world.settle()
    world.start()
    hold(world, quiet=0.5, inventory=(record(40, 3),))
    relaunch(world)
    assert (world.status.attempt, world.status.run.taken_over_from) == (4, OLD)
    assert world.status.resume_point is not None and world.status.resume_point.step == 40
    world.start()
    hold(world, quiet=2.0, inventory=(record(40, 3),))
    world.settle()
    assert (world.status.attempt, may_go_on(world)) == (4, True)
    world.train(41)
    world.settle()
    assert (world.phase, world.status.restarts.total) == ("Running", 0)


def test_checkpoints_of_the_old_jobs_first_attempt_are_not_taken_for_this_ones() -> None:
    world = World(ended_job_uids=frozenset({OLD}))
    world.settle()
    world.start()
    hold(world, quiet=0.5, fence=1, inventory=(record(40, 1),))
    relaunch(world)
    assert (world.status.attempt, world.status.run.taken_over_from) == (2, OLD)
    assert world.status.resume_point is not None and world.status.resume_point.step == 40


def test_a_job_whose_old_pods_still_end_waits_for_them_and_not_longer() -> None:
    world = holding(quiet=0.5, ending_job_uids=frozenset({OLD}))
    plan = world.settle()
    assert world.condition("Running") == ("False", "RunNotQuiet")
    assert not may_go_on(world)
    assert plan.look_again_at is not None and (plan.look_again_at - world.now).total_seconds() <= 2
    give_up_hold(world)
    hold(world, quiet=1.0)  # its last save came meanwhile
    world.settle()
    assert world.phase != "Failed"
    world.ending_job_uids, world.ended_job_uids = frozenset(), frozenset({OLD})
    world.after(2).settle()
    assert world.status.run.taken_over_from == OLD and may_go_on(world)


def test_a_run_whose_owner_is_unknown_is_taken_over_when_it_is_quiet() -> None:
    world = holding(quiet=650.0)
    world.settle()
    assert world.status.run.taken_over_from == OLD


def test_until_it_is_quiet_the_job_waits_says_so_once_and_is_charged_nothing() -> None:
    world = holding(quiet=100.0)
    world.settle()
    assert (world.condition("Running"), may_go_on(world)) == (("False", "RunNotQuiet"), False)
    (message,) = [condition.message for condition in world.status.conditions if condition.type == "Running"]
    assert all(word in message for word in (OLD, "fence 3", "600 s", "2030-01-01T11:58:20Z"))
    quiet, waits = 100.0, []
    while world.status.run.taken_over_from is None:
        before = world.now
        give_up_hold(world)
        waits.append((world.now - before).total_seconds() - 30)
        quiet += (world.now - before).total_seconds()
        hold(world, quiet)
        world.settle()
        assert len(waits) < 10
    assert waits[:3] == [10, 20, 40]
    assert (last(world), world.status.restarts.total) == (("18b", "fenced", None), 0)
    assert world.told().count("RunNotQuiet") == 1
    assert may_go_on(world)
    world.train(1)
    world.settle()
    assert world.phase == "Running"


@pytest.mark.parametrize(
    ("fence", "quiet"),
    [
        pytest.param(FENCE + 1, 20.0, id="its fence grew"),
        pytest.param(FENCE, 5.0, id="it wrote"),
    ],
)
def test_an_owner_that_writes_meanwhile_is_alive(fence: int, quiet: float) -> None:
    world = holding(quiet=100.0)
    world.settle()
    give_up_hold(world)
    world.after(60)
    hold(world, quiet, fence)
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "RunOwnedByAnotherJob")
    assert world.status.ending is not None and "written to while this job waited" in world.status.ending.message


def test_clocks_that_differ_a_little_are_no_write() -> None:
    world = holding(quiet=-40.0)  # the store's clock is ahead
    world.settle()
    before = world.now
    give_up_hold(world)
    hold(world, quiet=(world.now - before).total_seconds() - 40 - 30)
    world.settle()
    assert world.phase != "Failed"


def test_a_run_that_cannot_be_dated_is_waited_for_and_never_entered() -> None:
    world = holding(quiet=None)
    for _ in range(4):
        world.settle()
        assert not may_go_on(world)
        give_up_hold(world)
        hold(world, quiet=None)
    assert world.status.run.taken_over_from is None and world.phase != "Failed"


def test_a_job_that_is_alive_here_is_never_taken_over() -> None:
    world = holding(quiet=10_000.0, live_job_uids=frozenset({UID, OLD}))
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "RunOwnedByAnotherJob")


def test_after_this_jobs_own_fence_no_other_is_taken_over() -> None:
    world = World(ended_job_uids=frozenset({OLD, "uid-third"})).launch()
    report(world, 0, Outcome.FENCED, 79, highest_fence=9, fence_job_uid="uid-third")
    relaunch(world)
    assert (world.phase, world.condition("Failed")[1]) == ("Failed", "RunOwnedByAnotherJob")


def test_a_worker_that_ended_before_its_hold_was_heard_leads_to_a_takeover_all_the_same() -> None:
    world = World(ended_job_uids=frozenset({OLD}))
    world.settle()
    world.start()
    report(world, 0, Outcome.FENCED, 79, highest_fence=6, fence_job_uid=OLD)
    relaunch(world)
    assert (last(world)[0], world.status.attempt, world.status.run.taken_over_from) == ("18b", 7, OLD)
    world.start()
    report(world, 0, Outcome.FENCED, 79, highest_fence=6, fence_job_uid=OLD)
    relaunch(world)
    assert world.status.next_launch_after is not None, "a run that is ours already and cannot be entered is not tried without a pause"


def test_a_lost_status_changes_none_of_it() -> None:
    world = holding(quiet=100.0)
    world.settle()
    world.status = world.status.evolve(run=type(world.status.run)(), attempt=0, gang=0)
    world.pods.clear()
    world.beats.clear()
    world.settle()
    world.start()
    hold(world, quiet=130.0)
    world.settle()
    assert (world.condition("Running"), may_go_on(world)) == (("False", "RunNotQuiet"), False)


def test_a_fence_that_is_gone_keeps_nobody_waiting() -> None:
    world = holding(quiet=100.0)
    world.settle()
    give_up_hold(world)
    world.train(1)
    world.settle()
    assert world.phase == "Running"
