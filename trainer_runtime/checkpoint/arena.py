"""The memory that a rank stages into and its persister writes from: one anonymous memory file, shared by its descriptor.

A memfd has no name and no size limit of its own (a container's /dev/shm has 64 MiB by default), it is gone with the last process that holds
it, and its pages count to the memory of the container. It is shared memory, because a data loader's fork would otherwise make every page of
the next save a copy-on-write fault. It knows nothing of tensors.
"""

from __future__ import annotations

import mmap
import os
import weakref

from trainer_runtime.errors import SaveFailed


class Arena:
    """``generations`` stretches of ``generation_bytes`` (whole pages) in one mapping. The memory goes with the last view of it."""

    def __init__(self, descriptor: int, generation_bytes: int, generations: int, *, touch: bool) -> None:
        """Map the memory file ``descriptor``, of which a duplicate is kept. ``touch``: have the kernel hand out every page now."""
        # MAP_POPULATE touches every page in one call of the kernel: a fresh page costs ten times what copying into it costs
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if touch else 0)
        self.memory = mmap.mmap(descriptor, generation_bytes * generations, flags=flags)
        self.generation_bytes = generation_bytes
        self.generations = generations
        self.descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor)

    def generation(self, number: int) -> memoryview:
        """Return one generation's bytes."""
        begin = number * self.generation_bytes
        return memoryview(self.memory)[begin : begin + self.generation_bytes]


def create_arena(generation_bytes: int, generations: int) -> Arena:
    """Make a memory file of that size and touch all of it.

    Raises SaveFailed for a limit of the process's own (ulimit -v, -f, -n).
    """
    size = generation_bytes * generations
    try:
        descriptor = os.memfd_create("rtj-arena", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            return Arena(descriptor, generation_bytes, generations, touch=True)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SaveFailed(f"staging a checkpoint needs {size} bytes of shared memory: {error.strerror}; see ulimit -a") from error
