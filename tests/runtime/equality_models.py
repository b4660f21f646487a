"""What the jobs of the equality tests train: models cut over the ranks in every way that is promised, and the optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH = 129


class Net(nn.Module):
    """Layers of unequal size, so that buckets differ; dropout and batch statistics, so that random numbers and buffers matter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH + index, WIDTH + 1 + index) for index in range(5))
        self.norm = nn.BatchNorm1d(WIDTH + 5)
        self.side = nn.Linear(WIDTH + 5, WIDTH + 5)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, skip_side: bool) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        x = self.norm(x)
        return x if skip_side else x + self.side(x)


class LoRA(nn.Module):
    """A frozen layer and what is added to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.register_buffer("quantised", (base.weight.detach() * 64).round().to(torch.int8))
        self.down = nn.Linear(base.in_features, 3, bias=False)
        self.up = nn.Linear(3, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.quantised, torch.Tensor)
        added: torch.Tensor = self.up(self.down(x)) + 1e-3 * nn.functional.linear(x, self.quantised.float())
        whole: torch.Tensor = added + self.base(x)
        return whole


class Narrow(nn.Module):
    """Rows that do not divide by the ranks: of four, one holds nothing of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 7), nn.Linear(7, 13), nn.Linear(13, 3)])
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, skip_side: bool) -> torch.Tensor:
        del skip_side
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        normed: torch.Tensor = self.norm(x)
        return normed


class Block(nn.Module):
    """Two layers for tensor parallelism and a norm that only the data-parallel ranks share. No dropout: tensor-parallel ranks see the
    same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 10)
        self.back = nn.Linear(10, 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, x: torch.Tensor, skip_side: bool) -> torch.Tensor:
        del skip_side
        normed: torch.Tensor = self.norm(self.back(torch.tanh(self.wide(x))))
        return normed


class Lion(torch.optim.Optimizer):
    """Chen and others, 2023: the sign of an interpolated momentum. One slot, no step count."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_(torch.sign(momentum * first + parameter.grad * (1 - first)), alpha=-group["lr"])
                momentum.mul_(second).add_(parameter.grad, alpha=1 - second)


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "lion": lambda parameters: Lion(parameters, lr=0.001),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
}


class Layout:
    """A model, built and wrapped as one job wants it. ``model``: as the script made it; ``wrapped``: what is called and attached."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self.model, self.wrapped = _LAYOUTS[kind](options)
        self.peers = self.wrapped.tensor_parallel if isinstance(self.wrapped, _TensorParallel) else None

    def synchronise(self, is_last: bool) -> Any:
        """Return the context for one micro-batch: gradients are reduced in the last one only."""
        if isinstance(self.wrapped, DistributedDataParallel):
            return torch.enable_grad() if is_last else self.wrapped.no_sync()
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(is_last)
        return torch.enable_grad()

    def share(self, x: torch.Tensor) -> torch.Tensor:
        """Return the batch that this rank trains on: the ranks of one tensor-parallel group see the same one."""
        if self.peers is not None:
            torch.distributed.broadcast(x, group=self.peers, group_src=0)
        return x


class _TensorParallel(nn.Module):
    """Remembers the tensor-parallel ranks beside the model."""

    def __init__(self, inner: nn.Module, group: Any) -> None:
        super().__init__()
        self.inner = inner
        object.__setattr__(self, "tensor_parallel", group)

    tensor_parallel: Any

    def forward(self, x: torch.Tensor, skip_side: bool) -> Any:
        return self.inner(x, skip_side)


def _ddp(options: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    model = Net()
    return model, DistributedDataParallel(model, bucket_cap_mb=0.1, **options)


def _lora(options: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    model = Net()
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, nn.Linear)
        model.layers[index] = LoRA(layer)
    return model, DistributedDataParallel(model, bucket_cap_mb=0.1, **options)


def _compiled(options: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    model = Narrow()
    if torch.distributed.get_rank() == 0:  # the other ranks find what it compiled in the cache, which is kept from launch to launch
        torch.compile(deepcopy(model))(torch.randn(3, WIDTH), False).sum().backward()
    torch.distributed.barrier()
    return model, DistributedDataParallel(torch.compile(model), **options)


def _fsdp(options: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    model = Narrow()
    mesh = init_device_mesh("cpu", **options)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, model


def _mesh(options: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    model = Block()
    mesh = init_device_mesh("cpu", **options)
    parallelize_module(model, mesh["tp"], {"wide": ColwiseParallel(), "back": RowwiseParallel()})
    for layer in (model.wide, model.back, model.norm):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, _TensorParallel(model, mesh["tp"].get_group())


_LAYOUTS: dict[str, Callable[[dict[str, Any]], tuple[nn.Module, nn.Module]]] = {
    "ddp": _ddp,
    "lora": _lora,
    "compiled": _compiled,
    "fsdp": _fsdp,
    "mesh": _mesh,
}
