"""Keeps the operator's long-running tasks: when one of them ends, however, the process must end and say why."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The process was asked to stop."""


class TaskEnded(Exception):
    """A task that should run for ever ended. The message names it; the cause is its error."""


class Supervisor:
    """Starts tasks and watches over them while something else is awaited."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start one task that should run until the process stops."""
        self._tasks.append(asyncio.create_task(work, name=name))

    async def until(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``. Raises TaskEnded when a supervised task ends before it, Stopped when the process is asked to stop."""
        wanted = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({wanted, stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                if task.done():
                    error = task.exception() if not task.cancelled() else None
                    raise TaskEnded(f"{task.get_name()} ended: {error or 'without an error'}") from error
            if wanted.done():
                return wanted.result()
            raise Stopped
        finally:
            for task in (wanted, stopped):
                task.cancel()
            await asyncio.gather(wanted, stopped, return_exceptions=True)

    async def cancel(self, *names: str) -> None:
        """Cancel these tasks, or all, and wait until they are over."""
        chosen = [task for task in self._tasks if not names or task.get_name() in names]
        for task in chosen:
            task.cancel()
        await asyncio.gather(*chosen, return_exceptions=True)
        self._tasks = [task for task in self._tasks if task not in chosen]
