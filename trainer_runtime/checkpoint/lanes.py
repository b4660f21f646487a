"""How much is hashed at a time, and in how many threads: one for each physical core this process may use, but for one.

That one, and the other hardware threads of the others, are left to the trainer, beside which the persister works.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MAX_HASH_LANES: Final = 4
"""The persister works beside the trainer, so it never takes a whole machine."""
IO_LANES: Final = 2
"""Files in transfer at a time; their threads wait for the device and cost next to nothing."""
HOT_BYTES: Final = 1024 * 1024
"""Bytes that are touched at a time by everything that wants them, so that only the first finds them outside of a core's cache."""
_CPUS: Final = Path("/sys/devices/system/cpu")


def hash_lanes(cpus: Iterable[int] | None = None, topology: Path = _CPUS) -> int:
    """Return how many files may be hashed at a time. ``cpus``: those this process may use; None: ask the kernel."""
    allowed = os.sched_getaffinity(0) if cpus is None else set(cpus)
    cores = {_core_of(cpu, topology) for cpu in allowed}
    return max(1, min(MAX_HASH_LANES, len(cores) - 1))


def _core_of(cpu: int, topology: Path) -> str:
    try:
        return (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:  # not told: then every one counts as a core of its own
        return str(cpu)
