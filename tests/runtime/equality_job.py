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
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import trainer_runtime as tr
from trainer_runtime.state import ddp

WIDTH, SAMPLES, BATCH, STEPS = 129, 54, 3, 20
"""With three ranks an epoch has 6 steps."""


@dataclass(frozen=True)
class Job:
    """One kind of training, the steps that are saved in each launch, and the steps at which the ranks are killed."""

    name: str
    saves: tuple[int, int]
    kills: tuple[int, int]
    wrapper: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    micro_batches: int = 1
    keeps_zeroed_gradients: bool = False
    skips_a_layer: bool = False
    momentum_only: bool = False
    warms_up: bool = True


JOBS = (
    Job("plain", saves=(4, 12), kills=(6, 14)),
    Job("epoch_end", saves=(6, 9), kills=(7, 11)),
    Job("workers", saves=(6, 9), kills=(8, 13), workers=2),
    Job("step_0", saves=(0, 3), kills=(2, 5)),
    Job("static_graph", saves=(1, 8), kills=(3, 10), wrapper={"static_graph": True}),
    Job("find_unused", saves=(4, 12), kills=(5, 13), wrapper={"find_unused_parameters": True}, skips_a_layer=True),
    Job("zeroed", saves=(5, 12), kills=(6, 13), wrapper={"gradient_as_bucket_view": True}, keeps_zeroed_gradients=True, momentum_only=True),
    Job("accumulating", saves=(3, 8), kills=(4, 10), micro_batches=3),
    Job("cold", saves=(4, 12), kills=(6, 14), warms_up=False),
)


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


class Training:
    """One job, attached and ready to train."""

    def __init__(self, job: Job) -> None:
        rank = dist.get_rank()
        torch.manual_seed(7)
        self.job = job
        self.model = Net()
        self.wrapped = DistributedDataParallel(self.model, bucket_cap_mb=0.1, **job.wrapper)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer
        self.optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9) if job.momentum_only else torch.optim.AdamW(parameters, lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.02, total_steps=3 * STEPS)
        samples = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
        self.sampler = tr.ResumableSampler(SAMPLES, batch_size=BATCH, seed=3)
        loader = DataLoader(TensorDataset(samples), batch_sampler=self.sampler, num_workers=job.workers)
        torch.manual_seed(100 + rank)
        random.seed(rank)
        np.random.seed(rank)
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
            )

    def train(self, until: int, save_at: int | None, losses: Any) -> None:
        """Train up to ``until`` steps, saving (and waiting for it) at ``save_at``."""
        if save_at == 0 and self.run.global_step == 0:
            self.run.save(block=True)
        self.loop = self.run.steps(max_steps=STEPS, micro_batches=self.job.micro_batches)
        loss = 0.0
        for (x,) in self.loop:
            is_last = self.run.micro_batch == self.job.micro_batches - 1
            with nullcontext() if is_last else self.wrapped.no_sync():
                loss = self._backward(x)
            if not is_last:
                continue
            self.optimizer.step()
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
        loss = self.wrapped(x, skip_side).pow(2).mean() * (1 + 0.01 * noise)
        loss.backward()
        return float(loss.detach())

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every leaf by name."""
        leaves: dict[str, bytes] = {name: _bytes(tensor) for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state[parameter].items():
                leaves[f"{name}/{slot}"] = _bytes(value) if isinstance(value, torch.Tensor) else repr(value).encode()
            leaves[f"{name}/gradient"] = b"none" if parameter.grad is None else b"there"
        leaves["groups"] = repr([{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]).encode()
        leaves["scheduler"] = repr(sorted(self.scheduler.state_dict().items())).encode()
        leaves["rng torch"] = _bytes(torch.get_rng_state())
        leaves["rng python"] = repr(random.getstate()).encode()
        leaves["rng numpy"] = repr(np.random.get_state()[1].tolist() + list(np.random.get_state()[2:])).encode()  # type: ignore[index]
        leaves["data"] = repr((self.sampler.state_dict(), self.run.epoch, self.run.global_step)).encode()
        return {name: hashlib.sha256(data).hexdigest() for name, data in leaves.items()}


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


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
