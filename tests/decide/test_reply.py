"""What a worker is told: by status and beat alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rtj_operator.api.v1alpha1 import Ending, JobStatus, Launch, StopReason
from rtj_operator.decide.reply import reply
from tests.decide.world import RUN, START, UID, World, record
from trainer_runtime.contract.beat import Beat, Directive, Level, Phase, RecordKey, Reply, Tier
from trainer_runtime.contract.exit_report import VerifiedCheckpoint


def status_of(**fields: Any) -> JobStatus:
    """The status of a job that runs attempt 4."""
    return JobStatus(attempt=4, gang=4, launch=Launch.GANG, attempt_started_at=START).evolve(**fields)


def answer(status: JobStatus, attempt: int = 4, phase: Phase = Phase.TRAIN, worker: int = 0, **fields: Any) -> Reply:
    """The reply to one beat."""
    beat = Beat(UID, attempt, worker, "pod-1", 1, phase, 0.0, **fields)
    return reply(World(status=status).job, beat, frozenset(), START)


STOPPING = {"stopping_since": START, "stop_reason": StopReason.INCIDENT}
SUCCEEDED = Ending(succeeded=True, reason="Done")


@pytest.mark.parametrize(
    ("status", "beat", "directive"),
    [
        pytest.param({}, {}, Directive.CONTINUE, id="a worker of the present attempt goes on"),
        pytest.param(STOPPING, {}, Directive.STOP, id="an attempt that is being stopped"),
        pytest.param({**STOPPING, "stop_reason": StopReason.SUPERSEDED}, {}, Directive.STOP, id="an attempt that is superseded"),
        pytest.param({**STOPPING, "stop_reason": StopReason.SUSPEND}, {}, Directive.SAVE, id="a suspend asks for a save first"),
        pytest.param({**STOPPING, "stop_reason": StopReason.END, "ending": SUCCEEDED}, {}, Directive.CONTINUE, id="a job about to succeed"),
        pytest.param(STOPPING, {"phase": Phase.DONE}, Directive.CONTINUE, id="a worker that is done is never stopped"),
        pytest.param({}, {"attempt": 3}, Directive.STOP, id="a worker of an older gang"),
        pytest.param({"launch": Launch.IN_PLACE}, {"attempt": 3}, Directive.RESTART, id="a worker that an in-place restart waits for"),
        pytest.param({}, {"attempt": 5}, Directive.CONTINUE, id="a worker that knows more than the status"),
        pytest.param({"phase": "Failed"}, {}, Directive.STOP, id="a worker of a job that failed"),
        pytest.param({"gang": 0}, {}, Directive.STOP, id="a worker of a suspended job"),
    ],
)
def test_the_directive(status: dict[str, Any], beat: dict[str, Any], directive: Directive) -> None:
    assert answer(status_of(**status), **beat).directive is directive


def test_the_assignment_is_the_present_attempts_and_only_for_its_workers() -> None:
    told = answer(status_of(), worker=2).assignment
    assert told is not None and (told.attempt, told.worker_index, told.workers) == (4, 2, 3)
    assert answer(status_of(), attempt=3).assignment is None
    assert answer(status_of(), worker=7).assignment is None


def test_a_save_that_was_verified_ends_the_wish_for_one() -> None:
    world = World().launch()
    world.spec["suspend"] = True
    world.settle()
    world.after(1)
    world.records.append(record(5, 1))
    world.run_pass()
    beat = replace(Beat(UID, 1, 0, "pod-1", 1, Phase.TRAIN, 0.0))
    assert reply(world.job, beat, frozenset(), world.now).directive is Directive.STOP


@pytest.mark.parametrize(
    ("fields", "may_go_on"),
    [
        pytest.param({}, True, id="an empty store"),
        pytest.param({"highest_fence": 3, "fence_job_uid": UID}, True, id="an older fence of its own"),
        pytest.param({"highest_fence": 4, "fence_job_uid": UID}, False, id="a fence as high as its attempt"),
        pytest.param({"highest_fence": 3, "fence_job_uid": "uid-old"}, False, id="a fence of a job nobody judged yet"),
        pytest.param({"inventory": (record(9, 3),)}, False, id="a checkpoint the status does not know"),
    ],
)
def test_a_holding_worker_gets_leave_to_go_on_only_when_nothing_is_left_to_decide(fields: dict[str, Any], may_go_on: bool) -> None:
    told = answer(status_of(), phase=Phase.HOLD, **fields)
    assert (told.assignment is not None) is may_go_on


def test_a_holding_worker_of_an_attempt_that_is_being_stopped_gets_no_leave() -> None:
    assert answer(status_of(**STOPPING), phase=Phase.HOLD).assignment is None


def test_records_are_acknowledged_when_the_status_holds_them_at_that_level() -> None:
    world = World().launch()
    world.records += [record(5, 1, Level.COMMITTED), record(9, 1)]
    world.settle()
    records = (record(5, 1, Level.COMMITTED), record(5, 1), record(9, 1), record(9, 1, Level.COMMITTED), record(11, 1))
    beat = Beat(UID, 1, 0, "pod-1", 1, Phase.TRAIN, 0.0, records=records)
    assert [(key.step, key.level) for key in reply(world.job, beat, frozenset(), world.now).acked] == [
        (5, Level.COMMITTED),
        (9, Level.VERIFIED),
        (9, Level.COMMITTED),
    ]


def test_a_record_too_old_to_be_kept_is_acknowledged_all_the_same() -> None:
    world = World().launch()
    world.records += [record(step, 1) for step in range(100, 130)]
    world.settle()
    beat = Beat(UID, 1, 0, "pod-1", 1, Phase.TRAIN, 0.0, records=(record(3, 1),))
    assert [key.step for key in reply(world.job, beat, frozenset(), world.now).acked] == [3]


def test_deletion_is_granted_after_the_mark_was_written_and_only_to_the_present_attempt() -> None:
    world = World().launch()
    world.records += [record(step, 1) for step in (1, 2, 3, 4)]
    world.settle()
    proposals = tuple(RecordKey(RUN, step, 1, Level.VERIFIED) for step in (1, 4))
    beat = Beat(UID, 1, 0, world.pod(0).uid, 1, Phase.TRAIN, 0.0, delete_proposals=proposals)
    assert reply(world.job, beat, frozenset(), world.now).may_delete == ()
    world.beat(0, delete_proposals=proposals)
    world.settle()
    assert [key.step for key in reply(world.job, beat, frozenset(), world.now).may_delete] == [1]
    assert reply(world.job, replace(beat, attempt=0), frozenset(), world.now).may_delete == ()


@pytest.mark.parametrize(("is_tagged", "granted"), [(True, []), (False, [5])], ids=["tagged", "not tagged"])
def test_what_only_an_exit_report_names_is_granted_unless_it_is_tagged(is_tagged: bool, granted: list[int]) -> None:
    """The beats that told of it met no operator, and a later gang began from a newer one."""
    world = World().launch()
    told = record(5, 1)
    world.fail(0, step=6, verified=VerifiedCheckpoint(told.step, told.uri, told.manifest_sha256, tagged=is_tagged))
    for attempt in (2, 3):
        world.settle()
        world.end_deleted()
        world.launch(10 * attempt)
        world.records += [record(10 * attempt + extra, attempt) for extra in (1, 2, 3)]
        world.settle()
        if attempt == 2:
            world.fail(0, step=24)
    proposals = (RecordKey(RUN, 5, 1, Level.VERIFIED),)
    world.beat(0, delete_proposals=proposals)
    world.settle()
    beat = Beat(UID, 3, 0, world.pod(0).uid, 1, Phase.TRAIN, 0.0, delete_proposals=proposals)
    assert [key.step for key in reply(world.job, beat, frozenset(), world.now).may_delete] == granted


def test_a_copy_is_acknowledged_for_its_own_tier_alone() -> None:
    world = World().launch()
    local, stored = replace(record(5, 1), tier=Tier.LOCAL), record(5, 1)
    world.records.append(local)
    world.settle()
    beat = Beat(UID, 1, 0, "pod-1", 1, Phase.TRAIN, 0.0, records=(local, stored))
    assert [key.tier for key in reply(world.job, beat, frozenset(), world.now).acked] == [Tier.LOCAL]
    world.records.append(stored)
    world.settle()
    assert [key.tier for key in reply(world.job, beat, frozenset(), world.now).acked] == [Tier.LOCAL, Tier.STORE]


def test_what_another_job_begins_with_is_not_granted_even_when_the_status_has_forgotten_it() -> None:
    world = World().launch()
    world.records += [record(step, 1) for step in range(100, 130)]
    world.settle()
    proposals = tuple(RecordKey(RUN, step, 1, Level.VERIFIED) for step in (3, 4))
    beat = Beat(UID, 1, 0, "pod-1", 1, Phase.TRAIN, 0.0, delete_proposals=proposals)
    assert [key.step for key in reply(world.job, beat, frozenset({(3, 1)}), world.now).may_delete] == [4]


def test_a_copy_out_of_a_new_gangs_reach_is_its_workers_own_to_delete() -> None:
    world = World().launch()
    proposals = (RecordKey(RUN, 5, 1, Level.VERIFIED, Tier.LOCAL), RecordKey(RUN, 5, 1, Level.VERIFIED, Tier.ARCHIVE))
    beat = Beat(UID, 1, 0, "pod-1", 1, Phase.TRAIN, 0.0, delete_proposals=proposals)
    assert [key.tier for key in reply(world.job, beat, frozenset(), world.now).may_delete] == [Tier.LOCAL]
