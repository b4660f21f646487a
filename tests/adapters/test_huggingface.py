"""The adapter's promise on real Trainers: killed twice and resumed twice, every leaf and every loss is the uninterrupted run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.huggingface_job import KINDS
from tests.runtime.launching import run_ranks, run_script

SCRIPT = Path(__file__).with_name("huggingface_job.py")
ALONE = [kind for kind in KINDS if kind != "ddp"]
RANKS = 3


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    ended = run_script(SCRIPT, str(folder), *ALONE, cwd=folder)
    assert ended.returncode == 0, ended.stderr[-6000:]
    result: dict[str, Any] = json.loads((folder / "0.json").read_text())
    return result


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("together")
    ended = run_ranks(RANKS, SCRIPT, str(folder), "ddp", cwd=folder)
    assert ended.returncode == 0, ended.stderr[-6000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def assert_equal(found: dict[str, Any], kind: str) -> None:
    whole, killed = found["whole"], found["killed"]
    assert [launch["from"] for launch in killed] == [None, *KINDS[kind].saves]
    assert {step for step, _loss in whole["losses"]} == set(range(1, KINDS[kind].steps + 1))
    ever = {(step, loss) for launch in killed for step, loss in launch["losses"]}
    assert ever == {(step, loss) for step, loss in whole["losses"]}
    assert killed[-1]["leaves"] == whole["leaves"]


@pytest.mark.parametrize("kind", ALONE)
def test_a_trainer_that_was_killed_twice_is_the_one_that_was_not(alone: dict[str, Any], kind: str) -> None:
    assert_equal(alone[kind], kind)


@pytest.mark.parametrize("rank", range(RANKS))
def test_under_ddp_every_rank_is(together: list[dict[str, Any]], rank: int) -> None:
    assert_equal(together[rank]["ddp"], "ddp")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("auto_find_batch_size", "auto_find_batch_size: cannot be resumed exactly"),
        ("ignore_data_skip", "ignore_data_skip: cannot"),
        ("best", "load_best_model_at_end: cannot"),
        ("worldSize", "allow: worldSize"),
        ("data", "data: the Trainer has its own"),
        ("iterable", "train_dataset: a Stream has no length and index"),
    ],
)
def test_what_cannot_be_promised_is_refused_by_name(alone: dict[str, Any], what: str, message: str) -> None:
    assert message in alone["refusals"][what]
    assert alone["refusals"]["nothing"] is None


def test_a_dataset_that_draws_random_numbers_between_steps_is_refused_when_it_does(alone: dict[str, Any]) -> None:
    code, message = alone["noisy"]
    assert code == 78
    assert "random numbers were drawn in the training process between step 1 and the next one" in message


def test_other_training_arguments_are_another_run(alone: dict[str, Any]) -> None:
    code, message = alone["other rate"]
    assert code == 77
    assert "config.training_arguments.learning_rate: saved 0.01, now 0.02" in message


def test_a_trainer_that_is_started_by_hand_is_told_how(alone: dict[str, Any]) -> None:
    code, message = alone["by hand"]
    assert code == 78
    assert ".train(trainer), not by trainer.train()" in message
