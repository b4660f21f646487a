"""Starting a sender and talking to it, for rtj-run and, under stock torchrun, for local rank 0's `attach`.

The handle never waits and never raises for a sender that is gone: it starts another one. Beats are repeated whole, so nothing is lost.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from trainer_runtime.contract import environment
from trainer_runtime.contract.codec import ContractError, dumps, loads
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.heartbeat.lines import NewestLine, whole_lines
from trainer_runtime.heartbeat.post import take_apart
from trainer_runtime.heartbeat.state import Answer, WorkerState

RESTART_SECONDS: Final = 5.0
"""Least time between two starts of a sender that keeps ending."""
MAX_KEPT_ANSWERS: Final = 100

_NEEDED: Final = (
    environment.HEARTBEAT_URL,
    environment.HEARTBEAT_TOKEN_FILE,
    environment.HEARTBEAT_CA_FILE,
    environment.JOB_UID,
    environment.POD_UID,
)

log = logging.getLogger("trainer_runtime.heartbeat")


def missing_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that a sender needs and does not have."""
    return [name for name in _NEEDED if not environ.get(name)]


class Handle:
    """A running sender. Thread-safe."""

    def __init__(self, environ: Mapping[str, str], on_answer: Callable[[Answer], None] | None) -> None:
        self._environ = dict(environ)
        self._on_answer = on_answer
        self._answers: deque[Answer] = deque(maxlen=MAX_KEPT_ANSWERS)
        self._lock = threading.Lock()
        self._state: WorkerState | None = None
        self._closed = False
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the sender that runs now."""
        return self._process.pid

    def update(self, state: WorkerState) -> None:
        """Make ``state`` what the next beat says. Never waits."""
        with self._lock:
            self._state = state
            self._offer()

    def tend(self) -> None:
        """Hand over what did not fit into the pipe before, and replace a sender that ended. Call it now and then. Never waits."""
        with self._lock:
            if self._closed:
                return
            if self._process.poll() is not None and time.monotonic() - self._started_at >= RESTART_SECONDS:
                log.warning("heartbeat: the sender ended with code %s; starting another one", self._process.returncode)
                self._close_pipes()
                self._start()
                self._offer()
            else:
                self._flush()

    def replies(self) -> tuple[Answer, ...]:
        """Return the answers since the last call, oldest first, at most MAX_KEPT_ANSWERS. Empty when ``on_answer`` takes them."""
        taken = []
        while self._answers:
            taken.append(self._answers.popleft())
        return tuple(taken)

    def close(self, seconds: float = 2.0) -> None:
        """End the sender; it gets ``seconds`` to go by itself. A beat in flight may be lost: wait for its answer first."""
        with self._lock:
            self._closed = True
            self._close_pipes()
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=seconds)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            # -P: a file of the user's in the working directory must not stand in for a module of ours.
            [sys.executable, "-P", "-m", "trainer_runtime.heartbeat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
            bufsize=0,
        )
        assert self._process.stdin is not None
        self._started_at = time.monotonic()
        self._states = NewestLine(self._process.stdin.fileno())
        self._reader = threading.Thread(target=self._read, args=[self._process], name="rtj-heartbeat-answers", daemon=True)
        self._reader.start()

    def _offer(self) -> None:
        if self._closed or self._state is None:
            return
        try:
            self._states.offer(dumps(self._state).encode() + b"\n")
        except OSError as error:
            log.debug("heartbeat: the sender is gone: %s", error)  # tend() replaces it and says so

    def _flush(self) -> None:
        try:
            self._states.flush()
        except OSError as error:
            log.debug("heartbeat: the sender is gone: %s", error)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in whole_lines(stream):
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            answer = loads(Answer, line)
        except ContractError as error:
            log.warning("heartbeat: the sender said what is no answer: %s", error)
            return
        if self._on_answer is not None:
            self._on_answer(answer)
        else:
            self._answers.append(answer)

    def _close_pipes(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


def start(environ: Mapping[str, str] = os.environ, on_answer: Callable[[Answer], None] | None = None) -> Handle | None:
    """Start a sender, or return None without RTJ_HEARTBEAT_URL (no operator). ``on_answer`` is called in a thread of the handle.

    Raises ConfigurationError, naming the variables, when only some of what a sender needs is set, or the URL is none.
    """
    if not environ.get(environment.HEARTBEAT_URL):
        return None
    take_apart(environ[environment.HEARTBEAT_URL])
    missing = missing_variables(environ)
    if missing:
        raise ConfigurationError(f"{', '.join(missing)}: not set, but RTJ_HEARTBEAT_URL is; a beat needs all of them")
    return Handle(environ, on_answer)


def start_for_rank(environ: Mapping[str, str] = os.environ) -> Handle | None:
    """Start a sender from local rank 0 under stock torchrun; None in every other rank, under rtj-run, and without an operator."""
    if environ.get(environment.CHANNEL) or environ.get("LOCAL_RANK", "0") != "0":
        return None
    return start(environ)
