"""A directory as a store, for every test of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_runtime.store.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    (tmp_path / "store").mkdir()
    return PosixStore(tmp_path / "store")
