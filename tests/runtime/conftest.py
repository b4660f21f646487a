from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer_runtime.contract.environment import RESERVED_NAMES, RESERVED_PREFIXES


@pytest.fixture(autouse=True)
def own_process_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No environment of a launcher, and what attach() changes in the process is put back."""
    for name in list(os.environ):
        if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
            monkeypatch.delenv(name)
    hook, handler = sys.excepthook, signal.getsignal(signal.SIGTERM)
    yield
    sys.excepthook = hook
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path
