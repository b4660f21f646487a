"""Bytes are read and filled where they lie, and no tensor bears a mark of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from trainer_runtime.state.raw import bytes_of


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6.0), torch.tensor(1.5), torch.arange(6).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16), torch.arange(8.0)[2:5]],
    ids=["one axis", "no axis", "two axes", "a type that numpy lacks", "a part"],
)
def test_bytes_are_those_of_the_tensor_and_what_is_written_to_them_is_in_it(tensor: torch.Tensor) -> None:
    raw = bytes_of(tensor)
    assert raw.tobytes() == bytes(tensor.reshape(-1).view(torch.uint8).tolist())
    raw[:] = bytes(len(raw))
    assert not tensor.any()


def test_a_tensor_without_elements_has_no_bytes() -> None:
    assert bytes_of(torch.zeros(0, 3)).tobytes() == b""


def test_the_storage_can_still_be_resized() -> None:
    tensor = torch.arange(6.0)
    bytes_of(tensor)
    tensor.untyped_storage().resize_(0)


def test_memory_lives_for_as_long_as_a_view_of_it() -> None:
    tensor = torch.full((1000,), 7, dtype=torch.uint8)
    gone = weakref.ref(tensor)
    raw = bytes_of(tensor)[10:20]
    del tensor
    gc.collect()
    assert gone() is not None and raw.tobytes() == b"\x07" * 10
    del raw
    gc.collect()
    assert gone() is None
