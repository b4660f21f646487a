"""What the last save gathered, for as long as it holds: names, ties and places of leaves, and never a tensor.

Working them out costs 7 µs a leaf in every save, while training stands still, and they seldom change. All of them follow from what is
looked at here: which modules, parameters, buffers and slots there are, under which names, which of them are one object or one memory, and
of each tensor what a leaf says of it. A look is taken in every save; where it equals the last one, so does what followed from it. The
tensors, the versions of frozen ones and the gradients that are there are taken from the live objects every time.

A look is made of names, classes, shapes and numbers. So nothing here keeps a tensor or a module alive that the script has dropped, and an
address or an id is compared with others of the same moment only, never with one of a moment ago. It is taken by columns, one call over
many objects, and of the tensors themselves by `forms`. What is not known well enough to be looked at so (a tensor class of somebody's own,
a list in an optimizer's slot) is gathered anew in every save, with all that its module or optimizer has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, compress, count
from operator import attrgetter, methodcaller
from types import NoneType
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer_runtime.state import model, names, sharding, tree
from trainer_runtime.state.forms import Forms
from trainer_runtime.state.leaves import Leaf
from trainer_runtime.state.model import World
from trainer_runtime.state.optimizer import OptimizerState

_Look = list[Any]
"""Columns of plain values. Two that are equal stand for objects of which the same is gathered."""
_Column = Callable[[Any], Any]

_TENSORS: Final[frozenset[type]] = frozenset({torch.Tensor, nn.Parameter})
_NUMBERS: Final[frozenset[type]] = frozenset({NoneType, bool, int, float, str})
"""What may stand in an optimizer's slot beside tensors. By ``repr`` and class all values of these differ: -0.0 from 0.0, 1 from True."""
_MAKE_LEAF: Final = partial(tuple.__new__, Leaf)
"""What ``Leaf._make`` does, in two thirds of its time."""

_CHILDREN: Final = attrgetter("_modules")
_PARAMETERS: Final = attrgetter("_parameters")
_BUFFERS: Final = attrgetter("_buffers")
_NOT_PERSISTENT: Final = attrgetter("_non_persistent_buffers_set")
_KEYS: Final = methodcaller("keys")
_VALUES: Final = methodcaller("values")
_REQUIRES_GRAD: Final = attrgetter("requires_grad")
_OF_SHARDED: Final[tuple[_Column, ...]] = (
    attrgetter("device"),
    attrgetter("dtype"),
    _REQUIRES_GRAD,
    torch.Tensor.is_inference,
    torch.Tensor.size,
    attrgetter("device_mesh"),
    attrgetter("placements"),
)
"""Asked of DTensors themselves, beside the forms of the blocks that lie in this rank's memory."""


class GatheredModule(NamedTuple):
    """What one module gives to a snapshot."""

    leaves: Sequence[Leaf]
    kept_gradients: list[str]
    """The trainable parameters whose gradient is not None, ``<keyword>/<canonical name>``."""
    parameters: list[int]
    """Of every parameter once its id, true for as long as nothing else runs."""
    names: list[str]
    """What optimizers call them: by their first canonical names, in another module than the model behind ``<keyword>:``."""
    replicated: list[bool]
    """Which of them every rank holds equal."""


class _Seen:
    """What a leaf says of tensors, as it was when they were looked at. ``blocks``: what lies in this rank's memory. ``tensors``: those of
    which they are blocks, and others that lie as these do: of a DTensor more than its block is looked at."""

    def __init__(self, blocks: Sequence[torch.Tensor], *tensors: Sequence[torch.Tensor]) -> None:
        self._forms = Forms(blocks)
        self._sharded = list(map(_look_at_sharded, tensors))

    def holds(self, blocks: Sequence[torch.Tensor], *tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are as those were."""
        return self._forms.hold(blocks) and list(map(_look_at_sharded, tensors)) == self._sharded


class RememberedModule:
    """One module's leaves, as `model.model_leaves` lists them."""

    def __init__(self, module: nn.Module, world: World, keyword: str) -> None:
        self._module = module
        self._world = world
        self._keyword = keyword
        self._tree: _Look | None = None
        self._seen = _Seen(())
        self._addresses: list[int] = []
        self._places: list[int] = []
        """Of each leaf's tensor, among all that the module tree holds."""
        self._frame = _Frame(())
        self._trainable: tuple[list[str], list[int]] = ([], [])
        """Names of the parameters that get gradients, and their places among the leaves."""
        self._parameters: tuple[list[int], list[str], list[bool]] = ([], [], [])
        """Of every parameter its first place among the leaves, its name for optimizers, and whether every rank holds it equal."""

    def gather(self) -> GatheredModule:
        """Return leaves and kept gradients as they are now. Raises ConfigurationError as `model.model_leaves` does."""
        look, held = _look_at_tree(self._module)
        if look is None or look != self._tree:
            return self._gather_anew(look, held)
        tensors = [held[place] for place in self._places]
        blocks = sharding.local_parts(tensors)
        if not (self._seen.holds(blocks, tensors) and _addresses(blocks) == self._addresses):
            return self._gather_anew(look, held)
        return self._gathered(self._frame.fill(list(map(torch.Tensor.detach, blocks)), tensors), tensors)

    def _gather_anew(self, look: _Look | None, held: Sequence[Any]) -> GatheredModule:
        self._tree = None
        leaves = model.model_leaves(self._module, self._world, self._keyword)
        named = list(model.tensors(self._module))
        tensors = [tensor for _name, tensor, _is_parameter in named]
        first: dict[int, int] = {}
        for place, (_name, tensor, is_parameter) in enumerate(named):
            if is_parameter:
                first.setdefault(id(tensor), place)
        trainable = [place for place in first.values() if tensors[place].requires_grad]
        self._trainable = [f"{self._keyword}/{named[place][0]}" for place in trainable], trainable
        before = "" if self._keyword == "model" else f"{self._keyword}:"
        replicated = model.replicated_parameters(self._module, self._world)
        self._parameters = (
            list(first.values()),
            [f"{before}{named[place][0]}" for place in first.values()],
            [identity in replicated for identity in first],
        )
        places = {id(tensor): place for place, tensor in enumerate(held)}
        blocks = sharding.local_parts(tensors)
        if look is not None and all(id(tensor) in places for tensor in tensors) and set(map(type, blocks)) <= _TENSORS:
            self._places = [places[id(tensor)] for tensor in tensors]
            self._seen = _Seen(blocks, tensors)
            self._addresses = _addresses(blocks)
            self._frame = _Frame(leaves)
            self._tree = look
        return self._gathered(leaves, tensors)

    def _gathered(self, leaves: Sequence[Leaf], tensors: Sequence[torch.Tensor]) -> GatheredModule:
        trainable, places = self._trainable
        has_gradient = [tensors[place].grad is not None for place in places]
        held, names_held, replicated = self._parameters
        return GatheredModule(
            leaves, list(compress(trainable, has_gradient)), [id(tensors[place]) for place in held], names_held, replicated
        )


class RememberedSlots:
    """One optimizer's slots, as `OptimizerState.gather_slots` lists them. Numbers among them are remembered by their values: an optimizer
    that counts its steps in numbers is gathered anew in every save."""

    def __init__(self, state: OptimizerState) -> None:
        self._state = state
        self._look: _Look | None = None
        self._seen = _Seen(())
        self._frame = _Frame(())
        self._objects: dict[str, Any] = {}
        self._is_plain = False
        """Whether no slot requires a gradient or is a Parameter, so that all of them can be leaves as they are."""

    def gather(self) -> tuple[Sequence[Leaf], dict[str, Any]]:
        """Return the slots as leaves, and the objects that say which there are. Raises what `OptimizerState.gather_slots` does."""
        parameters = self._state.parameters()
        look, tensors = _look_at_slots(self._state, parameters)
        blocks = sharding.local_parts(tensors)
        if look is None or look != self._look or not self._seen.holds(blocks, tensors, parameters):
            self._look = None
            leaves, objects = self._state.gather_slots()
            if look is None or not set(map(type, blocks)) <= _TENSORS:
                return leaves, objects
            self._frame, self._objects = _Frame(leaves), {name: tree.Settled(value) for name, value in objects.items()}
            self._is_plain = set(map(type, blocks)) <= {torch.Tensor} and not any(map(_REQUIRES_GRAD, blocks))
            self._seen, self._look = _Seen(blocks, tensors, parameters), look
        return self._frame.fill(blocks if self._is_plain else list(map(torch.Tensor.detach, blocks)), tensors), self._objects


class _Frame:
    """Leaves without their tensors and versions."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        columns = [list(column) for column in zip(*leaves, strict=True)] or [[] for _ in Leaf._fields]
        self._names, _tensors, *self._between, self._versions = columns
        self._frozen = [place for place, version in enumerate(self._versions) if version is not None]

    def fill(self, tensors: Sequence[torch.Tensor], versioned: Sequence[torch.Tensor]) -> list[Leaf]:
        """Return the leaves with these tensors. ``versioned``: whose counts of changes the frozen ones carry."""
        for place in self._frozen:
            self._versions[place] = versioned[place]._version
        return list(map(_MAKE_LEAF, zip(self._names, tensors, *self._between, self._versions, strict=True)))


def _look_at_tree(root: nn.Module) -> tuple[_Look | None, list[Any]]:
    """Return what names, wrappers and ties of objects follow from, and all parameters and buffers that there are (None where there is
    none), level by level. No look: something is of a class of which it is not known what its leaves follow from."""
    modules = names.every_module(root)
    not_persistent = list(map(_NOT_PERSISTENT, modules))
    look: _Look = [type(root), list(map(len, not_persistent)), list(chain.from_iterable(not_persistent))]
    held: list[Any] = []
    for part in (_CHILDREN, _PARAMETERS, _BUFFERS):
        mappings = list(map(part, modules))
        sizes = list(map(len, mappings))
        filled = list(compress(mappings, sizes))
        values = list(chain.from_iterable(map(_VALUES, filled)))
        look += [sizes, list(chain.from_iterable(map(_KEYS, filled))), list(map(type, values))]
        if part is not _CHILDREN:
            held += values
    different = set(map(type, modules))
    if not (set(map(type, held)) <= _known_tensors() | {NoneType} and all(map(_walks_like_any_other, different))):
        return None, held
    look.append(_first_places(map(id, held)))
    if any(issubclass(kind, DistributedDataParallel) for kind in different):
        look += [frozenset(module.parameters_to_ignore) for module in modules if isinstance(module, DistributedDataParallel)]
    return look, held


def _walks_like_any_other(kind: type[nn.Module]) -> bool:
    """Whether ``parameters()`` of such a module gives what it holds, and not what its class thinks of."""
    return kind.parameters is nn.Module.parameters and kind.named_parameters is nn.Module.named_parameters


def _look_at_slots(state: OptimizerState, parameters: Sequence[torch.Tensor]) -> tuple[_Look | None, list[torch.Tensor]]:
    """Return what the slots' names follow from, and the slots that are tensors. No look: some slot is neither a tensor nor a number, or
    belongs to what is no parameter."""
    if not all(issubclass(kind, torch.Tensor) for kind in set(map(type, state.optimizer.state))):
        return None, []
    slots = list(map(state.optimizer.state.get, parameters))
    held = [mapping for mapping in slots if mapping is not None]
    if not set(map(type, held)) <= {dict}:
        return None, []
    keys, values = list(chain.from_iterable(held)), list(chain.from_iterable(map(_VALUES, held)))
    kinds = list(map(type, values))
    different, known = set(kinds), _known_tensors()
    if not (set(map(type, keys)) <= {str} and different <= known | _NUMBERS):
        return None, []
    tensors, numbers = values, []
    if not different <= known:
        tensors = [value for value in values if type(value) in known]
        numbers = [repr(value) for value in values if type(value) in _NUMBERS]
    owners = [
        state.names_of(parameters),
        [id(parameter) in state.replicated for parameter in parameters],
        list(map(type, parameters)),
        list(map(attrgetter("device"), parameters)),
        list(map(type, slots)),
    ]
    return [*owners, list(map(len, held)), keys, kinds, numbers], tensors


def _known_tensors() -> frozenset[type]:
    """Classes of tensors of which it is known what their leaves follow from."""
    sharded = sharding.find_class()
    return _TENSORS if sharded is None else _TENSORS | {sharded}


def _sharded(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    kind = sharding.find_class()
    return [tensor for tensor in tensors if type(tensor) is kind] if kind in set(map(type, tensors)) else []


def _look_at_sharded(tensors: Sequence[torch.Tensor]) -> _Look:
    sharded = _sharded(tensors)
    return [list(map(question, sharded)) for question in _OF_SHARDED]


def _addresses(blocks: Iterable[torch.Tensor]) -> list[int]:
    """Return which of them begin at the same place of the memory: with sizes and strides, which are tied."""
    return _first_places(map(torch.Tensor.data_ptr, blocks))


def _first_places(values: Iterable[Any]) -> list[int]:
    """Return for each value the place of the first that equals it."""
    places: dict[Any, int] = {}
    return list(map(places.setdefault, values, count()))
