"""Lines through the pipe between a process and its helper: written without ever waiting, read as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Final

_READ_BYTES: Final = 64 * 1024


class NewestLine:
    """Writes whole lines to a pipe and never waits for its reader: what was not yet written is replaced, not queued. Not thread-safe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._begun = b""
        self._next = b""

    def offer(self, line: bytes) -> None:
        """Write ``line`` now, or keep it, in place of an older one, until `flush` finds room. Raises OSError when the reader is gone."""
        self._next = line
        self.flush()

    def flush(self) -> None:
        """Write what fits. Raises OSError when the reader is gone."""
        while self._begun or self._next:
            if not self._begun:
                self._begun, self._next = self._next, b""
            try:
                written = os.write(self._fd, self._begun)
            except BlockingIOError:
                return
            self._begun = self._begun[written:]


def whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of an unbuffered pipe, without their newlines, until its writer is gone; an unfinished last line is dropped."""
    rest = b""
    while chunk := stream.read(_READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
