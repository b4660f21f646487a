"""A turn that is left before its boundary, by `break` or by an exception that the script catches: nothing is lost, skipped or torn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import trainer_runtime as tr
from tests.runtime.training import Training, steps_in


class Recorded(Training):
    """Training that writes down the batches it has learned from."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.learned: list[torch.Tensor] = []

    def learn(self, x: torch.Tensor) -> None:
        super().learn(x)
        self.learned.append(x)


def leave_by_break(training: Recorded, at: int, *, stepped: bool) -> None:
    for (x,) in training.run.steps(max_steps=8):
        if training.run.global_step == at:
            if stepped:
                training.learn(x)
            break
        training.learn(x)


def leave_by_exception(training: Recorded, at: int, *, stepped: bool) -> None:
    while training.run.global_step < at:
        with training.run.step():
            training.learn(training.run.next_batch()[0])
    try:
        with training.run.step():
            (x,) = training.run.next_batch()
            if stepped:
                training.learn(x)
            raise ValueError("a batch that the script does not like")
    except ValueError:
        return


WAYS = [pytest.param(leave_by_break, id="break"), pytest.param(leave_by_exception, id="a caught exception")]
WEIGHTS = [pytest.param(False, id="before the optimizer stepped"), pytest.param(True, id="after it")]
Leave = Callable[..., None]


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("stepped", WEIGHTS)
def test_the_next_loop_learns_from_every_batch_once(tmp_path: Path, leave: Leave, stepped: bool) -> None:
    whole = Recorded(tmp_path / "whole")
    whole.train(8)
    left = Recorded(tmp_path / "left")
    leave(left, 3, stepped=stepped)
    left.train(8)
    assert len(left.learned) == len(whole.learned) == 8
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(left.learned, whole.learned, strict=True))


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize(("stepped", "saved"), [(False, 3), (True, 4)], ids=["before the optimizer stepped", "after it"])
def test_a_save_after_it_is_of_the_step_that_the_weights_are_at(store: Path, leave: Leave, stepped: bool, saved: int) -> None:
    left = Recorded(store)
    leave(left, 3, stepped=stepped)
    left.run.save(block=True)
    left.run.close()
    assert steps_in(store) == [saved]
    resumed = Training(store)
    assert all(torch.equal(here, there) for here, there in zip(left.model.parameters(), resumed.model.parameters(), strict=True))
    (x,) = next(iter(resumed.run.steps(max_steps=8)))
    whole = Recorded(store.with_name("whole"))
    whole.train(8)
    assert torch.equal(x, whole.learned[saved])


@pytest.mark.parametrize("leave", WAYS)
def test_a_loop_behind_it_makes_no_step_beyond_its_end(store: Path, leave: Leave) -> None:
    left = Recorded(store)
    leave(left, 3, stepped=True)
    left.train(4)
    assert (left.run.global_step, len(left.learned)) == (4, 4)


def test_a_loop_without_data_goes_on_with_the_step_that_was_left(store: Path) -> None:
    run = tr.attach(model=nn.Linear(1, 1), store=store)
    seen = []
    for number in run.steps(max_steps=4):
        seen.append(number)
        if len(seen) == 2:
            break
    seen += run.steps(max_steps=4)
    run.close()
    assert seen == [0, 1, 1, 2, 3]
