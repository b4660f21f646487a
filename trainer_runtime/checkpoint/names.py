"""Whose a name is. What differs from rank to rank carries its rank in its name, so that one rank's value can never stand for all."""

from __future__ import annotations

import re
from typing import Final

_RANKED: Final = re.compile(r"rank(\d{5})/")


def rank_prefix(rank: int) -> str:
    """Return what the names of a rank's own values begin with: ``rank00007/``."""
    return f"rank{rank:05d}/"


def find_owner(name: str) -> int | None:
    """Return the rank a name belongs to, or None for a value that all ranks share."""
    match = _RANKED.match(name)
    return int(match[1]) if match else None
