"""What single choices of the engine rest on, each beside what it was chosen over.

    python -m benchmarks.choices [--json] [--repeats 7] [--directory DIR]

Digests and reads in processor seconds per 10^9 bytes, small copies in microseconds per tensor of 1 KiB. They explain the numbers of other
benchmarks and have no bars of their own.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import xxhash
from blake3 import blake3

from benchmarks import measuring, saving
from trainer_runtime.checkpoint.arena import take_memory, touch_arena
from trainer_runtime.checkpoint.lanes import HOT_BYTES
from trainer_runtime.checkpoint.scatter import Scattered
from trainer_runtime.store.buffers import make_buffer

SIZE = 256 * 1024 * 1024
CHUNK = 16 * 1024 * 1024
TENSORS, ELEMENTS = 10_000, 256


def processor_seconds_per_gb(act: Callable[[], object]) -> float:
    """Processor seconds of this process, per 10^9 of SIZE bytes."""
    began = time.process_time()
    act()
    return (time.process_time() - began) / SIZE * 1e9


def digest(update: Callable[[memoryview], object], data: memoryview) -> None:
    """Take a digest as the engine does: a cache's worth at a time."""
    for begin in range(0, len(data), HOT_BYTES):
        update(data[begin : begin + HOT_BYTES])


def read_directly(path: Path, buffer: mmap.mmap) -> None:
    """Read a file past the page cache, chunk by chunk into ``buffer``, and hash it as a verification does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with memoryview(buffer) as view:
            for offset in range(0, SIZE, CHUNK):
                os.preadv(descriptor, [view], offset)
                xxhash.xxh3_128_digest(view)
    finally:
        os.close(descriptor)


def small_copies() -> dict[str, Callable[[], float]]:
    """Copies of TENSORS small tensors into a stage, by the kernel and by torch, in microseconds per tensor."""
    tensors = [torch.randn(ELEMENTS) for _ in range(TENSORS)]
    size = TENSORS * ELEMENTS * 4
    arena = touch_arena(take_memory(size), size, 1)
    places = list(torch.frombuffer(arena.memory, dtype=torch.float32).split(ELEMENTS))
    scattered = Scattered([tensor.data_ptr() for tensor in tensors], [tensor.nbytes for tensor in tensors])
    return {
        "small_copy_us": lambda: saving.timed(lambda: scattered.write(arena.descriptor, 0)) / TENSORS * 1e6,
        "small_copy_torch_us": lambda: saving.timed(lambda: torch._foreach_copy_(places, tensors)) / TENSORS * 1e6,
    }


def main() -> int:
    """Measure, print a table and one JSON line."""
    given = saving.options(__doc__, gigabytes=None).parse_args()
    data = memoryview(os.urandom(CHUNK) * (SIZE // CHUNK))
    with saving.scratch(given.directory) as directory:
        path = directory / "data"
        path.write_bytes(data)
        os.sync()
        contestants = {
            "blake3_cpu_s_per_gb": lambda: processor_seconds_per_gb(lambda: digest(blake3().update, data)),
            "sha256_cpu_s_per_gb": lambda: processor_seconds_per_gb(lambda: digest(hashlib.sha256().update, data)),
            "read_back_cpu_s_per_gb": lambda: processor_seconds_per_gb(lambda: read_directly(path, make_buffer(CHUNK))),
            "read_back_small_pages_cpu_s_per_gb": lambda: processor_seconds_per_gb(lambda: read_directly(path, mmap.mmap(-1, CHUNK))),
            **small_copies(),
        }
        for measure in contestants.values():
            measure()  # the first of each pays for what the others find warm
        results = measuring.take_turns(contestants, given.repeats)
    measuring.publish("choices", {"repeats": given.repeats, **{name: measuring.spread(values) for name, values in results.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
