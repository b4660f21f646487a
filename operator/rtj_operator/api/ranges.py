"""Sets of worker indexes as short text: ``(0, 1, 2, 7)`` is ``"0-2,7"``."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranges(indexes: Iterable[int]) -> str:
    """Write the indexes as sorted ranges."""
    spans: list[list[int]] = []
    for index in sorted(set(indexes)):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Read what format_ranges wrote. Raises ValueError for anything else."""
    indexes: list[int] = []
    for span in text.split(",") if text else ():
        (first, dash, last) = span.partition("-")
        indexes.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(indexes)
