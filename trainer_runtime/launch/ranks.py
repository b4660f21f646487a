"""The processes of one attempt: torchrun and its ranks. Starts them, says when each ended, ends them. It judges nothing.

Ranks are torchrun's children, so their ends are watched through pidfds: the time of a death is known to about a millisecond, where
torchrun looks ten times a second and then lists all that died meanwhile as one. Linux only.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_runtime.contract.codec import dumps
from trainer_runtime.launch import processes
from trainer_runtime.launch.tail import Tail
from trainer_runtime.launch.wire import Launching, LaunchPlan, Report, decode

LOOK_SECONDS: Final = 0.05
"""How often new ranks are looked for, from the moment they are about to start until all are known."""
HOOK_DIRECTORY: Final = str(Path(__file__).parent / "hook")

log = logging.getLogger("trainer_runtime.launch")


@dataclass(frozen=True)
class RankStarted:
    """A rank's process was found. ``local_world_size`` is how many there will be."""

    rank: int
    local_world_size: int


@dataclass(frozen=True)
class RankDied:
    """A rank's process ended. ``exit_code`` is negative for a signal, None when torchrun was faster in reading it."""

    rank: int
    at_ns: int
    exit_code: int | None


@dataclass(frozen=True)
class TorchrunEnded:
    """torchrun ended, with all its reports before this one."""

    exit_code: int


RankEvent = RankStarted | RankDied | TorchrunEnded | Report


class Ranks:
    """torchrun and its ranks. ``deliver`` is called in a thread of ours and must return at once."""

    def __init__(self, tail: Tail, deliver: Callable[[RankEvent], None]) -> None:
        self._tail = tail
        self._deliver = deliver
        self._pids: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._expected = 0
        self._reports = b""

    def start(self, plan: LaunchPlan, arguments: Sequence[str], environ: Mapping[str, str], report_read_fd: int) -> None:
        """Start torchrun with the user's ``arguments``. Call it in the main thread: the children die when the thread that started them
        ends. Takes both ends of the report pipe (``report_read_fd`` and ``plan.report_fd``). Raises OSError."""
        process = subprocess.Popen(
            # -P: like torchrun's own command, without the working directory on the module path.
            [sys.executable, "-P", "-m", "trainer_runtime.launch.elastic", dumps(plan), *arguments],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=[plan.report_fd],
            start_new_session=True,
        )
        self._process = process
        os.close(plan.report_fd)
        assert process.stdout is not None
        assert process.stderr is not None
        for stream, out_fd in ((process.stdout, 1), (process.stderr, 2)):
            self._tail.add(os.dup(stream.fileno()), out_fd, rank=None)
            stream.close()
        os.set_blocking(report_read_fd, False)
        self._report_fd = report_read_fd
        self._selector.register(report_read_fd, selectors.EVENT_READ)
        self._torchrun_fd = os.pidfd_open(process.pid)
        self._selector.register(self._torchrun_fd, selectors.EVENT_READ)
        threading.Thread(target=self._watch, args=[process], name="rtj-ranks", daemon=True).start()

    @property
    def torchrun_pids(self) -> frozenset[int]:
        """torchrun's process id, once it was started."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def stop(self) -> None:
        """Ask torchrun to end: it sends its ranks SIGTERM."""
        self._signal_torchrun(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the ranks, what they started, and torchrun."""
        for torchrun in self.torchrun_pids:
            for pid in processes.children_of(torchrun):
                processes.kill_group(pid)
        self._signal_torchrun(signal.SIGKILL)

    def _signal_torchrun(self, number: signal.Signals) -> None:
        # send_signal looks first whether the process was reaped, so that the number never reaches a stranger.
        if self._process is not None:
            self._process.send_signal(number)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        ended: int | None = None
        while ended is None:
            is_looking = self._expected > len(self._pids)
            for key, _events in self._selector.select(LOOK_SECONDS if is_looking else None):
                if key.fd == self._report_fd:
                    self._read_reports()
                elif key.fd == self._torchrun_fd:
                    ended = process.wait()
                else:
                    self._rank_ended(key.fd, key.data)
            if self._expected > len(self._pids):
                self._look_for_ranks(process.pid)
        self._read_reports()
        for pid in self._pids.values():
            if processes.identify_rank(pid) is not None:
                processes.kill_group(pid)
        for key in tuple(self._selector.get_map().values()):
            if key.data is not None:
                self._rank_ended(key.fd, key.data)
        self._close()
        self._deliver(TorchrunEnded(ended))

    def _rank_ended(self, fd: int, rank: int) -> None:
        at_ns = time.time_ns()
        code = processes.read_exit_code(self._pids[rank])
        self._selector.unregister(fd)
        os.close(fd)
        self._deliver(RankDied(rank, at_ns, code))

    def _look_for_ranks(self, torchrun: int) -> None:
        for pid in processes.children_of(torchrun):
            if pid in self._pids.values():
                continue
            identity = processes.identify_rank(pid)
            if identity is None:
                continue
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue  # it ended and was reaped between the two looks; torchrun reports its code
            self._pids[identity.rank] = pid
            self._selector.register(fd, selectors.EVENT_READ, identity.rank)
            self._deliver(RankStarted(identity.rank, identity.local_world_size))

    def _read_reports(self) -> None:
        while True:
            try:
                data = os.read(self._report_fd, 65536)
            except BlockingIOError:
                return
            if not data:
                if self._report_fd in self._selector.get_map():
                    self._selector.unregister(self._report_fd)
                return
            *lines, self._reports = (self._reports + data).split(b"\n")
            for line in lines:
                report = decode(line)
                if isinstance(report, Launching):
                    self._open_streams(report)
                self._deliver(report)

    def _open_streams(self, launching: Launching) -> None:
        self._expected = launching.local_world_size
        for stream in launching.streams:
            # Our own writing end keeps the pipe from ending when a rank closes its output and opens it again.
            fd = os.open(stream.path, os.O_RDWR | os.O_NONBLOCK)
            self._tail.add(fd, 1 if stream.name == "stdout" else 2, stream.rank)

    def _close(self) -> None:
        self._selector.close()
        os.close(self._report_fd)
        os.close(self._torchrun_fd)
