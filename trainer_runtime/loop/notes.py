"""What a rank sees in each step of a try-out, noted for the doctor: batch, loss, and random numbers, as digests. Training notes nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer_runtime.state import rng
from trainer_runtime.state.raw import bytes_of


class Notes:
    """One rank's notes of one launch: a line of JSON per step in ``<directory>/<rank>.jsonl``.

    A line: ``step``, ``batch`` (all of the step's batches), ``rng_before`` (when the first of them had been fetched), ``rng_after`` (at the
    step's end), ``loss`` (float.hex(), or null when none was reported).
    """

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / f"{rank}.jsonl").open("a")
        self._batch = hashlib.sha256()
        self._before: str | None = None
        self._loss: str | None = None

    def batch(self, batch: Any) -> None:
        """A batch was fetched."""
        for part in _parts(batch):
            self._batch.update(part)
        if self._before is None:
            self._before = _random_numbers()

    def loss(self, loss: float) -> None:
        """The script reported the loss of this step."""
        self._loss = loss.hex()

    def step_ended(self, step: int) -> None:
        """Write the step's line."""
        line = {
            "step": step,
            "batch": self._batch.hexdigest(),
            "rng_before": self._before,
            "rng_after": _random_numbers(),
            "loss": self._loss,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._batch, self._before, self._loss = hashlib.sha256(), None, None


def _random_numbers() -> str:
    return hashlib.sha256(repr(rng.gather()).encode()).hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield what tells one batch from another. Of an object of unknown kind that is its type alone."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        if value.layout is torch.strided:
            yield bytes_of(value.contiguous().flatten().view(torch.uint8)).tobytes()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} of".encode()
        for item in value:
            yield from _parts(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield repr(value).encode()
    else:
        yield f"a {type(value).__qualname__}".encode()
