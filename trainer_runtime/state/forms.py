"""Whether tensors still have the form in which they were seen: class, layout, device, dtype, sizes, strides, the flags of autograd, and
whether they are conjugated or negated lazily. Not what they hold, and not where it lies.

Saving asks it of every tensor in every save, while training stands still: what follows from the form (what a leaf says, its place in a
file, how it may be copied) is remembered for as long as the form is. torch.compile asks the same of a compiled function's arguments before
every call. The object that it asks with answers for all tensors at once, in a quarter of the time that our own questions take one by one
(`benchmarks.choices`). It is no public name of torch, so it may be gone some day: then we ask ourselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

import torch

_QUESTIONS: Final[tuple[Callable[[Any], object], ...]] = (
    type,  # these three first: the others cannot be asked of a tensor that is sparse or has no memory
    attrgetter("layout"),
    attrgetter("device"),
    attrgetter("dtype"),
    attrgetter("requires_grad"),
    torch.Tensor.is_inference,
    torch.Tensor.size,
    torch.Tensor.stride,
    torch.Tensor.is_conj,
    torch.Tensor.is_neg,
)
_IS_NESTED: Final = attrgetter("is_nested")
"""Asked first, because torch's check ends the process when one is nested."""
_AT_ONCE: Final = 256
"""So many tensors stay in the processor's cache from one question to the next."""


class _Check(Protocol):
    def check(self, *tensors: torch.Tensor) -> bool:
        """Whether these, in this order, have the forms of those that it was made of. May be False when an object comes twice."""


class Forms:
    """The forms of ``tensors``, in their order. Keeps none of them alive."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        first: dict[int, int] = {}
        places = [first.setdefault(id(tensor), place) for place, tensor in enumerate(tensors)]
        self._count = len(tensors)
        self._repeated = {place: original for place, original in enumerate(places) if place != original}
        self._check = make_check(self._without_repeated(tensors))

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether ``tensors`` have these forms; where one object came twice, one must come twice again. May be False without need, as under
        another autocast or dispatch mode, and always is when one is sparse or nested. Never True without reason."""
        return (
            self._check is not None
            and len(tensors) == self._count
            and not any(map(_IS_NESTED, tensors))
            and all(tensors[place] is tensors[original] for place, original in self._repeated.items())
            and self._check.check(*self._without_repeated(tensors))
        )

    def _without_repeated(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if not self._repeated:
            return tensors
        return [tensor for place, tensor in enumerate(tensors) if place not in self._repeated]


class OwnCheck:
    """Our own questions, one by one, each of all tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._seen = [list(map(question, some)) for some, question in _asked(tensors)]

    def check(self, *tensors: torch.Tensor) -> bool:
        """See _Check. It ends at the first answer that is another: the questions after it may not be possible to ask."""
        return all(list(map(question, some)) == seen for (some, question), seen in zip(_asked(tensors), self._seen, strict=True))


def make_check(tensors: Sequence[torch.Tensor]) -> _Check | None:
    """Return torch's check of these tensors, or our own where this torch has none that is called so. None: one of them is nested or
    sparse, and so without sizes or strides to be compared."""
    if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
        return None
    try:
        check: _Check = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    except (AttributeError, TypeError):  # there is none here, or it is made in another way than it was
        return OwnCheck(tensors)
    return check


def _asked(tensors: Sequence[torch.Tensor]) -> list[tuple[Sequence[torch.Tensor], Callable[[Any], object]]]:
    return [(tensors[begin : begin + _AT_ONCE], question) for begin in range(0, len(tensors), _AT_ONCE) for question in _QUESTIONS]
