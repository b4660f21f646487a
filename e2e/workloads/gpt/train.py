"""Trains a small byte-level GPT with DDP on the sources of Python's standard library: an ordinary script that uses the runtime.

    rtj-run train.py --steps 150 --save-every 15 --digest-out /checkpoints/digests

It knows nothing of faults. ``--digest-out`` makes each rank write the SHA-256 of everything a resume must bring back: parameters, optimizer
slots, schedule, random numbers, data position, and the loss of every step.
"""

from __future__ import annotations

import argparse
import random
import sysconfig
from pathlib import Path

import digest
import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import trainer_runtime as tr

CONTEXT, WIDTH, HEADS, LAYERS = 128, 256, 4, 4


class SourceText(Dataset[tuple[Tensor, Tensor]]):
    """Windows of CONTEXT bytes of Python source, and the same moved by one byte."""

    def __init__(self, folder: Path, size: int) -> None:
        text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:size]
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """One transformer layer with dropout, so that a resume that forgets the random numbers is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(self.before(x)).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + functional.dropout(self.merge(seen.transpose(1, 2).flatten(2)), 0.1, self.training)
        narrowed: Tensor = self.narrow(functional.gelu(self.widen(self.after(x))))
        return x + functional.dropout(narrowed, 0.1, self.training)


class GPT(nn.Module):
    """Bytes in, logits over the next byte out: (batch, CONTEXT) -> (batch, CONTEXT, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.bytes(x) + self.places))
        return logits


def seed_everything(seed: int) -> None:
    """Seed every generator that a library might draw from."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=2, help="sequences per rank and step")
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_path("stdlib")), help="folder of .py files to learn")
    parser.add_argument("--text-bytes", type=int, default=2_000_000)
    parser.add_argument("--digest-out", type=Path, help="folder for the digests of the final state")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = GPT()
    seed_everything(1 + dist.get_rank())  # every rank drops out its own units
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    text = SourceText(options.text, options.text_bytes)
    sampler = tr.ResumableSampler(len(text), batch_size=options.batch, seed=0)
    loader = DataLoader(text, batch_sampler=sampler)
    losses = digest.Losses()

    with tr.attach(model=model, optimizer=optimizer, scheduler=scheduler, data=loader, losses=losses) as run:
        for inputs, targets in run.steps(max_steps=options.steps):
            loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            run.report(loss=losses[-1])
            if dist.get_rank() == 0:
                print(f"step {run.global_step + 1} loss {losses[-1]:.4f}", flush=True)
    if options.digest_out:
        digest.write(options.digest_out, dist.get_rank(), network, optimizer, scheduler, sampler, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
