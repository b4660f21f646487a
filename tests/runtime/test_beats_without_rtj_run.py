"""Under stock torchrun the first local rank starts the beat sender by itself; the operator hears the same words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.heartbeat_sender.beat_server import BeatServer
from tests.runtime.launching import run_script
from tests.runtime.training import steps_in
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import Beat, Directive, Level, Phase, Reply
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.exit_report import Outcome
from trainer_runtime.contract.manifest import Fence

SCRIPT = """
from tests.runtime.training import Training
Training(None).train(4)
"""
FAILING = """
from tests.runtime.training import Training
for _ in Training(None).run.steps(max_steps=3):
    1 / 0
"""
STORE_FAILS_ONCE = """
import time
from pathlib import Path
from tests.runtime.training import Training
blocker = Path("store/default/tmp")
training = Training(None)
for (x,) in training.run.steps(max_steps=2):
    training.learn(x)
    if training.run.global_step == 0:
        blocker.rmdir()
        blocker.touch()            # a file in the directory's place: no save can be written
        training.run.save()
    deadline = time.monotonic() + 60
    while training.run.global_step == 1 and blocker.exists():
        assert training.run.last_verified is None and time.monotonic() < deadline
        time.sleep(0.05)
training.run.close()
"""
ARCHIVE_IS_AWAY = """
from tests.runtime.training import Training
Training(None, archive="away", archive_every_steps=1).train(2)
"""
ASSIGNMENT = Assignment(attempt=2, worker_index=0, workers=1, procs_per_worker=1, master_addr="127.0.0.1", master_port=1, run_id="r2")


def leads(beat: Beat) -> Reply:
    """Let a holding worker go on as it was assigned."""
    return Reply(Directive.CONTINUE, received_at=1.0, assignment=ASSIGNMENT if beat.phase is Phase.HOLD else None)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[BeatServer]:
    server = BeatServer(tmp_path, respond=leads)
    yield server
    server.stop()


def run(operator: BeatServer, folder: Path, assignment: Assignment, text: str = SCRIPT) -> int:
    (folder / "store").mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(text)
    store = (folder / "store").as_uri()
    return run_script(script, cwd=folder, RTJ_ASSIGNMENT=dumps(assignment), RTJ_STORE=store, **operator.environ).returncode


def test_the_operator_hears_hold_progress_the_checkpoint_and_done(operator: BeatServer, tmp_path: Path) -> None:
    assert run(operator, tmp_path, ASSIGNMENT) == 0
    assert steps_in(tmp_path / "store") == [4]
    phases = [beat.phase for beat in operator.beats]
    assert (Phase.HOLD in phases, phases[-1]) == (True, Phase.DONE)
    assert {(record.step, record.attempt, record.level) for record in operator.beats[-1].records} == {
        (4, 2, Level.COMMITTED),
        (4, 2, Level.VERIFIED),
    }


def test_a_worker_superseded_while_it_holds_says_so_and_ends_as_fenced(operator: BeatServer, tmp_path: Path) -> None:
    newer = Assignment(attempt=3, worker_index=0, workers=1, procs_per_worker=1, master_addr="127.0.0.1", master_port=1, run_id="r3")
    was_held = threading.Event()

    def supersede(beat: Beat) -> Reply:
        if beat.phase is Phase.HOLD:
            was_held.set()
        return Reply(Directive.CONTINUE, received_at=1.0, assignment=newer if beat.phase is Phase.HOLD else None)

    operator.respond = supersede
    assert run(operator, tmp_path, ASSIGNMENT) == 79
    assert was_held.is_set()
    last = operator.beats[-1]
    assert last.phase is Phase.STOPPED
    assert last.failure is not None
    assert (last.failure.outcome, last.failure.exit_code) == (Outcome.FENCED, 79)


def test_a_holding_worker_waits_until_an_assignment_is_named(operator: BeatServer, tmp_path: Path) -> None:
    newer = replace(ASSIGNMENT, attempt=3, run_id="r3")
    undecided = iter([None, None])
    operator.respond = lambda beat: Reply(
        Directive.CONTINUE, received_at=1.0, assignment=next(undecided, newer) if beat.phase is Phase.HOLD else None
    )
    assert run(operator, tmp_path, ASSIGNMENT) == 79
    assert sum(beat.phase is Phase.HOLD for beat in operator.beats) >= 3


def test_another_jobs_fence_is_told_with_how_long_its_run_is_quiet(operator: BeatServer, tmp_path: Path) -> None:
    fence = tmp_path / "store" / "default" / "fences" / "00000001"
    fence.parent.mkdir(parents=True)
    fence.write_text(dumps(Fence(1, "another-job", "pod", "nonce", None)))
    assert run(operator, tmp_path, ASSIGNMENT) == 0
    holds = [beat for beat in operator.beats if beat.phase is Phase.HOLD]
    assert (holds[0].highest_fence, holds[0].fence_job_uid) == (1, "another-job")
    assert holds[0].quiet_seconds is not None and 0 <= holds[0].quiet_seconds < 120
    assert operator.beats[-1].fence_job_uid is None


def test_a_save_that_fails_is_told_and_taken_back_by_the_next_verified_one(operator: BeatServer, tmp_path: Path) -> None:
    def repair(beat: Beat) -> Reply:
        if beat.save_failure is not None:
            (tmp_path / "store" / "default" / "tmp").unlink(missing_ok=True)
        return leads(beat)

    operator.respond = repair
    assert run(operator, tmp_path, ASSIGNMENT, STORE_FAILS_ONCE) == 0
    failures = [beat.save_failure for beat in operator.beats]
    told = next(failure for failure in failures if failure is not None)
    assert (told.step, told.count) == (1, 1)
    assert "store/default/tmp" in told.reason, told.reason
    assert failures[-1] is None
    assert steps_in(tmp_path / "store") == [2]


def test_an_archive_that_is_away_is_told_and_harms_nobody(operator: BeatServer, tmp_path: Path) -> None:
    assert run(operator, tmp_path, ASSIGNMENT, ARCHIVE_IS_AWAY) == 0
    last = operator.beats[-1]
    assert last.phase is Phase.DONE
    assert last.archive is not None and last.archive.failures >= 1
    assert f"{tmp_path}/away" in last.archive.reason
    assert steps_in(tmp_path / "store") == [2]


def test_an_exception_in_the_script_is_in_the_last_beat(operator: BeatServer, tmp_path: Path) -> None:
    assert run(operator, tmp_path, ASSIGNMENT, FAILING) == 1
    failure = operator.beats[-1].failure
    assert failure is not None and failure.first_failure is not None
    assert failure.first_failure.exception == "ZeroDivisionError: division by zero"
