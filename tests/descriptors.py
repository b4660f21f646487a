"""A process that has many files open, as one with many data loaders or a large store client has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOW: Final = 1024
"""select() knows no descriptor from here on."""
_ROOM: Final = 512
"""Descriptors that a test may have beyond those that are taken."""


@contextmanager
def low_ones_taken() -> Iterator[None]:
    """Have every descriptor that is opened meanwhile be LOW or above. Fails where the process may not have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= LOW + _ROOM, f"needs {LOW + _ROOM} descriptors, and may have {hard}: ulimit -Hn"
    if soft != resource.RLIM_INFINITY and soft < LOW + _ROOM:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LOW + _ROOM, hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < LOW:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
