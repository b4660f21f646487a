"""The store every checkpoint test writes to: a directory of its own on the real file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    root = tmp_path / "store"
    root.mkdir()
    return PosixStore(root)
