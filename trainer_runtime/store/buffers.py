"""Memory that storage is read into.

Private and in large pages where the kernel has them: a device then pins one page for each 2 MiB instead of 512. With the hashing that
follows, a direct read takes a quarter of the processor time (`benchmarks.choices`).
"""

from __future__ import annotations

from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap


def make_buffer(size: int) -> mmap:
    """Return ``size`` bytes of fresh memory, on a page's boundary. It goes with its last view."""
    buffer = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    try:
        buffer.madvise(MADV_HUGEPAGE)
    except OSError:  # a kernel that was built without them: small pages hold the same
        return buffer
    return buffer
