"""Shared by the tests of rtj-run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.heartbeat_sender.beat_server import BeatServer
from tests.launch.harness import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.end()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[BeatServer]:
    folder = tmp_path / "operator"
    folder.mkdir()
    server = BeatServer(folder)
    yield server
    server.stop()
