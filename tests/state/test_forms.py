"""A form is held until anything changes that a checkpoint's entry or a copy follows from, whoever it is that is asked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer_runtime.state import forms
from trainer_runtime.state.forms import Forms, OwnCheck

Change = Callable[[torch.Tensor], object]
TORCHS = forms.make_check([torch.zeros(1)]).__class__


@pytest.fixture(params=["torch's check", "our own"], autouse=True)
def who_is_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "our own":
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")


def set_data(make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(tensor: torch.Tensor) -> None:
        tensor.data = make(tensor.data)

    return change


def become_parameter(tensor: torch.Tensor) -> None:
    tensor.__class__ = nn.Parameter


def point_elsewhere(tensor: torch.Tensor) -> None:
    tensor.set_(torch.ones(100, dtype=tensor.dtype).untyped_storage(), 3, tensor.size(), tensor.stride())


CHANGES: dict[str, tuple[Change, bool]] = {
    "other values": (lambda tensor: tensor.add_(1), True),
    "other memory": (set_data(torch.clone), True),
    "another place of other memory": (point_elsewhere, True),
    "another dtype": (set_data(lambda tensor: tensor.to(torch.complex128)), False),
    "another dtype of the same size": (set_data(lambda tensor: torch.view_as_real(tensor).view(torch.float64).squeeze(-1)), False),
    "other sizes": (lambda tensor: tensor.resize_(2, 8), False),
    "one axis more": (lambda tensor: tensor.unsqueeze_(0), False),
    "other strides": (lambda tensor: tensor.t_(), False),
    "conjugated": (set_data(torch.conj), False),
    "negated": (set_data(lambda tensor: tensor._neg_view()), False),
    "asking for a gradient": (lambda tensor: tensor.requires_grad_(), False),
    "another class": (become_parameter, False),
}


@pytest.mark.parametrize(("change", "holds"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", [0, 300])
def test_a_form_holds_until_what_follows_from_it_changes(change: Change, holds: bool, place: int) -> None:
    tensors = [torch.ones(4, 4, dtype=torch.complex64) for _ in range(400)]
    seen = Forms(tensors)
    assert seen.hold(tensors)
    change(tensors[place])
    assert seen.hold(tensors) is holds


def test_other_tensors_of_the_same_forms_hold_them_and_fewer_more_or_turned_round_do_not() -> None:
    tensors = [torch.ones(3), torch.ones(4)]
    seen = Forms(tensors)
    assert seen.hold([torch.zeros(3), torch.zeros(4)])
    assert not seen.hold(tensors[:1])
    assert not seen.hold([*tensors, torch.ones(3)])
    assert not seen.hold(tensors[::-1])
    assert Forms([]).hold([])


def test_one_object_that_comes_twice_must_come_twice_again() -> None:
    tied, other = torch.ones(3), torch.ones(3)
    assert Forms([tied, other, tied]).hold([tied, other, tied])
    assert Forms([tied, other, tied]).hold([other, tied, other])
    assert not Forms([tied, other, tied]).hold([tied, other, other])
    assert not Forms([tied, other, tied]).hold([tied, other, torch.ones(3)])


def test_a_tensor_made_in_inference_mode_is_of_another_form() -> None:
    seen = Forms([torch.ones(3)])
    with torch.inference_mode():
        made_there = torch.ones(3)
    assert not seen.hold([made_there])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("make", [lambda: torch.eye(3).to_sparse(), lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])])
def test_a_tensor_without_strides_or_sizes_holds_no_form_and_ends_no_process(make: Callable[[], torch.Tensor]) -> None:
    strange = make()
    assert not Forms([torch.ones(3), strange]).hold([torch.ones(3), strange])
    assert not Forms([torch.ones(3), torch.ones(3)]).hold([torch.ones(3), strange])


def test_no_tensor_is_kept_alive() -> None:
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    seen = Forms([tensor])
    del tensor
    gc.collect()
    assert gone() is None and seen.hold([torch.ones(3)])


def made_in_another_way(*tensors: torch.Tensor) -> None:
    """Knows none of the keywords of today."""


@pytest.mark.usefixtures("who_is_asked")
@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        pytest.param(torch._C._dynamo.guards, "TensorGuards", made_in_another_way, id="made in another way"),
        pytest.param(torch._C._dynamo.guards, "TensorGuards", None, id="another thing by that name"),
        pytest.param(torch._C._dynamo, "guards", object(), id="moved to another module"),
        pytest.param(torch._C, "_dynamo", object(), id="a torch without any of it"),
    ],
)
def test_where_torch_has_no_such_check_we_ask_ourselves(holder: object, name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, name, value, raising=False)
    assert isinstance(forms.make_check([torch.ones(3)]), OwnCheck)
