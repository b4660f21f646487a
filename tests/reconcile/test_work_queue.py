"""The work queue: one entry per job, one pass at a time, no wish to look later lost."""

from __future__ import annotations

import asyncio

import pytest

from rtj_operator.reconcile.work_queue import Key, WorkQueue

A: Key = ("ns", "a")
B: Key = ("ns", "b")


async def take(queue: WorkQueue, seconds: float = 5.0) -> Key:
    async with asyncio.timeout(seconds):
        return await queue.get()


async def is_empty(queue: WorkQueue) -> bool:
    waiting = asyncio.create_task(queue.get())
    for _ in range(5):
        await asyncio.sleep(0)
    if waiting.done():
        return False
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return True


async def test_a_key_added_twice_is_handed_out_once() -> None:
    queue = WorkQueue()
    queue.add(A)
    queue.add(A)
    assert await take(queue) == A
    queue.done(A)
    assert await is_empty(queue)


async def test_a_key_added_while_it_is_worked_on_waits_and_is_then_handed_out_again() -> None:
    queue = WorkQueue()
    queue.add(A)
    assert await take(queue) == A
    queue.add(A)
    assert await is_empty(queue)
    queue.done(A)
    assert await take(queue) == A


async def test_other_keys_pass_a_key_that_is_worked_on() -> None:
    queue = WorkQueue()
    queue.add(A)
    assert await take(queue) == A
    queue.add(A)
    queue.add(B)
    assert await take(queue) == B


async def test_of_two_delays_the_shorter_counts() -> None:
    queue = WorkQueue()
    queue.add(A, 3600)
    queue.add(A)
    queue.add(A, 1800)
    assert await take(queue) == A
    queue.done(A)
    assert len(queue) == 0


async def test_a_delayed_key_is_not_handed_out_before_its_time() -> None:
    queue = WorkQueue()
    queue.add(A, 0.05)
    started = asyncio.get_running_loop().time()
    assert await take(queue) == A
    assert asyncio.get_running_loop().time() - started >= 0.05


async def test_a_wait_that_sleeps_is_woken_by_an_earlier_key() -> None:
    queue = WorkQueue()
    queue.add(A, 3600)
    waiting = asyncio.create_task(take(queue))
    await asyncio.sleep(0)
    queue.add(B)
    assert await waiting == B


async def test_many_workers_get_every_key_once() -> None:
    queue = WorkQueue()
    keys = [("ns", str(number)) for number in range(50)]
    for key in keys:
        queue.add(key)
    taken = await asyncio.gather(*(take(queue) for _ in keys))
    assert sorted(taken) == sorted(keys)


@pytest.mark.parametrize(
    ("failures", "jitter", "wait"),
    [(0, 1.0, 0.1), (1, 1.0, 0.2), (3, 1.0, 0.8), (20, 1.0, 5.0), (0, 0.0, 0.05), (20, 0.0, 2.5)],
    ids=["first", "second", "fourth", "longest", "first with full jitter", "longest with full jitter"],
)
async def test_retries_wait_twice_as_long_each_time_up_to_a_limit(failures: int, jitter: float, wait: float) -> None:
    queue = WorkQueue(jitter=lambda: jitter)
    for _ in range(failures):
        queue.retry(A)
    assert queue.retry(A) == pytest.approx(wait)


async def test_a_success_starts_the_waits_anew() -> None:
    queue = WorkQueue(jitter=lambda: 1.0)
    queue.retry(A)
    queue.retry(A)
    queue.succeeded(A)
    assert queue.retry(A) == pytest.approx(0.1)


async def test_a_forgotten_key_is_not_handed_out() -> None:
    queue = WorkQueue()
    queue.add(A)
    queue.forget(A)
    assert await is_empty(queue)


async def test_the_oldest_wait_counts_waiting_keys_and_running_passes() -> None:
    queue = WorkQueue()
    assert queue.oldest_wait() == 0.0
    queue.add(A)
    await take(queue)
    queue.add(B, 3600)
    await asyncio.sleep(0.02)
    assert queue.oldest_wait() >= 0.02
    queue.done(A)
    assert queue.oldest_wait() == 0.0
    assert queue.due_count() == 0
