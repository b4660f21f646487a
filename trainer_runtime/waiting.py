"""Waiting until one of several descriptors has something to say, by poll(): a trainer with many files open has descriptors that select()
refuses, which knows none from 1024 on. What is read or written then is the caller's affair.
"""

from __future__ import annotations

import math
import select


def wait_readable(*descriptors: int, seconds: float | None = None) -> frozenset[int]:
    """Return which of the descriptors can be read without waiting, or have ended or failed, so that reading says how; none after
    ``seconds`` (None: never)."""
    return _wait(descriptors, select.POLLIN, seconds)


def wait_writable(descriptor: int, seconds: float | None = None) -> bool:
    """Say whether something can be written, or the other end is gone, so that writing says how; False after ``seconds`` (None: never)."""
    return bool(_wait((descriptor,), select.POLLOUT, seconds))


def _wait(descriptors: tuple[int, ...], event: int, seconds: float | None) -> frozenset[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    return frozenset(descriptor for descriptor, _events in poll.poll(None if seconds is None else math.ceil(seconds * 1000)))
