"""The ledger: what beats told of checkpoints and no status write holds yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rtj_operator.manifests.ledger import MAX_PENDING, Ledger
from tests.heartbeat.beats_data import record
from trainer_runtime.contract.beat import Level

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = "job-1"


def test_a_record_is_new_once_and_pending_until_it_is_settled() -> None:
    ledger = Ledger()
    assert ledger.note(JOB, [record()], NOW)
    assert not ledger.note(JOB, [record()], NOW)
    assert ledger.pending(JOB) == (record(),)
    ledger.settle(JOB, [record()], NOW)
    assert ledger.pending(JOB) == ()
    assert not ledger.note(JOB, [record()], NOW)


def test_another_level_or_another_digest_is_another_record() -> None:
    ledger = Ledger()
    ledger.note(JOB, [record()], NOW)
    assert ledger.note(JOB, [record(level=Level.VERIFIED)], NOW)
    assert ledger.note(JOB, [record(digest="bb")], NOW)
    assert len(ledger.pending(JOB)) == 3


def test_a_record_that_is_still_repeated_after_a_minute_is_shown_again_because_no_status_holds_it() -> None:
    ledger = Ledger()
    ledger.note(JOB, [record()], NOW)
    ledger.settle(JOB, [record()], NOW)
    assert not ledger.note(JOB, [record()], NOW + timedelta(seconds=59))
    assert ledger.note(JOB, [record()], NOW + timedelta(seconds=60))
    assert ledger.pending(JOB) == (record(),)


def test_what_arrives_during_a_pass_stays_pending() -> None:
    ledger = Ledger()
    ledger.note(JOB, [record(step=10)], NOW)
    seen = ledger.pending(JOB)
    ledger.note(JOB, [record(step=20)], NOW)
    ledger.settle(JOB, seen, NOW)
    assert ledger.pending(JOB) == (record(step=20),)


def test_memory_is_bounded_and_the_newest_records_stay() -> None:
    ledger = Ledger()
    ledger.note(JOB, [record(step=step) for step in range(MAX_PENDING + 10)], NOW)
    pending = ledger.pending(JOB)
    assert len(pending) == MAX_PENDING
    assert pending[-1].step == MAX_PENDING + 9


def test_jobs_are_kept_apart_and_a_gone_one_is_forgotten() -> None:
    ledger = Ledger()
    ledger.note(JOB, [record()], NOW)
    ledger.note("other", [record(step=5)], NOW)
    ledger.forget(JOB)
    assert ledger.pending(JOB) == ()
    assert ledger.pending("other") == (record(step=5),)
