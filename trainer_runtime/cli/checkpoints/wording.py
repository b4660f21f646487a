"""Numbers as people read them, and tables of plain text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def size(count: int) -> str:
    """Return bytes in decimal units: ``1.2 GB``."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} {_UNITS[-1]}"


def age(seconds: float) -> str:
    """Return a duration in its largest unit: ``3 h``. A time that lies ahead, by another clock, is ``0 s``."""
    for unit_seconds, unit in _AGES:
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines with aligned columns."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (header, *rows))


class Progress:
    """Says on standard error how far a long read is: one line that is rewritten, and only where somebody looks."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done, self._shown = what, total, 0, -1
        self._is_shown = sys.stderr.isatty()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """So many bytes more are done. Thread-safe."""
        with self._lock:
            self._done += count
            percent = 100 * self._done // max(self._total, 1)
            if self._is_shown and percent != self._shown:
                self._shown = percent
                print(f"\r{self._what}: {size(self._done)} of {size(self._total)}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._is_shown and self._shown >= 0:
            print(file=sys.stderr)
