"""A tiny training script in one process, for tests that attach in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainer_runtime as tr


class Training:
    """A model with everything it needs, attached. ``store``: a directory, which is made when it is missing, or a URL; None: as the
    environment says."""

    def __init__(self, store: Path | str | None, width: int = 4, lr: float = 0.1, **keywords: Any) -> None:
        if isinstance(store, Path):
            store.mkdir(exist_ok=True)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.5), nn.Linear(width, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        samples = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(TensorDataset(samples), batch_sampler=tr.ResumableSampler(20, batch_size=4))
        self.losses: dict[int, float] = {}
        self.run = tr.attach(model=self.model, optimizer=self.optimizer, data=loader, store=store, **keywords)

    def train(self, until: int) -> Training:
        """Train to ``until`` steps and close."""
        for (x,) in self.run.steps(max_steps=until):
            self.learn(x)
        self.run.close()
        return self

    def learn(self, x: torch.Tensor) -> None:
        """One step of the optimizer."""
        loss = self.model(x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses[self.run.global_step + 1] = float(loss.detach())
        self.run.report(loss=float(loss.detach()))


def steps_in(store: Path, run: str = "default") -> list[int]:
    """The steps of the checkpoints in a store."""
    return sorted(int(folder.name.split("-")[0]) for folder in (store / run / "steps").iterdir())
