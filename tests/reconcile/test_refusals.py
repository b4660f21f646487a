"""Refused creates: shown until they pass, and tried again ever more rarely."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rtj_operator.decide.observation import CreateRefusal
from rtj_operator.reconcile.refusals import Refusals

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = "job-1"


def refusal(worker: int) -> CreateRefusal:
    return CreateRefusal(worker, "forbidden", "exceeded quota", NOW)


def test_what_was_refused_last_is_shown_by_worker() -> None:
    refusals = Refusals()
    refusals.record(JOB, [refusal(2), refusal(1)], NOW)
    assert refusals.of_job(JOB) == (refusal(1), refusal(2))
    assert refusals.of_job("other") == ()


def test_the_wait_doubles_up_to_a_minute_and_runs_down() -> None:
    refusals = Refusals()
    waits = []
    for _ in range(8):
        refusals.record(JOB, [refusal(0)], NOW)
        waits.append(refusals.wait_seconds(JOB, NOW))
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert refusals.wait_seconds(JOB, NOW + timedelta(seconds=45)) == 15.0
    assert refusals.wait_seconds(JOB, NOW + timedelta(seconds=61)) == 0.0


def test_a_round_without_refusals_clears_everything() -> None:
    refusals = Refusals()
    refusals.record(JOB, [refusal(0)], NOW)
    refusals.record(JOB, [], NOW)
    assert refusals.of_job(JOB) == ()
    assert refusals.wait_seconds(JOB, NOW) == 0.0
