"""What was refused: shown until it passes, and tried again ever more rarely."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rtj_operator.decide.observation import CreateRefusal, NodeRefusal
from rtj_operator.reconcile.refusals import STANDS_SECONDS, NodeRefusals, Refusals

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


def node_refusal(node: str = "n-1", seconds: float = 0.0) -> NodeRefusal:
    return NodeRefusal(node, "ask first", NOW + timedelta(seconds=seconds))


def test_the_wait_of_a_node_doubles_up_to_a_minute_and_is_its_own() -> None:
    refusals = NodeRefusals()
    waits, seconds = [], 0.0
    for _ in range(8):
        refusals.record(node_refusal(seconds=seconds))
        waits.append(refusals.wait_seconds("n-1", NOW + timedelta(seconds=seconds)))
        seconds += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert refusals.wait_seconds("n-1", NOW + timedelta(seconds=seconds)) == 0.0
    assert refusals.wait_seconds("n-2", NOW) == 0.0


def test_a_nodes_refusal_stands_until_a_write_passes_or_nobody_tries_any_more() -> None:
    refusals = NodeRefusals()
    refusals.record(node_refusal("n-1"))
    refusals.record(node_refusal("n-2"))
    refusals.forget("n-2")
    assert refusals.standing(NOW) == {"n-1": node_refusal("n-1")}
    assert refusals.standing(NOW + timedelta(seconds=STANDS_SECONDS)) == {}
    refusals.record(node_refusal("n-1", STANDS_SECONDS))
    assert refusals.wait_seconds("n-1", NOW + timedelta(seconds=STANDS_SECONDS)) == 1.0, "an old refusal makes no later one wait longer"
