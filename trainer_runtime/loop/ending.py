"""How a process ends: which problem gives which exit code, and what is said before. The codes are the contract's.

A problem with a code of its own ends the process by SystemExit, with its message on standard error; every other error keeps its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final

from trainer_runtime.channel.messages import Ending
from trainer_runtime.contract.exit_report import ExitCode, Outcome
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError, Fenced, Refused, RuntimeProblem, StoreUnavailable
from trainer_runtime.loop.reporter import Reporter

_CODES: Final[tuple[tuple[type[RuntimeProblem], ExitCode, Outcome], ...]] = (
    (ConfigurationError, ExitCode.BAD_CONFIGURATION, Outcome.BAD_CONFIGURATION),
    (Refused, ExitCode.REFUSED, Outcome.REFUSED),
    (CheckpointDamaged, ExitCode.DAMAGED, Outcome.DAMAGED),
    (StoreUnavailable, ExitCode.STORE_UNAVAILABLE, Outcome.STORE_UNAVAILABLE),
    (Fenced, ExitCode.FENCED, Outcome.FENCED),
)


_at_threading_exit: Final[Callable[[Callable[[], None]], object]] = vars(threading)["_register_atexit"]
"""The moment before the interpreter shuts thread pools. CPython has it under a private name alone, on which `concurrent.futures` rests too;
a Python without it is noticed when this is imported."""


class StopSignal:
    """When the first SIGTERM came, by time.monotonic(); None: none came."""

    def __init__(self) -> None:
        self.at: float | None = None


_SIGTERM: Final = StopSignal()
"""One for the process, as the signal is: every run in it hears it."""


def find_exit(problem: RuntimeProblem) -> tuple[ExitCode, Outcome] | None:
    """Return exit code and outcome of a problem that has its own, or None."""
    return next(((code, outcome) for kind, code, outcome in _CODES if isinstance(problem, kind)), None)


def say(text: str) -> None:
    """Write to standard error, after all that was printed. Where it was closed (then it is None) or its reader is gone, nobody can be told;
    the exit code must come out all the same."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            if stream is sys.stderr:
                stream.write(text)
            stream.flush()


@contextmanager
def exit_on_problem(reporter: Reporter | None, rank: int) -> Iterator[None]:
    """Turn a problem that has an exit code into SystemExit, once it was reported and printed; its cause is the problem itself."""
    try:
        yield
    except RuntimeProblem as problem:
        found = find_exit(problem)
        if found is None:
            raise
        code, outcome = found
        if reporter is not None:
            reporter.ending(
                Ending(
                    rank,
                    outcome,
                    str(problem),
                    checkpoint=problem.checkpoint if isinstance(problem, CheckpointDamaged) else None,
                    highest_fence=problem.highest_fence if isinstance(problem, Fenced) else None,
                    fence_job_uid=problem.fence_job_uid if isinstance(problem, Fenced) else None,
                )
            )
        say(f"rtj: rank {rank}: {outcome.value}: {problem}\n")
        raise SystemExit(int(code)) from problem


def on_uncaught(before: Callable[[BaseException], None], after: Callable[[], None]) -> None:
    """From now on, when an exception ends this process, call ``before``, then what prints the traceback, then ``after``."""
    earlier, owner = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_ours = os.getpid() == owner  # a forked data worker inherits this hook and must not speak for the rank
        if is_ours:
            before(error)
        earlier(kind, error, trace)
        if is_ours:
            after()

    sys.excepthook = hook


def at_exit(callback: Callable[[], None]) -> None:
    """Call ``callback`` when the main thread ends, while threads can still be used.

    `atexit` is too late: by then the interpreter has shut the thread pools that a save in flight needs.
    """
    owner = os.getpid()

    def call() -> None:
        if os.getpid() == owner:  # a forked data worker ends too, and has none of the threads to wait for
            callback()

    _at_threading_exit(call)


def stop_on_sigterm() -> StopSignal:
    """Return where the first SIGTERM is noted, instead of dying of it; the second one kills. For stock torchrun, which forwards the pod's.

    Nothing is noted when the script has a handler of its own, or outside of the main thread, where Python allows none.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return _SIGTERM

    owner = os.getpid()

    def handle(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() == owner:
            _SIGTERM.at = time.monotonic()
        else:
            os.kill(os.getpid(), signal.SIGTERM)  # a forked child inherits this handler and must die as it would have

    signal.signal(signal.SIGTERM, handle)
    return _SIGTERM
