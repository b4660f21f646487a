"""The training script of test_other_layouts: one model on any number of ranks, cut in any way.

``layout_job.py <output folder> <steps> <layout> [<allowed word>]... [-- <layout> ...]``: for one layout after the other, attaches, trains
up to ``steps``, and rank 0 writes in ``<layout>-<ranks>.json`` what the whole tensors are, put together by torch. Layout ``places`` trains
nothing: it compares where blocks lie with the whole tensors they came from.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import trainer_runtime as tr
from trainer_runtime.state import sharding

WIDTH = 6


def build(layout: str) -> tuple[nn.Module, nn.Module]:
    """Return the model and what is attached."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 3))
    if layout == "ddp":
        return model, DistributedDataParallel(model)
    if layout == "alone":
        return model, model
    axis, ranks = {"rows": 0, "columns": -1}[layout], dist.get_world_size()

    def place(parameter: nn.Parameter) -> Shard:
        """torch cuts unevenly along the first axis only."""
        return Shard(axis % parameter.dim() if parameter.shape[axis] % ranks == 0 else 0)

    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, shard_placement_fn=place)
    fully_shard(model, mesh=mesh)
    return model, model


def train(layout: str, output: Path, steps: int, allow: list[str]) -> None:
    model, wrapped = build(layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run = tr.attach(model=wrapped, optimizer=optimizer, store=Path("store"), save_every_steps=10**6, allow=allow)
    resumed = run.resumed_from
    found = {"resumed_from": resumed.step if resumed else None, "loaded": digests(model, optimizer)}
    for step in run.steps(max_steps=steps):
        wrapped(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found["trained"] = digests(model, optimizer)
    run.close()
    if int(os.environ.get("RANK", "0")) == 0:
        output.write_text(json.dumps(found))


def digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the SHA-256 of every whole tensor, by name."""
    found = {}
    for name, parameter in model.named_parameters():
        slots = {key: value for key, value in optimizer.state.get(parameter, {}).items() if isinstance(value, torch.Tensor)}
        for key, tensor in {"value": parameter, **slots}.items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found[f"{name} {key}"] = hashlib.sha256(whole.detach().contiguous().numpy().tobytes()).hexdigest()
    return found


def check_places(output: Path) -> None:
    """Compare this rank's block of many tensors with the part of the whole that its place says."""
    checked = []
    for mesh_shape, kinds in (((4,), 1), ((2, 2), 2), ((1, 4), 2)):
        mesh = init_device_mesh("cpu", mesh_shape)
        for shape in ((7, 5), (3, 9), (8, 4), (1, 2)):
            whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
            for placements in product((Replicate(), Shard(0), Shard(1)), repeat=kinds):
                check(f"{mesh_shape} {shape} {placements}", distribute_tensor(whole.clone(), mesh, placements), whole)
                checked.append(str(placements))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 5))
    wholes = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["dp"])
    blocks: dict[str, Any] = dict(model.named_parameters())  # of DTensors now, which their type does not tell
    for name, block in blocks.items():
        check(f"{name} {block.placements}", block, wholes[name])
        checked.append(str(block.placements))
    if dist.get_rank() == 0:
        output.write_text(json.dumps(checked))


def check(what: str, tensor: torch.Tensor, whole: torch.Tensor) -> None:
    shard = sharding.find_shard(tensor, "w", dist.get_world_size())
    assert shard is not None, what
    block = sharding.local_part(tensor)
    place = tuple(slice(first, first + length) for first, length in zip(shard.offset, block.shape, strict=True))
    assert torch.equal(block, whole[place]), what
    twins: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(twins, (shard.offset, tuple(block.shape)))
    same = tuple(rank for rank, twin in enumerate(twins) if twin == twins[dist.get_rank()])
    assert block.numel() == 0 or shard.replicas == same, f"{what}: {shard.replicas} {same}"


if __name__ == "__main__":
    is_distributed = "RANK" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    ranks = dist.get_world_size() if is_distributed else 1
    for is_between, words in groupby(sys.argv[3:], lambda word: word == "--"):
        if not is_between:
            layout, *allow = words
            output = Path(sys.argv[1], f"{layout}-{ranks}.json")
            if layout == "places":
                check_places(output)
            else:
                train(layout, output, int(sys.argv[2]), allow)
    if is_distributed:
        dist.barrier()  # a rank that is done first would take away what the others still talk through
        dist.destroy_process_group()
