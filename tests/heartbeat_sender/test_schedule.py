"""When a beat is due, and what it holds: the pure part of the sender."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trainer_runtime.contract.beat import (
    BEAT_SECONDS,
    MAX_BODY_BYTES,
    ArchiveLook,
    Beat,
    CheckpointRecord,
    Directive,
    Level,
    Phase,
    RecordKey,
    Reply,
    SaveFailure,
)
from trainer_runtime.contract.codec import loads
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.contract.exit_report import ExitReport, Outcome
from trainer_runtime.heartbeat.compose import Composer, key_of, to_body
from trainer_runtime.heartbeat.schedule import LONGEST_RETRY_SECONDS, WAITING_SECONDS, is_news, seconds_to_next
from trainer_runtime.heartbeat.state import WorkerState

STATE = WorkerState(attempt=1, worker_index=0, phase=Phase.TRAIN, step=3)
EVIDENCE = Evidence(1.0, Source.LOG, "gpu_ecc_uncorrectable", Strength.NODE, "Xid 48", attempt=1)
REPORT = ExitReport(1, 0, Outcome.FAILED, 1)


def record(step: int, level: Level = Level.VERIFIED) -> CheckpointRecord:
    return CheckpointRecord("run", step, 1, f"file:///store/run/{step}", "ab" * 32, level)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"step": 4, "loss": 1.0, "epoch": 2, "step_seconds": 0.1}, False, id="progress"),
        pytest.param({"phase": Phase.SAVE}, True, id="phase"),
        pytest.param({"evidence": (EVIDENCE,)}, True, id="evidence"),
        pytest.param({"records": (record(5),)}, True, id="record"),
        pytest.param({"failure": REPORT}, True, id="failure"),
        pytest.param({"save_failure": SaveFailure(5, "no space left")}, True, id="a save that failed"),
        pytest.param({"archive": ArchiveLook(1, "no answer")}, True, id="an archive that failed"),
        pytest.param({"attempt": 2}, True, id="attempt"),
        pytest.param({"inventory": (record(5),)}, True, id="inventory"),
    ],
)
def test_everything_but_progress_is_told_at_once(change: dict[str, Any], expected: bool) -> None:
    assert is_news(STATE, dataclasses.replace(STATE, **change)) is expected


def test_the_first_state_is_news() -> None:
    assert is_news(None, STATE)


@pytest.mark.parametrize(
    ("phase", "failures", "chance", "expected"),
    [
        pytest.param(Phase.TRAIN, 0, 0.0, BEAT_SECONDS, id="period"),
        pytest.param(Phase.TRAIN, 0, 1.0, BEAT_SECONDS * 1.1, id="period with jitter"),
        pytest.param(Phase.HOLD, 0, 0.0, WAITING_SECONDS, id="hold waits for an answer"),
        pytest.param(Phase.STOPPED, 0, 0.0, WAITING_SECONDS, id="stopped waits for an answer"),
        pytest.param(Phase.TRAIN, 1, 0.0, 1.0, id="first retry"),
        pytest.param(Phase.TRAIN, 3, 0.0, 4.0, id="third retry"),
        pytest.param(Phase.TRAIN, 10_000, 0.0, LONGEST_RETRY_SECONDS, id="an operator away for a day"),
    ],
)
def test_how_long_until_the_next_beat(phase: Phase, failures: int, chance: float, expected: float) -> None:
    assert seconds_to_next(phase, failures, chance) == pytest.approx(expected)


def test_records_are_repeated_until_acknowledged_the_newest_three_of_them() -> None:
    composer = Composer("job", "pod")
    state = dataclasses.replace(STATE, records=(record(1), record(2), record(3), record(4, Level.COMMITTED), record(4)))
    assert composer.compose(state, 1.0).records == state.records[2:]
    composer.take(Reply(Directive.CONTINUE, 1.0, acked=(key_of(record(4)), key_of(record(3)))))
    assert composer.compose(state, 2.0).records == (record(1), record(2), record(4, Level.COMMITTED))


def test_an_acknowledged_commit_is_not_an_acknowledged_verify() -> None:
    composer = Composer("job", "pod")
    state = dataclasses.replace(STATE, records=(record(4, Level.COMMITTED), record(4)))
    composer.take(Reply(Directive.CONTINUE, 1.0, acked=(RecordKey("run", 4, 1, Level.COMMITTED),)))
    assert composer.compose(state, 1.0).records == (record(4),)


def test_beats_are_numbered_one_by_one() -> None:
    composer = Composer("job", "pod")
    assert [composer.compose(STATE, 1.0).sequence for _ in range(3)] == [1, 2, 3]


def test_the_message_of_a_failure_is_cut_to_what_a_beat_can_hold() -> None:
    failure = dataclasses.replace(REPORT, message="ü" * MAX_BODY_BYTES)
    body = to_body(Composer("job", "pod").compose(dataclasses.replace(STATE, failure=failure), 1.0))
    told = loads(Beat, body).failure
    assert len(body) <= MAX_BODY_BYTES
    assert told is not None
    assert told.message
    assert dataclasses.replace(told, message="") == dataclasses.replace(REPORT, message="")


def test_a_beat_that_is_too_long_loses_details_but_never_the_failure() -> None:
    big = dataclasses.replace(
        STATE,
        failure=REPORT,
        records=(record(5),),
        evidence=tuple(dataclasses.replace(EVIDENCE, text="x" * 300) for _ in range(500)),
        inventory=tuple(record(step) for step in range(500)),
        delete_proposals=tuple(key_of(record(step)) for step in range(500)),
    )
    body = to_body(Composer("job", "pod").compose(big, 1.0))
    beat = loads(Beat, body)
    assert len(body) <= MAX_BODY_BYTES
    assert beat.failure == REPORT
    assert beat.records == (record(5),)
    assert beat.evidence
