"""A store is used beside training, in the same process: it may not draw from the random numbers that training draws from."""

from __future__ import annotations

import random
from collections.abc import Callable

import botocore.retries.standard
import botocore.retryhandler
import botocore.utils
import numpy as np
import pytest
import torch

from tests.store.hostile import Hostile, Trouble
from tests.store.servers import new_bucket, store_at
from trainer_runtime.store.base import Store

LOOKS: dict[str, Callable[[Store], object]] = {
    "PutObject": lambda store: store.create("run/fences/00000002", b"2"),
    "GetObject": lambda store: store.read("run/fences/00000001"),
    "HeadObject": lambda store: store.size("run/fences/00000001"),
    "ListObjectsV2": lambda store: store.list("run/fences"),
}


def drawn_from() -> tuple[object, ...]:
    """Return where the generators that a script uses stand."""
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize("operation", LOOKS)
def test_a_request_that_is_sent_again_leaves_the_random_numbers_alone(hostile: Hostile, operation: str) -> None:
    store = store_at(hostile.endpoint, new_bucket(hostile.endpoint), "checkpoints")
    store.create("run/fences/00000001", b"1")
    trouble = Trouble(operation, 503, times=3)
    hostile.troubles.append(trouble)
    before = drawn_from()
    LOOKS[operation](store)
    assert trouble.times == 0, "it was sent again"
    assert drawn_from() == before


@pytest.mark.parametrize("module", [botocore.retries.standard, botocore.retryhandler, botocore.utils], ids=lambda module: module.__name__)
def test_boto_waits_by_numbers_of_our_own(module: object) -> None:
    assert isinstance(vars(module)["random"], random.Random)
