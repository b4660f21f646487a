"""What a script reports and asks for decides what stays, and what goes into the archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.endings import exit_of
from tests.runtime.training import Training, steps_in
from trainer_runtime.errors import ConfigurationError


def metrics_of(store: Path, step: int) -> dict[str, float]:
    (directory,) = (store / "default" / "steps").glob(f"{step:010d}-*")
    metrics: dict[str, float] = json.loads((directory / "manifest.json").read_text())["metrics"]
    return metrics


def test_the_best_by_a_reported_metric_stays_and_its_value_is_in_the_manifest(store: Path) -> None:
    training = Training(store, keep_last=1, keep_best="accuracy:max")
    accuracy = {2: 0.5, 4: 0.9, 6: 0.7, 8: 0.8}
    for (x,) in training.run.steps(max_steps=8):
        training.learn(x)
        step = training.run.global_step + 1
        if step in accuracy:
            training.run.report(loss=float(step), accuracy=torch.tensor(accuracy[step], dtype=torch.float64))
            training.run.save(block=True)
    training.run.close()
    assert steps_in(store) == [4, 8]
    assert metrics_of(store, 4) == {"accuracy": 0.9, "loss": 4.0}


def test_a_metric_counts_for_the_next_checkpoint_and_for_no_later_one(store: Path) -> None:
    training = Training(store, save_every_steps=2)
    for (x,) in training.run.steps(max_steps=4):
        training.learn(x)
        if training.run.global_step == 0:
            training.run.report(eval_loss=3.0)
        if training.run.global_step == 1:
            training.run.save(block=True)
    training.run.close()
    assert metrics_of(store, 2)["eval_loss"] == 3.0
    assert "eval_loss" not in metrics_of(store, 4)


def test_a_metric_that_is_not_one_number_is_named(store: Path) -> None:
    training = Training(store)
    wrong: Any = "low"  # as a script without types may give it
    with pytest.raises(SystemExit) as problem:
        training.run.report(eval_loss=wrong)
    training.run.close()
    assert exit_of(problem) == (78, ConfigurationError)
    assert "report: eval_loss is not one number" in str(problem.value.__cause__)


def test_tagged_checkpoints_and_every_nth_go_to_the_archive_and_come_back_from_it(store: Path, tmp_path: Path) -> None:
    archive, disk = tmp_path / "archive", tmp_path / "disk"
    archive.mkdir()
    disk.mkdir()
    whole = Training(store, run="whole").train(8)
    training = Training(store, archive=archive, archive_every_steps=4, local=disk)
    for (x,) in training.run.steps(max_steps=5):
        training.learn(x)
        if training.run.global_step in (2, 3):
            training.run.save(tag="stage-end" if training.run.global_step == 2 else None, block=True)
    training.run.close()
    assert steps_in(archive) == [3, 4]
    assert [path.name for path in sorted((disk / "default" / "steps").iterdir())] == ["0000000004-00000001", "0000000005-00000001"]

    for path in (store / "default" / "steps" / "0000000005-00000001").rglob("*"):
        if path.suffix == ".safetensors":
            path.unlink()
    again = Training(store, archive=archive, archive_every_steps=4, local=disk).train(8)
    assert again.run.resumed_from is not None
    assert again.run.resumed_from.step == 5, "the data came from the local disk alone"
    assert {**training.losses, **again.losses} == whole.losses
