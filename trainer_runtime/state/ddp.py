"""One synthetic backward through every DDP wrapper, so that a resumed run adds gradients up in the same order as an uninterrupted one.

DDP lays its buckets out anew after its first backward. From three ranks on the layout decides the order of the additions, so a fresh
process that only restores the state computes its first step in another order than the run it continues. The cure is to spend that first
backward before training, in *every* run, fresh or resumed. The pass touches no value: its gradients are zeros and are dropped; it draws no
random number and leaves buffers as they are.

What DDP does by its kind (measured at three and four ranks; docs/strict-resume.md):

    plain, gradient_as_bucket_view, any bucket size     rebuilds once                   one pass
    static_graph                                        learns the graph, rebuilds      two passes; each parameter used once per forward
    find_unused_parameters, not static                  never rebuilds                  none
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import names

PLAIN_PASSES: Final = 1
STATIC_GRAPH_PASSES: Final = 2


def warm_up(model: nn.Module) -> int:
    """Run the passes that the kinds of ``model``'s DDP wrappers need, on every rank at the same time; return how many were run.

    Gradients are None afterwards. Raises ConfigurationError for a wrapper whose gradients cannot be promised to repeat.
    """
    passes = 0
    for name, wrapper in names.wrappers(model):
        _check(name, wrapper)
        for _ in range(passes_needed(wrapper)):
            _synthetic_pass(wrapper)
            passes += 1
    return passes


def passes_needed(wrapper: DistributedDataParallel) -> int:
    """Return how many passes make this wrapper's bucket layout final."""
    if wrapper.static_graph:
        return STATIC_GRAPH_PASSES
    return 0 if wrapper.find_unused_parameters else PLAIN_PASSES


def describe(model: nn.Module) -> dict[str, Any]:
    """Return what decides the order of reduction, per wrapper: part of what a strict resume compares."""
    return {
        name or ".": {
            "static_graph": bool(wrapper.static_graph),
            "find_unused_parameters": bool(wrapper.find_unused_parameters),
            "gradient_as_bucket_view": bool(wrapper.gradient_as_bucket_view),
            "bucket_bytes_cap": int(wrapper.bucket_bytes_cap),
        }
        for name, wrapper in names.wrappers(model)
    }


class _ZeroSum(nn.Module):
    """Stands in for the wrapped module during one pass. It registers nothing: the parameters stay the wrapped module's."""

    _borrowed: tuple[nn.Parameter, ...]

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        object.__setattr__(self, "_borrowed", tuple(parameters))

    def forward(self) -> torch.Tensor:
        total: torch.Tensor | None = None
        for parameter in self._borrowed:
            term = parameter.sum() * 0.0
            total = term if total is None else total + term
        assert total is not None  # a wrapper without trainable parameters cannot be built
        return total


def _synthetic_pass(wrapper: DistributedDataParallel) -> None:
    real = wrapper.module
    parameters = [
        parameter for name, parameter in real.named_parameters() if parameter.requires_grad and name not in wrapper.parameters_to_ignore
    ]
    kept = [parameter.grad for parameter in parameters]
    if any(gradient is not None for gradient in kept):
        raise ConfigurationError("model: some gradients are not None; call attach() before the first backward")
    # Without this the forward would broadcast rank 0's buffers. The forward sets it again by itself.
    wrapper.require_forward_param_sync = False
    wrapper._modules["module"] = _ZeroSum(parameters)
    try:
        wrapper().backward()
    finally:
        wrapper._modules["module"] = real
    for parameter in parameters:
        parameter.grad = None


def _check(name: str, wrapper: DistributedDataParallel) -> None:
    where = f"model: the DDP wrapper of {name.rstrip('.') or 'the model'}"
    if wrapper.mixed_precision is not None:
        raise ConfigurationError(f"{where} has mixed_precision; its resume is not promised. Use torch.autocast instead")
    if wrapper._delay_all_reduce_all_params or wrapper._use_python_reducer:
        raise ConfigurationError(f"{where} reduces outside its reducer (delayed all-reduce, python_reducer); its resume is not promised")
    for _hook, state in getattr(wrapper, "_comm_hooks", []):
        if state is not None and not isinstance(state, torch.distributed.ProcessGroup):
            raise ConfigurationError(f"{where} has a communication hook with a state ({type(state).__name__}); that state cannot be saved")
    for inner_name, module in wrapper.module.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ConfigurationError(
                f"{where} holds the sparse embedding {inner_name}; sparse gradients are not promised. Use sparse=False"
            )


class StaticGraphWatch:
    """Looks at the first real step of every static_graph wrapper: the synthetic passes stand for it only if each parameter is used once.

    A parameter used twice (a layer recomputed twice) was seen to make the resumed run differ without any error, hence the check.
    """

    def __init__(self, model: nn.Module) -> None:
        self._uses: dict[str, int] = {}
        self._forwards: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        self._hooks: list[Any] = []
        for where, wrapper in names.wrappers(model):
            if wrapper.static_graph:
                self._forwards[where] = 0
                self._hooks.append(wrapper.register_forward_pre_hook(self._count_forward(where)))
                for name, parameter in wrapper.module.named_parameters():
                    if parameter.requires_grad and name not in wrapper.parameters_to_ignore:
                        full = where + names.canonical(wrapper.module, name)
                        self._owner[full], self._uses[full] = where, 0
                        self._hooks.append(parameter.register_post_accumulate_grad_hook(self._count_use(full)))

    def check(self) -> None:
        """Stop watching. Raises ConfigurationError that names a parameter which was not used exactly once per forward."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for name, uses in self._uses.items():
            forwards = self._forwards[self._owner[name]]
            if uses != forwards:
                raise ConfigurationError(
                    f"model: {name} got {uses} gradients in {forwards} forward passes under static_graph=True; its resume would not be "
                    "bitwise equal. Use static_graph=False (with find_unused_parameters=True if parameters are unused)"
                )

    def _count_forward(self, where: str) -> Any:
        def count(_module: nn.Module, _inputs: Any) -> None:
            self._forwards[where] += 1

        return count

    def _count_use(self, name: str) -> Any:
        def count(_parameter: torch.Tensor) -> None:
            self._uses[name] += 1

        return count
