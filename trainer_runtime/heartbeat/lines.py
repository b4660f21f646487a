"""A pipe that carries only the newest line. A writer that may never wait uses it: what was not yet written is replaced, not queued."""

from __future__ import annotations

import os


class NewestLine:
    """Writes whole lines to a pipe without ever waiting for its reader. Not thread-safe."""

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
