"""What rtj-run and the operator behind it ask over the channel, and what they are told."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.launching import clean_environment
from tests.runtime.training import steps_in
from trainer_runtime.channel.messages import Ending, Holding, Proceed, Progress, Raised, Recorded, SaveAndStop
from trainer_runtime.channel.server import Joined, Received, Server
from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import Level, Phase
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.exit_report import Outcome

SCRIPT = """
from pathlib import Path
from tests.runtime.training import Training
training = Training(None)
for (x,) in training.run.steps(max_steps={steps}):
    training.learn(x)
    {each_step}
"""
SECONDS = 60


class Launcher:
    """Plays rtj-run: starts the script and answers what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "store").mkdir()
        self.said: queue.Queue[Any] = queue.Queue()
        self.server = Server(self._deliver)

    def _deliver(self, event: Joined | Received) -> None:
        if isinstance(event, Received):
            self.said.put(event.message)

    def start(self, assignment: Assignment, steps: int, each_step: str = "pass") -> subprocess.Popen[bytes]:
        script = self.folder / "script.py"
        script.write_text(SCRIPT.format(steps=steps, each_step=each_step))
        environment = clean_environment(
            RTJ_CHANNEL=self.server.path,
            RTJ_ASSIGNMENT=dumps(assignment),
            RTJ_STORE=(self.folder / "store").as_uri(),
            RTJ_SAVE_EVERY_STEPS="1000000",
        )
        with (self.folder / "stderr").open("w") as stderr:
            return subprocess.Popen([sys.executable, str(script)], cwd=self.folder, env=environment, stderr=stderr)

    def wait_for(self, kind: type[Any]) -> Any:
        while True:
            message = self.said.get(timeout=SECONDS)
            if isinstance(message, kind):
                return message


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.server.close()


def assignment(attempt: int) -> Assignment:
    return Assignment(attempt, worker_index=0, workers=1, procs_per_worker=1, master_addr="127.0.0.1", master_port=1, run_id=f"r{attempt}")


def test_a_worker_holds_then_tells_its_progress_its_checkpoints_and_that_it_is_done(launcher: Launcher) -> None:
    process = launcher.start(assignment(4), steps=5)
    holding = launcher.wait_for(Holding)
    assert (holding.inventory, holding.highest_fence) == ((), None)
    launcher.server.send(Proceed(assignment(4)), 0)
    progress = launcher.wait_for(Progress)
    assert (progress.phase, progress.step) == (Phase.TRAIN, 1)
    records = [launcher.wait_for(Recorded).record for _ in range(2)]
    assert [(record.step, record.attempt, record.level) for record in records] == [(5, 4, Level.COMMITTED), (5, 4, Level.VERIFIED)]
    assert launcher.wait_for(Ending).outcome is Outcome.DONE
    assert process.wait(SECONDS) == 0


def test_a_worker_that_is_superseded_while_it_holds_ends_as_fenced(launcher: Launcher) -> None:
    process = launcher.start(assignment(4), steps=5)
    launcher.wait_for(Holding)
    launcher.server.send(Proceed(assignment(5)), 0)
    assert launcher.wait_for(Ending).outcome is Outcome.FENCED
    assert process.wait(SECONDS) == 79
    assert "supersedes" in (launcher.folder / "stderr").read_text()


def test_an_order_to_save_and_stop_ends_in_a_verified_checkpoint_and_its_exit_code(launcher: Launcher) -> None:
    process = launcher.start(assignment(1), steps=10**9)
    launcher.wait_for(Holding)
    launcher.server.send(Proceed(assignment(1)), 0)
    launcher.wait_for(Progress)
    launcher.server.send(SaveAndStop(30.0), 0)
    ending = launcher.wait_for(Ending)
    assert ending.outcome is Outcome.PREEMPTED_SAVED
    assert process.wait(SECONDS) == 75
    (step,) = steps_in(launcher.folder / "store")
    assert ending.message == f"stopped at step {step}"
    (mark,) = (launcher.folder / "store" / "default" / "steps").glob("*/verified.json")
    assert json.loads(mark.read_text())["level"]


def test_an_exception_in_the_loop_is_told_before_the_process_ends(launcher: Launcher) -> None:
    process = launcher.start(assignment(1), steps=10, each_step="1 / (3 - training.run.global_step)")
    launcher.wait_for(Holding)
    launcher.server.send(Proceed(assignment(1)), 0)
    raised = launcher.wait_for(Raised)
    assert (raised.exception, raised.step) == ("ZeroDivisionError: division by zero", 3)
    assert process.wait(SECONDS) == 1
