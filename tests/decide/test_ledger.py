"""Checkpoints in the status: merging, lineage, quarantine, retention's marks, and the choice of a resume point."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rtj_operator.api.checkpoints import MAX_STARTS
from rtj_operator.api.v1alpha1 import AttemptStart, JobStatus, ResumeFrom, RunStatus
from rtj_operator.decide import ledger
from rtj_operator.decide.resume_choice import choose_resume
from tests.decide.world import RUN, START, UID, record
from trainer_runtime.contract.assignment import ResumeMode
from trainer_runtime.contract.beat import SHARED_TIERS, CheckpointRecord, Level, RecordKey, Tier


def status_with(*records: CheckpointRecord, starts: tuple[AttemptStart, ...] = (), **fields: Any) -> JobStatus:
    """A status that took in these records."""
    return ledger.merge(JobStatus(run=RunStatus(starts=starts), **fields), records, RUN, START)


def test_levels_merge_upwards_only() -> None:
    status = status_with(record(5, 1, Level.VERIFIED), record(5, 1, Level.COMMITTED))
    assert [(known.step, known.level) for known in status.checkpoints] == [(5, Level.VERIFIED)]
    assert status.checkpoint is not None and status.high_water_step == 5


def test_records_of_another_run_are_not_taken_in() -> None:
    foreign = CheckpointRecord("other", 5, 1, "file:///x", "sha", Level.VERIFIED)
    assert status_with(foreign).checkpoints == ()


def test_a_rollback_never_lowers_the_high_water_mark() -> None:
    status = status_with(record(5, 1), record(9, 1))
    status = ledger.quarantine(status, 9, 1, "flipped byte", START)
    assert status.checkpoint is not None and (status.checkpoint.step, status.high_water_step) == (5, 9)


def test_only_progress_above_the_high_water_mark_resets_the_counts() -> None:
    status = status_with(record(9, 1)).evolve(no_progress_count=2, unknown_count=1)
    status = ledger.merge(status, [record(8, 2)], RUN, START)
    assert status.no_progress_count == 2
    status = ledger.merge(status, [record(10, 2)], RUN, START)
    assert (status.no_progress_count, status.unknown_count) == (0, 0)


def test_the_list_stays_bounded_and_keeps_the_newest_good_ones() -> None:
    status = status_with(record(1, 1), record(2, 1), *(record(step, 1, Level.COMMITTED) for step in range(10, 60)))
    assert len(status.checkpoints) == 22
    assert {known.step for known in status.checkpoints if known.is_verified} == {1, 2}


@pytest.mark.parametrize(
    ("starts", "abandoned"),
    [
        pytest.param([], set(), id="without a later attempt nothing is abandoned"),
        pytest.param([(2, 100, False)], set(), id="an attempt without a fence abandons nothing"),
        pytest.param([(2, 100, True)], {(200, 1)}, id="what lies above the start of a later attempt"),
        pytest.param([(2, 100, True), (3, 150, True)], {(200, 1)}, id="each attempt's own later starts count"),
        pytest.param([(3, 120, True)], {(200, 1), (150, 2)}, id="all earlier attempts alike"),
        pytest.param([(3, None, True)], {(200, 1), (100, 1), (150, 2)}, id="a start from nothing abandons everything earlier"),
    ],
)
def test_lineage(starts: list[tuple[int, int | None, bool]], abandoned: set[tuple[int, int]]) -> None:
    status = status_with(
        record(100, 1),
        record(200, 1),
        record(150, 2),
        starts=tuple(AttemptStart(attempt=attempt, step=step, fenced=fenced) for attempt, step, fenced in starts),
    )
    assert {(known.step, known.attempt) for known in status.checkpoints if known.abandoned} == abandoned


def test_what_the_store_calls_abandoned_is_abandoned() -> None:
    seen = CheckpointRecord(RUN, 200, 1, "file:///x", "sha-200-1", Level.VERIFIED, abandoned=True)
    status = status_with(record(100, 1), record(200, 1), seen)
    assert status.checkpoint is not None and status.checkpoint.step == 100


@pytest.mark.parametrize(
    ("records", "fresh", "step"),
    [
        pytest.param([], False, None, id="an empty run starts from nothing"),
        pytest.param([record(5, 1), record(9, 1)], False, 9, id="the newest verified one"),
        pytest.param([record(5, 1), record(9, 1, Level.COMMITTED)], False, 5, id="verified before newer but only committed"),
        pytest.param([record(9, 1, Level.COMMITTED)], False, 9, id="committed before nothing"),
        pytest.param([record(5, 1)], True, None, id="nothing by the user's wish"),
    ],
)
def test_the_choice_of_a_resume_point(records: list[CheckpointRecord], fresh: bool, step: int | None) -> None:
    choice = choose_resume(status_with(*records), fresh, UID)
    assert (choice.point.step if choice.point else None, choice.starts_fresh, choice.problem) == (step, fresh, "")


def test_start_fresh_that_was_used_is_ignored() -> None:
    status = status_with(record(5, 1)).evolve(run=RunStatus(start_fresh_used_by=UID))
    assert choose_resume(status, True, UID).point is not None


def test_quarantined_checkpoints_are_a_problem_and_no_reason_to_start_from_nothing() -> None:
    status = ledger.quarantine(status_with(record(5, 1)), 5, 1, "flipped byte", START)
    choice = choose_resume(status, False, UID)
    assert choice.point is None and not choice.starts_fresh and "flipped byte" in choice.problem


def key(step: int) -> RecordKey:
    """The key of a verified record of attempt 1."""
    return RecordKey(RUN, step, 1, Level.VERIFIED)


def test_retention_never_takes_the_newest_good_ones_or_the_resume_target() -> None:
    status = status_with(*(record(step, 1) for step in (1, 2, 3, 4)))
    point = choose_resume(ledger.mark_deleting(status, [key(4), key(3)], RUN, (), START), False, UID).point
    assert point is not None and point.step == 4
    status = status.evolve(resume_point=point.evolve(step=1))
    marked = ledger.mark_deleting(status, [key(step) for step in (1, 2, 3, 4)], RUN, (), START)
    assert [(known.step, known.deleting) for known in marked.checkpoints] == [(4, False), (3, False), (2, True), (1, False)]


def test_starts_stay_bounded_and_forget_what_was_never_fenced() -> None:
    starts: tuple[AttemptStart, ...] = ()
    for attempt in range(1, 50):
        starts = ledger.with_start(starts, AttemptStart(attempt=attempt, step=attempt, fenced=attempt % 2 == 0))
    assert len(starts) <= MAX_STARTS and starts[-1].attempt == 49
    assert all(start.fenced for start in starts[:-1])


def copy(step: int, tier: Tier, level: Level = Level.VERIFIED) -> CheckpointRecord:
    """A record of attempt 1 about the copy in that tier."""
    return replace(record(step, 1, level), tier=tier, uri=f"{tier.value}/{step}")


COMMITTED, VERIFIED = Level.COMMITTED, Level.VERIFIED
COPIES = [
    pytest.param(
        [copy(5, Tier.LOCAL), copy(5, Tier.STORE, COMMITTED)], "store/5", COMMITTED, id="one within reach of all before a proven one"
    ),
    pytest.param([copy(5, Tier.STORE), copy(5, Tier.ARCHIVE)], "store/5", VERIFIED, id="of two proven ones within reach the nearer one"),
    pytest.param([copy(5, Tier.STORE, COMMITTED), copy(5, Tier.ARCHIVE)], "archive/5", VERIFIED, id="a proven one before a nearer one"),
    pytest.param([copy(5, Tier.STAGE, COMMITTED), copy(5, Tier.LOCAL)], "local/5", VERIFIED, id="what nobody else reaches, when it is all"),
]


@pytest.mark.parametrize(("records", "uri", "level"), COPIES)
def test_of_several_copies_the_status_names_the_one_that_a_gang_would_use(records: list[CheckpointRecord], uri: str, level: Level) -> None:
    for order in (records, records[::-1]):
        (known,) = status_with(*order).checkpoints
        assert (known.uri, known.level) == (uri, level)


@pytest.mark.parametrize("tier", list(Tier))
def test_a_new_gang_gets_only_what_every_pod_reaches(tier: Tier) -> None:
    status = status_with(record(5, 1), copy(9, tier))
    choice = choose_resume(status, False, UID)
    assert choice.point is not None and choice.point.step == (9 if tier in SHARED_TIERS else 5)
    assert status.checkpoint is not None and status.checkpoint.step == choice.point.step


def test_copies_that_ended_with_their_pods_are_as_good_as_none() -> None:
    choice = choose_resume(status_with(copy(9, Tier.LOCAL)), False, UID)
    assert (choice.point, choice.starts_fresh, choice.problem) == (None, False, "")


SOURCE = ResumeFrom(uri="s3://bucket/other/steps/0000000500-00000002", mode=ResumeMode.WARM_START)


def test_a_source_is_used_while_the_lineage_has_no_checkpoint() -> None:
    left = status_with(record(9, 1), starts=(AttemptStart(attempt=2, fenced=True),))
    for status in (JobStatus(), left):
        point = choose_resume(status, False, UID, SOURCE).point
        assert point is not None and point.foreign
        assert (point.step, point.attempt, point.uri, point.manifest_sha256, point.mode) == (500, 2, SOURCE.uri, "", SOURCE.mode)


def test_a_source_is_no_way_around_checkpoints_of_the_run_itself() -> None:
    committed = choose_resume(status_with(record(9, 1, COMMITTED)), False, UID, SOURCE).point
    assert committed is not None and (committed.step, committed.foreign) == (9, False)
    lost = ledger.quarantine(status_with(record(9, 1)), 9, 1, "flipped byte", START)
    assert "flipped byte" in choose_resume(lost, False, UID, SOURCE).problem


def test_retention_takes_neither_tagged_ones_nor_the_sources_of_other_jobs() -> None:
    status = status_with(*(replace(record(step, 1), tagged=step == 1) for step in (1, 2, 3, 8, 9)))
    marked = ledger.mark_deleting(status, [key(step) for step in (1, 2, 3)], RUN, {(2, 1)}, START)
    assert [known.step for known in marked.checkpoints if known.deleting] == [3]


def test_a_tag_that_is_reported_later_counts_too() -> None:
    status = ledger.merge(status_with(*(record(step, 1) for step in (1, 8, 9))), [replace(record(1, 1), tagged=True)], RUN, START)
    assert ledger.mark_deleting(status, [key(1)], RUN, (), START) == status


def test_a_proposal_about_one_tier_does_not_touch_a_copy_in_another() -> None:
    status = status_with(*(record(step, 1) for step in (1, 8, 9)))
    assert ledger.mark_deleting(status, [replace(key(1), tier=Tier.ARCHIVE)], RUN, (), START) == status


def test_verified_at_is_when_the_operator_learned_it() -> None:
    status = status_with(record(5, 1, Level.COMMITTED))
    status = ledger.merge(status, [record(5, 1)], RUN, START + timedelta(seconds=9))
    assert status.checkpoint is not None and status.checkpoint.verified_at == START + timedelta(seconds=9)
