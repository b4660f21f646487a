"""How much memory may still be taken, so that staging is refused with numbers and never ends in the kernel killing the container."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from trainer_runtime.errors import SaveFailed

RESERVE_BYTES: Final = 256 * 1024 * 1024
"""Left to the rest of the process when a stage is taken: a training step needs some memory that it gave back a moment ago."""
_UNLIMITED: Final = 1 << 60
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


class Among(NamedTuple):
    """Those who share what is available: ``ranks`` processes, of which ``waiting`` have not taken their part yet."""

    ranks: int
    waiting: int


ALONE: Final = Among(1, 1)


def require_memory(wanted: int, purpose: str, among: Among = ALONE) -> None:
    """Raises SaveFailed, with the numbers, when ``wanted`` bytes are more than this process's share; see `require_share`."""
    require_share(wanted, wanted, purpose, among)


def require_share(wanted: int, least: int, purpose: str, among: Among = ALONE) -> int:
    """Return how many of ``wanted`` bytes can be had at a time: all of them, or else a share of what is available that leaves as much to
    each of the others that wait, and RESERVE_BYTES to every process. Raises SaveFailed, with numbers, when that is below ``least``."""
    available = available_bytes()
    share = _share(available, among)
    if share < least:
        needed = f"{purpose} needs {mib(wanted)} of host memory" + (f", or {mib(least)} at a time," if least < wanted else "")
        left = f"leaves {mib(RESERVE_BYTES)} to {'the process' if among.ranks == 1 else 'each process'}"
        divided = f" for {among.waiting} of {among.ranks} ranks" if among.ranks > 1 else ""
        raise SaveFailed(
            f"{needed} and {left}; available are {mib(available)}{divided} "
            "(the smaller of MemAvailable and the container's memory limit less its use)"
        )
    return min(wanted, share)


def fits_memory(wanted: int, among: Among = ALONE) -> bool:
    """Say whether ``wanted`` bytes are no more than this process's share."""
    return wanted <= _share(available_bytes(), among)


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


def _share(available: int, among: Among) -> int:
    return (available - among.ranks * RESERVE_BYTES) // among.waiting


def mib(size: int) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1024**2:,.0f} MiB"
