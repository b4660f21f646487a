"""Trains a tiny DDP model that starts fast and steps slowly: for scenarios that are about the job and not about the model.

It has what a resume can get wrong (momentum, dropout, a schedule, a data position), so that its final state is worth comparing.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import digest
import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import trainer_runtime as tr


def seed_everything(seed: int) -> None:
    """Seed every generator that a library might draw from."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0.2, help="least time of one step")
    parser.add_argument("--text", type=Path, help="not used; every workload gets it")
    parser.add_argument("--digest-out", type=Path, help="folder for the digests of the final state")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.1), nn.GELU(), nn.Linear(64, 1))
    data = TensorDataset(torch.randn(200, 16), torch.randn(200, 1))
    seed_everything(1 + dist.get_rank())
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9)
    sampler = tr.ResumableSampler(len(data), batch_size=4, seed=0)
    loader = DataLoader(data, batch_sampler=sampler)

    losses = digest.Losses()
    with tr.attach(model=model, optimizer=optimizer, scheduler=scheduler, data=loader, losses=losses) as run:
        for inputs, targets in run.steps(max_steps=options.steps):
            began = time.monotonic()
            loss: Tensor = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            run.report(loss=losses[-1])
            if dist.get_rank() == 0:
                print(f"step {run.global_step + 1} loss {losses[-1]:.4f}", flush=True)
            time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))
    if options.digest_out:
        digest.write(options.digest_out, dist.get_rank(), network, optimizer, scheduler, sampler, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
