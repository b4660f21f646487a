"""What a script can get wrong ends the process as bad configuration, before any training, in one error that names it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainer_runtime as tr
from tests.runtime.endings import exit_of
from tests.runtime.training import Training, steps_in
from trainer_runtime.errors import ConfigurationError, SaveFailed


class Counter:
    """An object with a state of its own."""

    def __init__(self, value: Any = 1) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class WithBuffer(nn.Module):
    """A parameter, and a buffer of some kind."""

    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("odd", buffer)


KEYWORDS: dict[str, tuple[dict[str, Any], str]] = {
    "a model that is none": ({"model": {"weight": 1}}, "model: a dict is not a torch.nn.Module"),
    "an optimizer that is none": ({"optimizer": [1]}, "optimizer: a list has no state_dict"),
    "a tokenizer instead of its path": ({"tokenizer": object()}, "tokenizer: a object is not a path"),
    "a name that a checkpoint needs": ({"rng": Counter()}, "rng: a checkpoint holds something else under this name"),
    "another such name": ({"gradients": Counter()}, "gradients: a checkpoint holds something else"),
    "a value of an unknown type": ({"meter": Counter({1, 2})}, "meter/value: a builtins.set cannot be saved"),
    "a tensor of an unknown type": ({"meter": Counter(torch.ones(1, dtype=torch.complex128))}, "torch.complex128 cannot be saved"),
    "a sparse buffer": ({"model": WithBuffer(torch.eye(2).to_sparse())}, "model: odd is a torch.sparse_coo tensor"),
    "an expanded buffer": ({"model": WithBuffer(torch.zeros(1).expand(3))}, "model: odd is an expanded tensor"),
    "a conjugated buffer": ({"model": WithBuffer(torch.ones(2, dtype=torch.complex64).conj())}, "model: odd is a view that negates"),
    "a buffer that has no values": ({"model": WithBuffer(torch.empty(2, device="meta"))}, "model: odd lies on the meta device"),
    "a config of an unknown type": ({"config": {"a": object()}}, "config.a: a object cannot be compared"),
}


@pytest.mark.parametrize(("keywords", "message"), KEYWORDS.values(), ids=KEYWORDS)
def test_a_keyword_that_cannot_be_used_is_refused_by_attach(store: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit) as problem:
        tr.attach(**{"model": nn.Linear(1, 1), "store": store, **keywords})
    assert problem.value.code == 78
    assert isinstance(problem.value.__cause__, ConfigurationError)
    assert message in str(problem.value.__cause__)


@pytest.mark.parametrize("is_given", [False, True])
def test_a_scheduler_that_attach_was_not_given_is_refused_at_the_first_step(store: Path, is_given: bool) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    run = tr.attach(model=model, optimizer=optimizer, store=store, scheduler=scheduler if is_given else None)

    def train() -> None:
        for _ in run.steps(max_steps=2):
            model(torch.ones(1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    if is_given:
        train()
    else:
        with pytest.raises(SystemExit) as problem:
            train()
        assert exit_of(problem) == (78, ConfigurationError)
        assert "make it before attach() and give it as scheduler=" in str(problem.value.__cause__)
    run.close()


CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "steps without a limit": (lambda run: run.steps(), "steps: give max_steps, epochs, or both"),
    "max_steps in words": (lambda run: run.steps(max_steps="many"), "max_steps: 'many' is not a whole number >= 0"),
    "max_steps below 0": (lambda run: run.steps(max_steps=-1), "max_steps: -1 is not a whole number >= 0"),
    "max_steps without end": (lambda run: run.steps(max_steps=float("inf")), "max_steps: inf is not a whole number"),
    "half an epoch": (lambda run: run.steps(epochs=0.5), "epochs: 0.5 is not a whole number"),
    "epochs that are a yes": (lambda run: run.steps(epochs=True), "epochs: True is not a whole number"),
    "no micro batch": (lambda run: run.steps(max_steps=1, micro_batches=0), "micro_batches: 0 is not a whole number >= 1"),
    "an unknown phase": (lambda run: run.phase("lunch").__enter__(), "phase: 'lunch' is not one of compile, eval"),
    "a loss in words": (lambda run: run.report(loss="low"), "report: loss is not one number"),
    "many losses": (lambda run: run.report(loss=torch.ones(3)), "report: loss is not one number"),
    "a tag that is a number": (lambda run: run.save(tag=5), "save: tag 5 is a int; give text"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_an_argument_that_cannot_be_used_is_refused_where_it_is_given(store: Path, call: Callable[[tr.Run], object], message: str) -> None:
    training = Training(store)
    with pytest.raises(SystemExit) as problem:
        call(training.run)
    training.run.close()
    assert exit_of(problem) == (78, ConfigurationError)
    assert message in str(problem.value.__cause__)


def test_numpy_numbers_count_as_numbers(store: Path) -> None:
    number: Callable[[int], Any] = np.int64  # the keywords ask for an int, and take what counts as one
    sampler = tr.ResumableSampler(number(20), batch_size=number(4), seed=number(3))
    run = tr.attach(
        model=nn.Linear(4, 1),
        data=DataLoader(TensorDataset(torch.ones(20, 4)), batch_sampler=sampler),
        store=store,
        save_every_steps=number(1),
    )
    for _ in run.steps(max_steps=number(2)):
        run.report(loss=np.float32(1.5))
    run.close()
    assert steps_in(store) == [1, 2]


def test_a_limit_of_the_process_costs_the_save_and_says_so(store: Path) -> None:
    training = Training(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(SaveFailed, match="staging a checkpoint needs .* of shared memory.*ulimit"):
            for (x,) in training.run.steps(max_steps=2):
                training.learn(x)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    training.run.close()
