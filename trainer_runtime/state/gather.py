"""All that one rank contributes to a checkpoint, and the way back: which object gives what, compared first, restored in a fixed order.

The order of a restore is model and other modules, optimizers, scheduler, other objects, data position; gradients as they were (None, or
zeros where the script keeps zeroed ones). Random numbers come last and later: `run` restores them when the data iterator exists. Reading
and proving bytes is not done here: `Source` is what a verified checkpoint offers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from trainer_runtime.contract.allow import Allow
from trainer_runtime.contract.manifest import TensorEntry
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import as_built, attachments, ddp, model, rng, sharding, strict, tree
from trainer_runtime.state.data import DataSource
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.state.model import World
from trainer_runtime.state.optimizer import OptimizerState, check_schedulers
from trainer_runtime.state.remembered import GatheredModule, RememberedModule, RememberedSlots
from trainer_runtime.state.strict import Difference

_RNG = "rng"
_GRADIENTS = "gradients"
_RUN = "run"
_REPLICAS = "replicas"
_TAKEN = (_RNG, _GRADIENTS, _REPLICAS)
"""Names of our own beside those of the script's objects: one under such a keyword would be overwritten."""


class Source(Protocol):
    """A proven checkpoint, as a restore sees it."""

    @property
    def strict(self) -> Mapping[str, Any]:
        """What `describe` returned in the process that saved it."""

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """Every tensor by name."""

    def objects(self, rank: int) -> dict[str, Any]:
        """Shared objects and this rank's own."""

    def fill(self, leaves: Sequence[Leaf], rank: int, *, exact: bool = True) -> None:
        """Prove every byte that ``leaves`` need of what is shared or ``rank``'s own, then copy. ``exact``: they must be all there is."""


class TrainingState:
    """The objects given to attach(), sorted by what they are. ``more``: every other keyword, by its name.

    Raises ConfigurationError, naming the keyword, for what cannot be saved.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: DataSource,
        world: World,
        more: Mapping[str, Any],
        config: Any = None,
        tokenizer: Any = None,
    ) -> None:
        self.world = world
        self.data = data
        self._modules: dict[str, nn.Module] = {"model": model}
        self._generators: dict[str, torch.Generator] = {}
        self._schedulers: dict[str, Any] = {}
        self._stateful: dict[str, Any] = {}
        optimizers: dict[str, Optimizer] = {}
        if not isinstance(model, nn.Module):
            raise ConfigurationError(f"model: a {type(model).__qualname__} is not a torch.nn.Module")
        for keyword, value in more.items():
            self._sort(keyword, value, optimizers)
        for module in self._modules.values():
            sharding.gather_nothing(module)
        self._names: dict[int, str] = {}
        self._replicated: set[int] = set()
        self._optimizers = [
            OptimizerState(value, self._names, self._replicated, world, "optim" if keyword == "optimizer" else f"optim.{keyword}")
            for keyword, value in optimizers.items()
        ]
        self._remembered_modules = [RememberedModule(module, world, keyword) for keyword, module in self._modules.items()]
        self._remembered_slots = [RememberedSlots(state) for state in self._optimizers]
        self.attachments = {"tokenizer": attachments.find_files(tokenizer), "config": attachments.render_config(config)}
        """What is kept beside the checkpoints, by kind."""
        self._check()
        self._as_built = as_built.describe(
            world=world,
            modules=self._modules,
            optimizers=self._optimizers,
            schedulers=self._schedulers,
            objects={**self._stateful, **self._generators},
            data=data,
            config=attachments.plain(config, exact=True),
            tokenizer=self.attachments["tokenizer"],
        )
        self._stepped = False
        for state in self._optimizers:
            state.optimizer.register_step_post_hook(self._note_step)

    def warm_up(self) -> ddp.StaticGraphWatch:
        """Make DDP's reduction order final, in every run alike; see `ddp`. Returns the watch to check after the first step."""
        trained = {id(parameter) for state in self._optimizers for group in state.optimizer.param_groups for parameter in group["params"]}
        for module in self._modules.values():
            if not isinstance(module, AveragedModel) and any(id(parameter) in trained for parameter in module.parameters()):
                ddp.warm_up(module)
        return ddp.StaticGraphWatch(self._modules["model"])

    def describe(self) -> dict[str, Any]:
        """Return what a strict resume compares, as it was when the script handed its objects over: plain JSON types."""
        return self._as_built

    def is_between_steps(self) -> bool:
        """Whether no gradient waits to be used: some optimizer stepped since this was last asked, or there is none.

        In the middle of an accumulation the gradients are state that a checkpoint does not hold.
        """
        stepped, self._stepped = self._stepped, False
        return stepped or not self._optimizers or not self._kept_gradients()

    def check_schedulers(self) -> None:
        """Raise ConfigurationError as `optimizer.check_schedulers` does, to be asked after the first step."""
        if not self._schedulers and not self._stateful:
            check_schedulers(self._optimizers)

    @property
    def has_stepped(self) -> bool:
        """Whether some optimizer stepped since the last boundary."""
        return self._stepped

    def not_saved(self) -> tuple[str, ...]:
        """Return what the objects hold and a checkpoint does not, for the manifest."""
        found = [name for keyword, module in self._modules.items() for name in model.non_persistent_buffers(module, keyword)]
        return tuple(found if self.data.exact else [*found, "data position"])

    def saved_run_state(self, source: Source) -> dict[str, Any]:
        """Return the ``run_state`` that was given to the snapshot."""
        state: dict[str, Any] = source.objects(self._saved_rank(source))[World(self._saved_rank(source)).own(_RUN)]
        return state

    def snapshot(self, run_state: Mapping[str, Any]) -> Snapshot:
        """Return everything at this step boundary, with what the loop says of itself. Changes nothing and draws no random number."""
        leaves: list[Leaf] = []
        kept_gradients: list[str] = []
        objects: dict[str, Any] = {}
        for module in self._modules.values():
            sharding.gather_nothing(module)
        modules = [remembered.gather() for remembered in self._remembered_modules]
        for gathered in modules:
            leaves += gathered.leaves
            kept_gradients += gathered.kept_gradients
        self._name_parameters(modules)
        for keyword, module in self._modules.items():
            for name, value in model.extra_states(module, keyword).items():
                self._add_tree(self.world.own(name), value, leaves, objects)
        for state, slots in zip(self._optimizers, self._remembered_slots, strict=True):
            for found, described in (slots.gather(), state.gather_groups()):
                leaves += found
                objects |= described
        for keyword, value in {**self._schedulers, **self._stateful}.items():
            self._add_tree(self.world.own(keyword), value.state_dict(), leaves, objects)
        tensors, positions = self.data.gather(self.world)
        leaves += [Leaf(name, tensor, Kind.EXTRA, replicated=False) for name, tensor in tensors.items()]
        objects |= positions
        objects[self.world.own(_RUN)] = dict(run_state)
        objects[self.world.own(_RNG)] = self.gather_rng()
        objects[self.world.own(_GRADIENTS)] = kept_gradients
        return Snapshot(tuple(leaves), objects)

    def compare(self, source: Source, dtypes: Mapping[torch.dtype, str], weights_only: bool = False) -> list[Difference]:
        """Return every difference between ``source`` and the live objects. ``weights_only``: of the model alone (a warm start)."""
        live = [self._locate(leaf, source.tensors) for leaf in self._module_leaves(weights_only)]
        prefixes = tuple(f"{keyword}/" for keyword in (["model"] if weights_only else self._modules))
        saved = {
            name: entry
            for name, entry in source.tensors.items()
            if self._is_mine(name, source) and _without_rank(name).startswith(prefixes)
        }
        differences = strict.compare_leaves(saved, live, dtypes, weights_only=weights_only)
        return differences if weights_only else differences + strict.compare(source.strict, self._as_built) + self._compare_rng(source)

    def restore(self, source: Source, differing: frozenset[Allow], weights_only: bool = False) -> dict[str, Any] | None:
        """Fill all objects from ``source``; return the random number state to restore later, None when there is none for this rank.

        ``differing``: the words of the differences that were found, all of them allowed.
        """
        leaves = [self._locate(leaf, source.tensors) for leaf in self._module_leaves(weights_only)]
        if Allow.STRUCTURE in differing:
            leaves = [
                leaf
                for leaf in leaves
                if leaf.name in source.tensors and tuple(source.tensors[leaf.name].global_shape) == leaf.global_shape
            ]
        saved_rank = self._saved_rank(source)
        if weights_only:
            source.fill(leaves, saved_rank, exact=False)
            return None
        objects = self._objects(source, differing)
        if Allow.STRUCTURE in differing:
            self._drop_slots_of_others(objects, {_without_rank(leaf.name) for leaf in leaves})
        optimizers = [] if Allow.OPTIMIZER in differing else self._optimizers
        allocated = [pair for state in optimizers for pair in state.allocate(objects)]
        allocated += self._allocate_trees(objects)
        leaves += [leaf for leaf, _tensor in allocated]
        source.fill(leaves, saved_rank, exact=not differing)
        tensors = {leaf.name: tensor for leaf, tensor in allocated}
        self._install_modules(objects, tensors)
        for state in optimizers:
            state.install(objects, tensors, keep_hyper_parameters=Allow.HYPER_PARAMETERS in differing)
        for keyword, value in {**self._schedulers, **self._stateful}.items():
            if self.world.own(keyword) in objects and not (keyword in self._schedulers and Allow.SCHEDULER in differing):
                value.load_state_dict(tree.unflatten(objects[self.world.own(keyword)], tensors))
        if Allow.DATA not in differing or self._same_kind_of_data(source):
            self.data.restore(self.world, objects, tensors)
        self._restore_gradients(objects.get(self.world.own(_GRADIENTS), []))
        return None if Allow.RNG in differing else objects.get(self.world.own(_RNG))

    def gather_rng(self) -> dict[str, Any]:
        """Return the state of every generator, for `restore_rng`. Draws nothing."""
        return {**rng.gather(), "own": {keyword: rng.torch_bytes(value.get_state()) for keyword, value in self._generators.items()}}

    def restore_rng(self, state: dict[str, Any]) -> None:
        """Put every generator back. The last act before the first fetch."""
        rng.restore(state)
        for keyword, generator in self._generators.items():
            if keyword in state["own"]:
                generator.set_state(rng.torch_tensor(state["own"][keyword]))

    def _note_step(self, *_arguments: Any) -> None:
        self._stepped = True

    def _sort(self, keyword: str, value: Any, optimizers: dict[str, Optimizer]) -> None:
        if isinstance(value, Optimizer):
            optimizers[keyword] = value
        elif isinstance(value, nn.Module):
            self._modules[keyword] = value
        elif isinstance(value, torch.Generator):
            self._generators[keyword] = value
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            if keyword in _TAKEN:
                raise ConfigurationError(f"{keyword}: a checkpoint holds something else under this name; take another keyword")
            kind = self._schedulers if keyword == "scheduler" or isinstance(value, (LRScheduler, ReduceLROnPlateau)) else self._stateful
            kind[keyword] = value
        else:
            raise ConfigurationError(
                f"{keyword}: a {type(value).__qualname__} has no state_dict() and load_state_dict(), and is no torch.Generator; "
                "it cannot be saved"
            )

    def _name_parameters(self, modules: Sequence[GatheredModule]) -> None:
        """Have the optimizers' parameters go by the names that they have in the modules now. Raises ConfigurationError for one that has
        none."""
        self._names.clear()
        self._replicated.clear()
        for gathered in reversed(modules):  # a parameter that several hold goes by its name in the first
            self._names.update(zip(gathered.parameters, gathered.names, strict=True))
            self._replicated.update(compress(gathered.parameters, gathered.replicated))
        for state in self._optimizers:
            if not self._names.keys() >= set(map(id, state.parameters())):
                state.check_names()

    def _check(self) -> None:
        for keyword, module in self._modules.items():
            model.check_complete(module, keyword)
        self._name_parameters([remembered.gather() for remembered in self._remembered_modules])
        for state in self._optimizers:
            state.check()

    def _module_leaves(self, weights_only: bool = False) -> list[Leaf]:
        modules = {"model": self._modules["model"]} if weights_only else self._modules
        for module in modules.values():
            sharding.gather_nothing(module)
        return [leaf for keyword, module in modules.items() for leaf in model.model_leaves(module, self.world, keyword)]

    def _add_tree(self, name: str, value: Any, leaves: list[Leaf], objects: dict[str, Any]) -> None:
        tensors, objects[name] = tree.flatten(value, name)
        leaves += [Leaf(leaf, tensor, Kind.EXTRA, replicated=False) for leaf, tensor in tensors.items()]

    def _allocate_trees(self, objects: Mapping[str, Any]) -> list[tuple[Leaf, torch.Tensor]]:
        """Return an empty tensor, and the leaf that fills it, for each one in objects of this rank that are not optimizers'."""
        taken = tuple(self.world.own(f"{state.prefix}.{part}") for state in self._optimizers for part in ("slots", "groups"))
        mine = [value for name, value in objects.items() if name.startswith(self.world.own("")) and name not in taken]
        tensors = {reference.name: tree.allocate(reference, self._device()) for value in mine for reference in tree.references(value)}
        return [(Leaf(name, tensor, Kind.EXTRA, replicated=False), tensor) for name, tensor in tensors.items()]

    def _install_modules(self, objects: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for keyword, module in self._modules.items():
            wanted = model.extra_states(module, keyword)
            model.load_extra_states(module, {name: tree.unflatten(objects[self.world.own(name)], tensors) for name in wanted}, keyword)

    def _compare_rng(self, source: Source) -> list[Difference]:
        """Every rank that was there must find its own generators, all of them. A rank that is new has none to find."""
        if self.world.rank >= int(source.strict.get("world_size", 1)):
            return []
        saved = source.objects(self.world.rank).get(self.world.own(_RNG))
        return strict.compare_rng(self.world.rank, [] if saved is None else rng.kinds(saved), rng.kinds(rng.gather()))

    def _kept_gradients(self) -> list[str]:
        """Return the parameters whose gradient is not None. Their values are spent when the optimizer has stepped; that they exist is
        state: an optimizer skips a parameter without one, and decays one with zeros."""
        return [name for name, parameter in self._trainable() if parameter.grad is not None]

    def _restore_gradients(self, kept: Sequence[str]) -> None:
        wanted = set(kept)
        for name, parameter in self._trainable():
            parameter.grad = torch.zeros_like(parameter) if name in wanted else None

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (f"{keyword}/{name}", parameter)
            for keyword, module in self._modules.items()
            for name, parameter in model.trainable_parameters(module)
        ]

    def _device(self) -> torch.device:
        first = next(self._modules["model"].parameters(), None)
        return first.device if first is not None else torch.device("cpu")

    def _objects(self, source: Source, differing: frozenset[Allow]) -> dict[str, Any]:
        """Return the objects under this rank's names. In another world a rank that is new takes rank 0's, but for the random numbers."""
        if self._saved_rank(source) == self.world.rank:
            return source.objects(self.world.rank)
        first = World().own("")
        renamed = {
            self.world.own(name.removeprefix(first)) if name.startswith(first) else name: value for name, value in source.objects(0).items()
        }
        del renamed[self.world.own(_RNG)]
        return renamed

    def _drop_slots_of_others(self, objects: dict[str, Any], loaded: set[str]) -> None:
        """Leave optimizer slots to the parameters that are loaded; what is new or has another shape begins without."""
        for state in self._optimizers:
            for key in (f"{state.prefix}.slots", self.world.own(f"{state.prefix}.slots")):
                slots = objects.get(key, {})
                objects[key] = {name: value for name, value in slots.items() if _leaf_name(name) in loaded}

    def _locate(self, leaf: Leaf, saved: Mapping[str, TensorEntry]) -> Leaf:
        """Return the leaf under the name it has in the checkpoint: a buffer saved by another world size goes by another name."""
        alias = None if leaf.alias_of is None else _saved_name(leaf.alias_of, saved)
        return leaf._replace(name=_saved_name(leaf.name, saved), alias_of=alias)

    def _is_mine(self, name: str, source: Source) -> bool:
        """Whether this rank would load the tensor: a shared one, or one of the rank whose values it takes up."""
        return _without_rank(name) == name or name.startswith(World(self._saved_rank(source)).own(""))

    def _saved_rank(self, source: Source) -> int:
        """Return the rank whose values this one takes up: its own, or rank 0 when the saved world was too small to have it."""
        return self.world.rank if self.world.rank < int(source.strict.get("world_size", 1)) else 0

    def _same_kind_of_data(self, source: Source) -> bool:
        return bool(source.strict.get("data", {}).get("kind") == self._as_built["data"]["kind"])


def _without_rank(name: str) -> str:
    head, slash, rest = name.partition("/")
    return rest if slash and head.startswith("rank") and head[4:].isdigit() else name


def _leaf_name(optimizer_name: str) -> str:
    """Return the leaf of what an optimizer calls ``0.weight`` (the model's) or ``ema:0.weight`` (another module's)."""
    keyword, colon, rest = optimizer_name.rpartition(":")
    return f"{keyword}/{rest}" if colon else f"model/{rest}"


def _saved_name(name: str, saved: Mapping[str, TensorEntry]) -> str:
    plain = _without_rank(name)
    return next((candidate for candidate in (name, plain, World().own(plain)) if candidate in saved), name)
