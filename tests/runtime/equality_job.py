"""The training script of test_equality: several small jobs of different kinds, one after the other, in one set of ranks.

``equality_job.py <launch> <output folder>``: launch ``whole`` trains every job to its end without a save in between; ``first`` and
``second`` train each up to its kill step, leave it there with its loop open, and then every rank kills itself; ``third`` trains to the end.
Each rank writes the loss of every step as it is made, and at the end the SHA-256 of every leaf.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import trainer_runtime as tr
from tests.runtime.equality_models import OPTIMIZERS, WIDTH, Layout
from trainer_runtime.state import ddp

SAMPLES, BATCH, STEPS = 72, 3, 20
"""With four ranks an epoch has 6 steps."""


@dataclass(frozen=True)
class Job:
    """One kind of training, the steps that are saved in each launch, and the steps at which the ranks are killed."""

    name: str
    saves: tuple[int, int]
    kills: tuple[int, int]
    layout: str = "ddp"
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adamw"
    workers: int = 0
    micro_batches: int = 1
    keeps_zeroed_gradients: bool = False
    skips_a_layer: bool = False
    scales: bool = False
    warms_up: bool = True


ROWS = {"mesh_shape": (4,), "mesh_dim_names": ("dp",)}
JOBS = (
    Job("plain", saves=(4, 12), kills=(6, 14)),
    Job("epoch_end", saves=(6, 9), kills=(7, 11), optimizer="lion"),
    Job("workers", saves=(6, 9), kills=(8, 13), workers=2, optimizer="adafactor"),
    Job("step_0", saves=(0, 3), kills=(2, 5)),
    Job("static_graph", saves=(1, 8), kills=(3, 10), options={"static_graph": True}),
    Job("find_unused", saves=(4, 12), kills=(5, 13), options={"find_unused_parameters": True}, skips_a_layer=True),
    Job(
        "zeroed",
        saves=(5, 12),
        kills=(6, 13),
        options={"gradient_as_bucket_view": True},
        keeps_zeroed_gradients=True,
        optimizer="momentum",
    ),
    Job("accumulating", saves=(3, 8), kills=(4, 10), micro_batches=3),
    Job("scaler_and_ema", saves=(4, 12), kills=(6, 14), scales=True),
    Job("lora", saves=(4, 12), kills=(6, 14), layout="lora"),
    Job("compiled", saves=(4, 12), kills=(6, 14), layout="compiled"),
    Job("fsdp", saves=(4, 12), kills=(6, 14), layout="fsdp", options=ROWS),
    Job("fsdp_accumulating", saves=(6, 9), kills=(7, 10), layout="fsdp", options=ROWS, micro_batches=2, optimizer="lion"),
    Job("hybrid", saves=(0, 8), kills=(3, 9), layout="fsdp", options={"mesh_shape": (2, 2), "mesh_dim_names": ("replicate", "shard")}),
    Job("mesh", saves=(4, 12), kills=(6, 14), layout="mesh", options={"mesh_shape": (2, 2), "mesh_dim_names": ("dp", "tp")}, workers=2),
    Job("cold", saves=(4, 12), kills=(6, 14), warms_up=False),
)


class Training:
    """One job, attached and ready to train."""

    def __init__(self, job: Job) -> None:
        rank = dist.get_rank()
        torch.manual_seed(7)
        self.job = job
        self.layout = Layout(job.layout, job.options)
        self.model, self.wrapped = self.layout.model, self.layout.wrapped
        self.optimizer = OPTIMIZERS[job.optimizer]([parameter for parameter in self.model.parameters() if parameter.requires_grad])
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3, enabled=job.scales)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if job.scales else None
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.02, total_steps=3 * STEPS, cycle_momentum=job.optimizer != "adafactor"
        )
        samples = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
        self.sampler = tr.ResumableSampler(SAMPLES, batch_size=BATCH, seed=3)
        loader = DataLoader(TensorDataset(samples), batch_sampler=self.sampler, num_workers=job.workers)
        torch.manual_seed(100 + rank)
        random.seed(rank)
        np.random.seed(rank)
        more: dict[str, Any] = {"scaler": self.scaler, "ema": self.ema} if job.scales else {}
        with nullcontext() if job.warms_up else mock.patch.object(ddp, "PLAIN_PASSES", 0):
            self.run = tr.attach(
                model=self.wrapped,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                data=loader,
                run=job.name.replace("_", "-"),
                config={"job": job.name},
                store=Path("store"),
                save_every_steps=10**6,
                **more,
            )

    def train(self, until: int, save_at: int | None, losses: Any) -> None:
        """Train up to ``until`` steps, saving (and waiting for it) at ``save_at``."""
        if save_at == 0 and self.run.global_step == 0:
            self.run.save(block=True)
        self.loop = self.run.steps(max_steps=STEPS, micro_batches=self.job.micro_batches)
        loss = 0.0
        for (x,) in self.loop:
            is_last = self.run.micro_batch == self.job.micro_batches - 1
            with self.layout.synchronise(is_last):
                loss = self._backward(x)
            if not is_last:
                continue
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.ema is not None:
                self.ema.update_parameters(self.model)
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=not self.job.keeps_zeroed_gradients)
            losses.write(json.dumps([self.job.name, self.run.global_step + 1, loss.hex()]) + "\n")
            losses.flush()
            if self.run.global_step + 1 == save_at:
                self.run.save(block=True)
            if self.run.global_step == until:
                return

    def _backward(self, x: torch.Tensor) -> float:
        noise = random.random() + float(np.random.rand())
        skip_side = self.job.skips_a_layer and self.run.global_step % 3 != 1
        loss = self.wrapped(self.layout.share(x * (1 + 0.01 * noise)), skip_side).pow(2).mean()
        self.scaler.scale(loss).backward()
        return float(loss.detach())

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every leaf by name."""
        leaves: dict[str, bytes] = {name: _bytes(tensor) for name, tensor in self.model.state_dict().items()}
        if self.ema is not None:
            leaves |= {f"ema {name}": _bytes(tensor) for name, tensor in self.ema.state_dict().items()}
            leaves["scaler"] = repr(sorted(self.scaler.state_dict().items())).encode()
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state.get(parameter, {}).items():
                leaves[f"{name}/{slot}"] = _bytes(value) if isinstance(value, torch.Tensor) else repr(value).encode()
            leaves[f"{name}/gradient"] = b"none" if parameter.grad is None else b"there"
        leaves["groups"] = repr([{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]).encode()
        leaves["scheduler"] = repr(sorted(self.scheduler.state_dict().items())).encode()
        leaves["rng torch"] = _bytes(torch.get_rng_state())
        leaves["rng python"] = repr(random.getstate()).encode()
        numbers = np.random.get_state(legacy=False)
        leaves["rng numpy"] = repr(
            [numbers["state"]["key"].tolist(), numbers["state"]["pos"], numbers["has_gauss"], numbers["gauss"]]
        ).encode()
        leaves["data"] = repr((self.sampler.state_dict(), self.run.epoch, self.run.global_step)).encode()
        return {name: hashlib.sha256(data).hexdigest() for name, data in leaves.items()}


def _bytes(tensor: torch.Tensor) -> bytes:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().numpy().tobytes()


def main(launch: str, output: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainings = []
    result: dict[str, Any] = {}
    with (output / f"losses-{rank}.jsonl").open("a") as losses:
        for job in JOBS:
            training = Training(job)
            trainings.append(training)
            resumed = training.run.resumed_from
            result[job.name] = {"resumed_from": resumed.step if resumed else None}
            turn = {"first": 0, "second": 1}.get(launch)
            training.train(STEPS if turn is None else job.kills[turn], None if turn is None else job.saves[turn], losses)
            result[job.name]["leaves"] = training.digests()
    (output / f"{launch}-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    if launch in ("first", "second"):
        os.kill(os.getpid(), signal.SIGKILL)
    for training in trainings:
        training.run.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
