"""How much memory may still be taken, so that staging is refused with numbers and never ends in the kernel killing the container."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trainer_runtime.errors import SaveFailed

RESERVE_BYTES: Final = 256 * 1024 * 1024
"""Left to the rest of the process when a stage is taken: a training step needs some memory that it gave back a moment ago."""
_UNLIMITED: Final = 1 << 60
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


def require_memory(wanted: int, purpose: str) -> None:
    """Raises SaveFailed, with the numbers, when ``wanted`` bytes would not leave RESERVE_BYTES of what is available."""
    available = available_bytes()
    if not fits_memory(wanted, available):
        raise _too_little(f"{purpose} needs {mib(wanted)} of host memory", f"available are {mib(available)}")


def require_share(wanted: int, least: int, processes: int, purpose: str) -> int:
    """Return how many of ``wanted`` bytes can be had at a time: all of them, or else a share of what is available that leaves as much, and
    RESERVE_BYTES, to each of the ``processes`` that want the same memory. Raises SaveFailed, with numbers, when that is below ``least``."""
    available = available_bytes()
    if fits_memory(wanted, available):
        return wanted
    share = available // processes - RESERVE_BYTES
    if share < least:
        needed = f"{purpose} needs {mib(wanted)} of host memory" + (f", or {mib(least)} at a time," if least < wanted else "")
        among = f", for {processes} ranks" if processes > 1 else ""
        raise _too_little(needed, f"available are {mib(available)}{among}")
    return share


def fits_memory(wanted: int, available: int | None = None) -> bool:
    """Say whether ``wanted`` bytes leave RESERVE_BYTES of what is available."""
    return wanted + RESERVE_BYTES <= (available_bytes() if available is None else available)


def available_bytes(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Return the smaller of the machine's MemAvailable and what the cgroup's limit leaves, in bytes. Page cache that the kernel can drop
    counts as available in both."""
    limits = [_meminfo_available(meminfo), _cgroup_available(cgroup, "memory.max", "memory.current", "inactive_file")]
    old = cgroup / "memory"
    limits.append(_cgroup_available(old, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    return min(limits)


def _meminfo_available(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _cgroup_available(directory: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int:
    try:
        limit = (directory / limit_name).read_text().strip()
        usage = int((directory / usage_name).read_text())
        statistics = (directory / "memory.stat").read_text()
    except OSError:  # no such controller here: the machine's number alone counts
        return _UNLIMITED
    if limit == "max":
        return _UNLIMITED
    reclaimable = next((int(line.split()[1]) for line in statistics.splitlines() if line.startswith(f"{reclaimable_name} ")), 0)
    return max(0, int(limit) - usage + reclaimable)


def _too_little(needed: str, found: str) -> SaveFailed:
    return SaveFailed(
        f"{needed} and leaves {mib(RESERVE_BYTES)} to the process; "
        f"{found} (the smaller of MemAvailable and the container's memory limit less its use)"
    )


def mib(size: int) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1024**2:,.0f} MiB"
