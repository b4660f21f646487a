"""A rank's end of the channel. It has no thread: a send goes straight into the socket, a poll takes what lies there.

Training must not depend on rtj-run: a send never raises and never waits, but for a rank's last words, which may take two seconds. When
rtj-run is gone the client says so once in the log and then does nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, TypeVar

from trainer_runtime.channel.codec import Hello, LineSplitter, decode_down, encode
from trainer_runtime.channel.messages import Down, Ending, Raised, Up
from trainer_runtime.contract import environment
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.waiting import wait_readable, wait_writable

LAST_WORDS_SECONDS: Final = 2.0
"""How long Raised and Ending may wait for room in the socket; the process ends right after them."""
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""A live rtj-run reads at once; more than this unsent means it hangs, and progress is dropped until it reads again."""
_MAX_TEXT: Final = 8_000
"""Characters kept of a message for people; the exit report keeps fewer."""
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("trainer_runtime.channel")

D = TypeVar("D", bound=Down)


class Client:
    """A connection to rtj-run. Thread-safe: the training thread polls while a writer thread reports a record."""

    def __init__(self, path: str, rank: int) -> None:
        self._lock = threading.Lock()
        self._inbox: deque[Down] = deque()
        self._splitter = LineSplitter()
        self._unsent = bytearray()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            self._socket.setblocking(False)
        except OSError as error:
            self._lose(f"cannot connect to {path}: {error}")
            return
        with self._lock:
            self._unsent += encode(Hello(rank=rank, pid=os.getpid()))
            self._flush()

    @property
    def connected(self) -> bool:
        """Whether rtj-run was there at the last send or poll."""
        return self._socket is not None

    def send(self, message: Up) -> None:
        """Hand ``message`` to rtj-run. Never raises; waits only for Raised and Ending, at most LAST_WORDS_SECONDS."""
        try:
            line = encode(_shorten(message))
        except ContractError as error:
            log.warning("not sent to rtj-run: %s", error)
            return
        last_words = isinstance(message, (Raised, Ending))
        with self._lock:
            if self._socket is None or (len(self._unsent) + len(line) > MAX_UNSENT_BYTES and not last_words):
                return
            self._unsent += line
            self._flush()
            if last_words:
                self._flush_within(LAST_WORDS_SECONDS)

    def poll(self) -> tuple[Down, ...]:
        """Return the orders that came since the last poll or wait, oldest first. Never waits."""
        with self._lock:
            self._flush()
            self._read()
            orders = tuple(self._inbox)
            self._inbox.clear()
        return orders

    def wait(self, kind: type[D], seconds: float) -> D | None:
        """Return the first order of ``kind``, or None after ``seconds`` or when rtj-run is gone. Other orders stay for poll."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                self._flush()
                self._read()
                for order in self._inbox:
                    if isinstance(order, kind):
                        self._inbox.remove(order)
                        return order
                waiting_on = None if self._socket is None else self._socket.fileno()  # another thread may close it meanwhile
            left = deadline - time.monotonic()
            if waiting_on is None or left <= 0:
                return None
            wait_readable(waiting_on, seconds=min(left, 0.5))

    def close(self) -> None:
        """Close the connection; later calls do nothing."""
        with self._lock:
            self._flush()
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _flush(self) -> None:
        while self._unsent and self._socket is not None:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(str(error))
                return
            del self._unsent[:sent]

    def _flush_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._unsent and self._socket is not None and time.monotonic() < deadline:
            wait_writable(self._socket.fileno(), seconds=0.05)
            self._flush()

    def _read(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_READ_BYTES)
                lines = self._splitter.feed(data)
                self._inbox.extend(decode_down(line) for line in lines)
            except BlockingIOError:
                return
            except (OSError, ContractError) as error:
                self._lose(str(error))
                return
            if not data:
                self._lose("it closed the connection")

    def _lose(self, reason: str) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._unsent.clear()
        log.warning("rtj-run is gone (%s); training goes on without heartbeats, and a stop request will not be seen", reason)


def connect_from_environment(environ: Mapping[str, str] = os.environ) -> Client | None:
    """Connect to the rtj-run that started this rank, or return None when none did (RTJ_CHANNEL is not set)."""
    path = environ.get(environment.CHANNEL)
    if not path:
        return None
    return Client(path, rank=int(environ.get("RANK", "0")))


def _shorten(message: Up) -> Up:
    if isinstance(message, Ending) and len(message.message) > _MAX_TEXT:
        return dataclasses.replace(message, message=message.message[:_MAX_TEXT])
    if isinstance(message, Raised) and len(message.exception) > _MAX_TEXT:
        return dataclasses.replace(message, exception=message.exception[:_MAX_TEXT])
    return message
