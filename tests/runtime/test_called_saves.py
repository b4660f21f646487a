"""What run.save() asks for is done, tags and all, or it is said why not; it is never dropped in silence."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.training import Training, steps_in
from trainer_runtime.contract.codec import loads
from trainer_runtime.contract.manifest import Manifest
from trainer_runtime.loop import ending
from trainer_runtime.loop.conductor import UNFINISHED_GRADIENTS


def manifests_in(store: Path, run: str = "default") -> dict[tuple[int, int], Manifest]:
    """The manifests of a run by step and attempt."""
    found = [loads(Manifest, path.read_bytes()) for path in sorted((store / run / "steps").glob("*/manifest.json"))]
    return {(manifest.step, manifest.attempt): manifest for manifest in found}


def tags_in(store: Path) -> dict[tuple[int, int], tuple[str, ...]]:
    return {name: manifest.tags for name, manifest in manifests_in(store).items()}


def accumulate(training: Training, turns: int, *, then_step: bool = False) -> None:
    """Make turns that only add up gradients; in the last of them the optimizer may step."""
    for number in range(turns):
        with training.run.step():
            (x,) = training.run.next_batch()
            training.model(x).sum().backward()
            if then_step and number == turns - 1:
                training.optimizer.step()
                training.optimizer.zero_grad()


def test_the_save_of_a_preempted_run_has_the_tag_that_was_asked_for_in_its_last_turn(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending._SIGTERM, "at", None)
    training = Training(store)
    with pytest.raises(SystemExit) as problem:
        for (x,) in training.run.steps(max_steps=9):
            training.learn(x)
            if training.run.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            if training.run.global_step == 3:
                training.run.save(tag="stage-end")
    training.run.close()
    assert problem.value.code == 75
    assert tags_in(store) == {(4, 1): ("stage-end",)}


def test_the_last_save_has_the_tag_of_a_call_whose_turn_was_left(store: Path) -> None:
    training = Training(store)
    for (x,) in training.run.steps(max_steps=9):
        if training.run.global_step == 2:
            training.run.save(tag="stage-end")
            break
        training.learn(x)
    training.run.finish()
    training.run.close()
    assert tags_in(store) == {(2, 1): ("stage-end",)}


def test_a_call_whose_turn_was_left_and_never_came_again_is_said_to_be_lost(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(store)
    for _ in training.run.steps(max_steps=9):
        training.run.save(tag="stage-end")
        break
    training.run.close()
    assert "run.save() was called" in caplog.text


def test_a_call_behind_a_loop_that_was_left_tags_the_save_that_is_due_at_that_step(store: Path) -> None:
    training = Training(store, save_every_steps=4)
    for (x,) in training.run.steps(max_steps=9):
        training.learn(x)
        if training.run.global_step == 3:
            break
    training.run.save(tag="final", block=True)
    training.run.close()
    assert tags_in(store) == {(4, 1): ("final",)}


def test_two_calls_in_one_turn_are_one_save_with_both_tags(store: Path) -> None:
    training = Training(store)
    for (x,) in training.run.steps(max_steps=3):
        training.learn(x)
        if training.run.global_step == 0:
            training.run.save(tag="best", block=True)
            training.run.save(tag="stage-end")
            training.run.save()
        else:
            assert training.run.last_verified is not None, "one of the calls wanted to wait"
    training.run.close()
    assert tags_in(store) == {(1, 1): ("best", "stage-end"), (3, 1): ()}


def test_a_tag_that_comes_too_late_is_named_in_the_log_and_costs_no_run(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(store)
    for (x,) in training.run.steps(max_steps=3):
        training.learn(x)
        if training.run.global_step == 2:
            training.run.save(tag="best")
    training.run.save(tag="best", block=True)
    training.run.save(block=True)
    assert "save: tag" not in caplog.text
    training.run.save(tag="final", block=True)
    training.run.close()
    assert "save: tag final: step 3 is saved and verified already, without it" in caplog.text
    assert tags_in(store) == {(3, 1): ("best",)}


def test_a_tag_for_the_step_that_was_resumed_from_makes_a_checkpoint_that_resumes_alike(store: Path) -> None:
    whole = Training(store, run="whole").train(12)
    Training(store).train(3)
    for _ in range(2):
        training = Training(store)
        training.run.save(tag="kept", block=True)
        training.run.close()
    assert tags_in(store) == {(3, 1): (), (3, 2): ("kept",)}, "the second time it has the tag already"
    again = Training(store).train(12)
    assert again.run.resumed_from is not None
    assert again.run.resumed_from.attempt == 2
    assert again.losses == {step: loss for step, loss in whole.losses.items() if step > 3}


def test_a_save_right_after_beginning_from_another_run_resumes_alike(store: Path) -> None:
    whole = Training(store, run="whole").train(12)
    Training(store, run="source").train(3)
    begun = Training(store, run="own", resume_from=(store / "source" / "steps" / "0000000003-00000001").as_uri())
    begun.run.save(block=True)
    begun.run.close()
    assert steps_in(store, "own") == [3]
    assert Training(store, run="own").train(12).losses == {step: loss for step, loss in whole.losses.items() if step > 3}


@pytest.mark.parametrize("block", [False, True])
def test_a_save_between_turns_of_an_accumulation_waits_for_the_optimizer(
    store: Path, block: bool, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(store)
    accumulate(training, 2)
    training.run.save(tag="kept", block=block)
    assert ("save: block=True between turns, after step 2" in caplog.text) == block
    accumulate(training, 2, then_step=True)
    assert not block or training.run.last_verified is not None
    training.run.close()
    assert tags_in(store) == {(4, 1): ("kept",)}


@pytest.mark.parametrize("keywords", [{}, {"tag": "kept"}], ids=["nothing was asked for", "a save waits"])
def test_a_run_that_ends_within_an_accumulation_says_what_its_last_checkpoint_lacks(
    store: Path, caplog: pytest.LogCaptureFixture, keywords: dict[str, Any]
) -> None:
    training = Training(store)
    accumulate(training, 2, then_step=True)
    accumulate(training, 1)
    if keywords:
        training.run.save(**keywords)
    training.run.finish()
    training.run.save(block=True)  # there is nothing left to wait for
    training.run.close()
    (manifest,) = manifests_in(store).values()
    assert (manifest.step, manifest.tags, manifest.not_saved) == (3, tuple(keywords.values()), (UNFINISHED_GRADIENTS,))
    assert "after step 3, in the middle of an accumulation" in caplog.text
