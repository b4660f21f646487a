"""Frames over a stream socket: eight bytes of length, then that many bytes; a file descriptor may ride on the length."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_LENGTH: Final = struct.Struct("<Q")
MAX_FRAME_BYTES: Final = 1 << 30
"""More is no message of ours: a list of a million tensors takes a third of it."""
_TIME: Final = struct.Struct("ll")
_CREDENTIALS: Final = struct.Struct("3i")


class Closed(EOFError):
    """The other side closed the connection, or its process is gone."""


def send_frame(connection: socket.socket, data: bytes, descriptor: int | None = None) -> None:
    """Send one frame. Raises Closed."""
    header = _LENGTH.pack(len(data))
    try:
        if descriptor is None:
            connection.sendall(header + data)
        else:
            sent = socket.send_fds(connection, [header], [descriptor])
            connection.sendall(header[sent:] + data)
    except OSError as error:
        raise Closed(f"the other side is gone: {error}") from error


def receive_frame(connection: socket.socket) -> tuple[bytes, int | None]:
    """Return one frame and the descriptor that came with it, which is the caller's to close. Raises Closed."""
    try:
        header, descriptors, _flags, _address = socket.recv_fds(connection, _LENGTH.size, 1)
        descriptor = descriptors[0] if descriptors else None
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
        try:
            header += _receive(connection, _LENGTH.size - len(header)) if header else b""
            if not header:
                raise Closed("the other side closed the connection")
            (length,) = _LENGTH.unpack(header)
            if length > MAX_FRAME_BYTES:
                raise Closed(f"the other side announced a frame of {length} bytes, which is none of ours")
            return _receive(connection, length), descriptor
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
    except OSError as error:
        raise Closed(f"the other side is gone: {error}") from error


def limit_waits(connection: socket.socket, seconds: float) -> None:
    """Have a frame that stops half-way count as a lost connection after ``seconds``: the other process may be stopped for good."""
    limit = _TIME.pack(int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other side of a Unix socket."""
    pid, uid, _gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        got = connection.recv_into(view[done:])
        if got == 0:
            raise Closed("the other side closed the connection in the middle of a frame")
        done += got
    return bytes(data)
