"""What Linux tells about processes that are not our children: ranks belong to torchrun, and their ends must be seen all the same."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True)
class RankIdentity:
    """Who a process is among the ranks, as torchrun told it."""

    rank: int
    local_rank: int
    local_world_size: int


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Nothing may live on when rtj-run was killed."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, as process 1 of a container is anyway: they can be found and ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> list[int]:
    """Return the living or unreaped children of ``pid``."""
    return [child for child, parent in _parents().items() if parent == pid]


def descendants_of(pid: int, besides: frozenset[int] = frozenset()) -> list[int]:
    """Return all processes below ``pid``, nearest first, without ``besides`` and what is below them."""
    parents = _parents()
    found: list[int] = []
    wave = [pid]
    while wave:
        wave = [child for child, parent in parents.items() if parent in wave and child not in besides]
        found += wave
    return found


def identify_rank(pid: int) -> RankIdentity | None:
    """Return which rank ``pid`` is, or None for another process, one that has not begun its program, or one that is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        return RankIdentity(int(pairs[b"RANK"]), int(pairs[b"LOCAL_RANK"]), int(pairs[b"LOCAL_WORLD_SIZE"]))
    except (OSError, KeyError, ValueError):
        return None


def read_exit_code(pid: int) -> int | None:
    """Return the exit code of a process that ended and was not reaped yet, negative for a signal; None when that cannot be known."""
    fields = _stat_fields(pid)
    if not fields or fields[0] != "Z":
        return None
    return os.waitstatus_to_exitcode(int(fields[-1]))


def kill_group(pid: int) -> None:
    """Kill a rank and what it started: torchrun makes each rank the leader of a session."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def reap_orphans(besides: frozenset[int]) -> None:
    """Collect adopted processes that ended, so that they do not stay as zombies. ``besides``: children somebody else waits for."""
    for pid in children_of(os.getpid()):
        if pid not in besides:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # whoever started it was faster


def end_descendants(besides: frozenset[int], seconds: float = 2.0) -> None:
    """Kill everything that the ranks left running, and collect it; what the kernel cannot end within ``seconds`` stays."""
    deadline = time.monotonic() + seconds
    while (left := descendants_of(os.getpid(), besides)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        reap_orphans(besides)
        time.sleep(0.01)


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields:
                found[int(entry)] = int(fields[1])
    return found


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third one on: state, parent, …, exit code. Empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
