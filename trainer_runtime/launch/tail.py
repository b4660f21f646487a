"""Passes the ranks' output through unchanged and shows it to the signal parser, in two threads and bounded memory.

The first thread only moves bytes, so a rank never waits longer for its output than it would for the container's log itself. The second one
parses; when it cannot keep up, output goes by unread, and that is said once.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.signals.finding import Finding
from trainer_runtime.signals.stream import LineStream
from trainer_runtime.waiting import wait_writable

READ_BYTES: Final = 64 * 1024
MAX_UNREAD_BYTES: Final = 8 * 1024 * 1024
"""Output that may wait for the parser, of all ranks together."""
QUIET_SECONDS: Final = 0.1
"""How long the beginning of a line waits for its end, so that the lines of several ranks do not mix."""
MAX_HELD_BYTES: Final = 8 * 1024

log = logging.getLogger("trainer_runtime.launch")


@dataclass(frozen=True)
class Found:
    """An incident in the output of one rank (None: of torchrun). ``key`` names it: a later one with the same key replaces it."""

    rank: int | None
    key: tuple[int, int]
    finding: Finding


@dataclass
class _Output:
    fd: int
    out_fd: int
    rank: int | None
    number: int
    read_at: float = 0.0
    has_ended: bool = False
    held: bytearray = field(default_factory=bytearray)
    lines: LineStream = field(default_factory=LineStream)


class Tail:
    """Reads outputs until `finish`. ``deliver`` is called in the parser's thread and must return at once."""

    def __init__(self, deliver: Callable[[Found], None]) -> None:
        self._deliver = deliver
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._added: queue.SimpleQueue[_Output] = queue.SimpleQueue()
        self._outputs: list[_Output] = []
        self._unread: queue.SimpleQueue[tuple[_Output, bytes, float] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unread_bytes = 0
        self._count = 0
        self._has_skipped = False
        self._closed_outs: set[int] = set()
        self._finishing = False
        self._deadline = 0.0
        self._reader = threading.Thread(target=self._read_all, name="rtj-output", daemon=True)
        self._parser = threading.Thread(target=self._parse_all, name="rtj-signals", daemon=True)
        self._reader.start()
        self._parser.start()

    def add(self, fd: int, out_fd: int, rank: int | None) -> None:
        """Read ``fd``, which becomes ours, and write it to ``out_fd``."""
        os.set_blocking(fd, False)
        self._count += 1
        self._added.put(_Output(fd, out_fd, rank, self._count))
        os.write(self._wake_in, b"!")

    def finish(self, seconds: float) -> None:
        """Read what still lies in the pipes, parse it, and end. Gives up the rest after ``seconds``."""
        self._deadline = time.monotonic() + seconds
        self._finishing = True
        os.write(self._wake_in, b"!")
        self._reader.join(timeout=seconds)
        self._parser.join(timeout=max(0.0, self._deadline - time.monotonic()))
        if self._reader.is_alive() or self._parser.is_alive():
            log.warning("output of the ranks was not read to its end within %g s", seconds)
            return
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _read_all(self) -> None:
        while not self._finishing:
            for key, _events in self._selector.select(QUIET_SECONDS if any(output.held for output in self._outputs) else None):
                if key.fd == self._wake_out:
                    os.read(self._wake_out, 4096)
                    self._take_added()
                else:
                    self._read(key.data)
                    if key.data.has_ended:
                        self._selector.unregister(key.fd)
            self._let_go_quiet()
        self._take_added()
        for output in self._outputs:
            while time.monotonic() < self._deadline and self._read(output):
                continue
            self._pass_on(output, bytes(output.held))
            os.close(output.fd)
        self._unread.put(None)

    def _take_added(self) -> None:
        while not self._added.empty():
            output = self._added.get()
            self._outputs.append(output)
            self._selector.register(output.fd, selectors.EVENT_READ, output)

    def _read(self, output: _Output) -> bool:
        """Move what lies there now; return whether anything did."""
        try:
            data = os.read(output.fd, READ_BYTES)
        except BlockingIOError:
            return False
        output.has_ended = not data
        if not data:
            return False
        output.read_at = time.monotonic()
        self._show(output, data)
        output.held += data
        end = max(output.held.rfind(b"\n"), output.held.rfind(b"\r")) + 1
        if len(output.held) - end > MAX_HELD_BYTES:
            end = len(output.held)
        ready = bytes(output.held[:end])
        del output.held[:end]
        self._pass_on(output, ready)
        return True

    def _let_go_quiet(self) -> None:
        now = time.monotonic()
        for output in self._outputs:
            if output.held and now - output.read_at >= QUIET_SECONDS:
                self._pass_on(output, bytes(output.held))
                output.held.clear()

    def _pass_on(self, output: _Output, data: bytes) -> None:
        while data and output.out_fd not in self._closed_outs:
            try:
                data = data[os.write(output.out_fd, data) :]
            except BlockingIOError:
                wait_writable(output.out_fd)
            except OSError as error:
                # The ranks must go on without a log; their output is still read for signals.
                self._closed_outs.add(output.out_fd)
                log.warning("output cannot be passed on any more: %s", error)

    def _show(self, output: _Output, data: bytes) -> None:
        with self._lock:
            is_full = self._unread_bytes + len(data) > MAX_UNREAD_BYTES
            if not is_full:
                self._unread_bytes += len(data)
        if not is_full:
            self._unread.put((output, data, time.time()))
        elif not self._has_skipped:
            self._has_skipped = True
            log.warning("the ranks print faster than it can be read for fault signals; some of it goes by unread")

    def _parse_all(self) -> None:
        seen: dict[int, _Output] = {}
        while (item := self._unread.get()) is not None:
            output, data, at = item
            seen[output.number] = output
            with self._lock:
                self._unread_bytes -= len(data)
            self._tell(output, output.lines.feed(data, at))
        for output in seen.values():
            self._tell(output, output.lines.finish())

    def _tell(self, output: _Output, findings: list[Finding]) -> None:
        for finding in findings:
            self._deliver(Found(output.rank, (output.number, finding.incident), finding))
