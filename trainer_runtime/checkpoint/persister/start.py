"""Starting a persister and keeping one running, for rtj-run and, where there is none, for local rank 0.

The process is started in a session of its own, so that a signal to the trainer's group does not reach it, and it is told the end on its
standard input. In a word, as a data loader's worker that was forked meanwhile holds the pipe open; whoever started it may also die without.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.heartbeat.lines import whole_lines

RESTART_SECONDS: Final = 1.0
"""Least time between two starts of a persister that keeps ending."""

log = logging.getLogger("trainer_runtime.persister")


class Handle:
    """A running persister at ``path``. Thread-safe. ``on_record`` is called in a thread of the handle, for local rank 0's records."""

    def __init__(
        self,
        path: str,
        environ: Mapping[str, str] = os.environ,
        on_record: Callable[[CheckpointRecord], None] | None = None,
    ) -> None:
        """Raises OSError when no process can be started."""
        self.path = path
        self._environ = dict(environ)
        self._on_record = on_record
        self._lock = threading.Lock()
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._start()

    @property
    def pids(self) -> frozenset[int]:
        """Process ids of the persister that runs now and of those that the kernel has not let go yet."""
        with self._lock:
            return frozenset(process.pid for process in (self._process, *self._left_behind))

    def tend(self) -> None:
        """Replace a persister that ended, or that said that a store holds it. Call it now and then. Raises OSError."""
        with self._lock:
            self._left_behind = [process for process in self._left_behind if process.poll() is None]
            is_over = self._process.poll() is not None or self._silent.is_set()
            if is_over and time.monotonic() - self._started_at >= RESTART_SECONDS:
                log.warning("rtj: the persister ended with code %s; starting another one", self._process.poll())
                self._close_input()
                self._left_behind.append(self._process)
                self._start()

    def finish(self) -> None:
        """Have it end as soon as its ranks are gone and their sealed saves have ended. Returns at once."""
        with self._lock:
            self._close_input()

    def has_ended(self) -> bool:
        """Say whether it is gone."""
        with self._lock:
            return self._process.poll() is not None

    def kill(self) -> None:
        """End it now; what it had not committed is abandoned."""
        with self._lock:
            self._close_input()
            for process in (self._process, *self._left_behind):
                process.kill()
            try:
                self._process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                log.error("rtj: the persister did not end 2 s after SIGKILL; the kernel holds it")

    def _start(self) -> None:
        self._process = subprocess.Popen(
            # -P: a file of the user's in the working directory must not stand in for a module of ours.
            [sys.executable, "-P", "-m", "trainer_runtime.checkpoint.persister", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
            bufsize=0,
            start_new_session=True,
        )
        self._started_at = time.monotonic()
        self._silent = threading.Event()
        threading.Thread(target=self._read, args=[self._process, self._silent], name="rtj-persister-records", daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes], silent: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in whole_lines(stream):
                self._take(line)
        silent.set()

    def _take(self, line: bytes) -> None:
        try:
            record = loads(CheckpointRecord, line)
        except ContractError as error:
            log.warning("rtj: the persister said what is no record: %s", error)
            return
        if self._on_record is not None:
            self._on_record(record)

    def _close_input(self) -> None:
        stream = self._process.stdin
        assert stream is not None
        if stream.closed:
            return
        try:
            stream.write(b"\n")
        except OSError as error:
            log.debug("rtj: the persister is gone already: %s", error)
        stream.close()
