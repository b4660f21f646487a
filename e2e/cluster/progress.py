"""Shows a person what a long build is doing: one live line on a terminal, a plain line every 15 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.status import Status

LINE_EVERY_SECONDS: Final = 15.0


class Progress:
    """One task. `update` may be called as often as there is news; the start and the end are always shown."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._started = time.monotonic()
        self._shown = self._started
        console = Console(stderr=True)
        self._status: Status | None = console.status(task) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        self._print("started")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status:
            self._status.stop()
        self._print("done" if error is None else "failed")

    def update(self, news: str) -> None:
        """Say how far the task is."""
        if self._status:
            self._status.update(f"{self._task}: {news}, {self._seconds():.0f} s")
        elif time.monotonic() - self._shown >= LINE_EVERY_SECONDS:
            self._shown = time.monotonic()
            self._print(news)

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _print(self, news: str) -> None:
        print(f"[{self._seconds():6.1f} s] {self._task}: {news}", file=sys.stderr, flush=True)
