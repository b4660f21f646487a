"""Asked to end: one agreed step, as much as the time allows, an honest word; and nothing new after a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.emergency_job import LITTLE_SECONDS
from tests.runtime.launching import run_ranks, run_script
from tests.runtime.training import steps_in

RANKS = 3
Launch = tuple[Path, list[Any], str]
"""The folder, each rank's exit code and problem, and what all said on standard error."""


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("emergency")
    ended = run_ranks(RANKS, Path(__file__).with_name("emergency_job.py"), str(folder), cwd=folder)
    assert ended.returncode != 0
    assert "rank 1 fails" in ended.stderr
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)], ended.stderr


def test_too_little_time_on_one_rank_makes_all_of_them_end_unsaved_at_one_step(launch: Launch) -> None:
    folder, results, said = launch
    assert {code for code, _problem in results} == {76}
    assert steps_in(folder / "store", "no-time") == [3]
    messages = {line.partition("preempted_unsaved: ")[2] for line in said.splitlines() if "preempted_unsaved" in line}
    assert {message.partition(",")[0] for message in messages} == {"stopped at step 7"}
    assert all("the quickest save took" in message and "step 3 is" in message for message in messages)


def test_a_gang_of_which_one_rank_failed_stages_nothing_new(launch: Launch) -> None:
    folder, _results, said = launch
    assert steps_in(folder / "store", "failing") == [3]
    assert "stopped at step" not in said.partition("rank 1 fails")[2]


SCRIPT = """
import os, signal
from pathlib import Path
from tests.runtime.training import Training
training = Training(Path("store"), save_every_steps=10**6)
for (x,) in training.run.steps(max_steps=50):
    training.learn(x)
    if training.run.global_step == 3 and {saves}:
        training.run.save(block=True)
    if training.run.global_step == 7:
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("saves", "steps", "word"),
    [(True, [4], "the quickest save took"), (False, None, "nothing was saved before")],
    ids=["a save was measured, and is too slow", "no save was measured, so one is tried"],
)
def test_without_time_it_ends_with_76_and_says_what_there_is(tmp_path: Path, saves: bool, steps: list[int] | None, word: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(saves=saves))
    ended = run_script(script, cwd=tmp_path, RTJ_GRACE_SECONDS=str(LITTLE_SECONDS))
    assert ended.returncode == 76, ended.stderr
    assert "preempted_unsaved: stopped at step 9, not saved: " in ended.stderr
    assert word in ended.stderr
    if steps is not None:
        assert steps_in(tmp_path / "store") == steps
