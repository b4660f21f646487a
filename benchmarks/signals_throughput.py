"""How long one log line costs the signal reader: ordinary lines one at a time and in large reads, and lines that are signals.

Prints a table and one JSON line, medians of 7. Run: ``python -m benchmarks.signals_throughput``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.measuring import median, options, publish
from trainer_runtime.signals import LineStream

LINES: Final = 20_000
ORDINARY: Final = (
    b"2026-01-21 04:41:44,284 INFO trainer: step 12034 epoch 3 loss 2.3412 lr 1.2e-04 grad norm 0.83 tokens/s 123456.7 mem 61.2GiB\n"
)
LINE_SET: Final = Path(__file__).parent.parent / "tests" / "signals" / "log_lines.jsonl"
READ_BYTES: Final = 64 * 1024


def main() -> None:
    """Measure and print."""
    repeats = options(__doc__).parse_args().repeats
    signals = b"".join(json.loads(row)["text"].encode() + b"\n" for row in LINE_SET.read_text(encoding="utf-8").splitlines())
    signals *= 20
    ordinary = ORDINARY * LINES
    results = {
        "ordinary_line_alone_us": median_us(repeats, LINES, lambda: feed_lines(LINES)),
        "ordinary_line_in_64k_reads_us": median_us(repeats, LINES, lambda: feed_reads(ordinary)),
        "signal_line_us": median_us(repeats, signals.count(b"\n"), lambda: feed_reads(signals)),
    }
    publish("signals_throughput", results)


def feed_lines(count: int) -> None:
    """Feed ordinary lines one at a time, as a pipe from one rank gives them."""
    stream = LineStream()
    for _ in range(count):
        stream.feed(ORDINARY)


def feed_reads(log: bytes) -> None:
    """Feed a log in large reads."""
    stream = LineStream()
    for start in range(0, len(log), READ_BYTES):
        stream.feed(log[start : start + READ_BYTES])


def median_us(repeats: int, lines: int, work: Callable[[], None]) -> float:
    """Return the median of so many runs, as microseconds per line."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) / lines * 1e6)
    return median(times, 3)


if __name__ == "__main__":
    main()
