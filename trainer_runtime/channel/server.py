"""rtj-run's end of the channel: one thread, many ranks. It hands every message to a callback and never waits for a rank.

A rank that sends nonsense or does not read loses its connection, not its life: rtj-run knows of a rank's end from its process, not from
here.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.channel.codec import Hello, LineSplitter, decode_up, encode
from trainer_runtime.channel.messages import Down, Up
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.errors import ConfigurationError

MAX_UNREAD_BYTES: Final = 1024 * 1024
"""Orders a rank may leave unread before its connection is closed; all orders of an attempt together are far smaller."""
_MAX_PATH_BYTES: Final = 100
"""A UNIX socket's path has at most 107 bytes on Linux."""
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("trainer_runtime.channel")


@dataclass(frozen=True)
class Joined:
    """A rank connected."""

    rank: int


@dataclass(frozen=True)
class Received:
    """A rank said something."""

    rank: int
    message: Up


@dataclass
class _Peer:
    socket: socket.socket
    rank: int | None = None
    splitter: LineSplitter = field(default_factory=LineSplitter)
    unread: bytearray = field(default_factory=bytearray)


class Server:
    """Listens in a directory that only this user can enter. ``deliver`` is called in the server's thread and must return at once."""

    def __init__(self, deliver: Callable[[Joined | Received], None]) -> None:
        self._deliver = deliver
        self._directory = make_private_directory()
        self.path: Final = os.path.join(self._directory, "channel")
        """What the ranks get as RTJ_CHANNEL."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rtj-channel", daemon=True)
        self._thread.start()

    def send(self, order: Down, rank: int | None = None) -> None:
        """Send ``order`` to one rank, or to all that are connected. A rank that is not connected gets nothing.

        Never waits; after close it does nothing.
        """
        line = encode(order)
        if self._closing:
            return
        with self._lock:
            for peer in self._peers.values():
                if peer.rank is not None and rank in (None, peer.rank):
                    peer.unread += line
        self._wake()

    def close(self) -> None:
        """Close every connection and remove the directory. May be called twice."""
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join(timeout=5.0)
        for peer in self._peers.values():
            peer.socket.close()
        for other in (self._listener, self._wake_in, self._wake_out):
            other.close()
        self._selector.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"!")
        except BlockingIOError:
            return  # enough wake-ups lie there already

    def _serve(self) -> None:
        while not self._closing:
            for key, events in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_out:
                    self._wake_out.recv(4096)
                    self._watch_for_room()
                else:
                    self._handle(self._peers[key.fd], events)

    def _accept(self) -> None:
        connection, _address = self._listener.accept()
        connection.setblocking(False)
        with self._lock:
            self._peers[connection.fileno()] = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _watch_for_room(self) -> None:
        for peer in self._peers.values():
            if peer.unread:
                self._selector.modify(peer.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _handle(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read(peer)
            if events & selectors.EVENT_WRITE:
                self._write(peer)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._drop(peer)
        except (OSError, ContractError) as error:
            log.warning("channel to rank %s closed: %s", peer.rank, error)
            self._drop(peer)

    def _read(self, peer: _Peer) -> None:
        data = peer.socket.recv(_READ_BYTES)
        if not data:
            raise EOFError
        for line in peer.splitter.feed(data):
            message = decode_up(line)
            if isinstance(message, Hello):
                with self._lock:
                    peer.rank = message.rank
                self._deliver(Joined(message.rank))
            elif peer.rank is None:
                raise ContractError("the first line was not Hello")
            else:
                self._deliver(Received(peer.rank, message))

    def _write(self, peer: _Peer) -> None:
        with self._lock:
            sent = peer.socket.send(peer.unread)
            del peer.unread[:sent]
            left = len(peer.unread)
        if left > MAX_UNREAD_BYTES:
            raise ContractError(f"rank {peer.rank} left {left} bytes of orders unread")
        if not left:
            self._selector.modify(peer.socket, selectors.EVENT_READ)

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.socket)
        with self._lock:
            del self._peers[peer.socket.fileno()]
        peer.socket.close()


def make_private_directory() -> str:
    """Create a directory for sockets and pipes that only this user can enter. Raises ConfigurationError when none can be written."""
    for parent in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        if len(os.fsencode(parent)) < _MAX_PATH_BYTES - len("/rtj-12345678/channel"):
            try:
                return tempfile.mkdtemp(prefix="rtj-", dir=parent)
            except OSError as error:
                log.debug("no channel in %s: %s", parent, error)
    raise ConfigurationError("TMPDIR: no directory with a path below 80 bytes can be written; rtj-run needs one for its local socket")
