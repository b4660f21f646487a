"""The store every checkpoint test writes to, a directory of its own on the real file system; and how little memory a test may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.little import WINDOW, Limit
from trainer_runtime.checkpoint.staging import memory, plan
from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    root = tmp_path / "store"
    root.mkdir()
    return PosixStore(root)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Let ranks stage WINDOW bytes at a time, which is worth having here, and return what changes that."""
    monkeypatch.setattr(plan, "LEAST_WINDOW_BYTES", WINDOW)

    def limit(room: int) -> None:
        monkeypatch.setattr(memory, "available_bytes", lambda *_: memory.RESERVE_BYTES + room)

    limit(WINDOW)
    return limit
