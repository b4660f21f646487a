"""The supervisor: a task that ends ends the wait, with its name and its error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rtj_operator.supervisor import Stopped, Supervisor, TaskEnded


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("broken pipe")


async def answer() -> int:
    return 42


async def test_what_is_awaited_returns_its_result_while_the_tasks_run() -> None:
    tasks = Supervisor(asyncio.Event())
    tasks.start("watch", forever())
    assert await tasks.until(answer()) == 42
    await tasks.cancel()


async def test_an_error_of_what_is_awaited_is_raised() -> None:
    with pytest.raises(ValueError, match="broken pipe"):
        await Supervisor(asyncio.Event()).until(fail())


@pytest.mark.parametrize(
    ("work", "words"), [(fail, "watch ended: broken pipe"), (answer, "watch ended: without an error")], ids=["by an error", "by itself"]
)
async def test_a_task_that_ends_ends_the_wait_and_is_named(work: Callable[[], Coroutine[Any, Any, object]], words: str) -> None:
    tasks = Supervisor(asyncio.Event())
    tasks.start("watch", work())
    with pytest.raises(TaskEnded, match=words):
        await tasks.until(forever())
    await tasks.cancel()


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    tasks = Supervisor(stop)
    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(Stopped):
        await tasks.until(forever())


async def test_cancelling_by_name_leaves_the_others_running() -> None:
    tasks = Supervisor(asyncio.Event())
    tasks.start("one", forever())
    tasks.start("two", forever())
    await tasks.cancel("one")
    assert await tasks.until(answer()) == 42
    await tasks.cancel()
