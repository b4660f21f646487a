from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from trainer_runtime.state import rng, tree


def draws() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_every_generator_goes_on_where_it_was_also_through_json() -> None:
    draws()  # leaves half a pair of normal numbers behind in python and numpy
    state = rng.gather()
    expected = draws()
    draws()
    rng.restore(tree.decode(json.loads(json.dumps(tree.encode(state)))))
    assert draws() == expected


def test_gathering_draws_nothing() -> None:
    state = rng.gather()
    assert rng.gather() == state


def test_the_kinds_name_every_generator() -> None:
    kinds = rng.kinds(rng.gather())
    assert kinds[:3] == ["python", "numpy:MT19937", "torch"]
    assert len(kinds) == 3 + torch.cuda.device_count()


@pytest.mark.cuda
def test_a_cuda_generator_goes_on_where_it_was() -> None:
    state = rng.gather()
    expected = torch.rand(3, device="cuda")
    rng.restore(state)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
