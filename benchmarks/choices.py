"""What single choices of the engine rest on, each beside what it was chosen over.

    python -m benchmarks.choices [--json] [--repeats 7] [--directory DIR]

Digests and reads in processor seconds per 10^9 bytes; copies of tensors of 1 KiB, and looks at their forms, in microseconds per tensor.
They explain the numbers of other benchmarks and have no bars of their own.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import xxhash
from blake3 import blake3

from benchmarks import measuring, saving
from trainer_runtime.checkpoint.lanes import HOT_BYTES
from trainer_runtime.checkpoint.staging.arena import take_memory, touch_arena
from trainer_runtime.checkpoint.staging.scatter import Scattered
from trainer_runtime.state.forms import Forms, OwnCheck
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


def small_tensors() -> dict[str, Callable[[], float]]:
    """What is done with each of TENSORS small tensors in every save, in microseconds per tensor: copied into a stage, by the kernel and by
    torch; and its form looked at, by torch's check and by our own."""
    tensors = [torch.randn(ELEMENTS) for _ in range(TENSORS)]
    size = TENSORS * ELEMENTS * 4
    arena = touch_arena(take_memory(size), size, 1)
    places = list(torch.frombuffer(arena.memory, dtype=torch.float32).split(ELEMENTS))
    scattered = Scattered([tensor.data_ptr() for tensor in tensors], [tensor.nbytes for tensor in tensors])
    forms, own = Forms(tensors), OwnCheck(tensors)
    acts: dict[str, Callable[[], object]] = {
        "small_copy_us": lambda: scattered.write(arena.descriptor, 0),
        "small_copy_torch_us": lambda: torch._foreach_copy_(places, tensors),
        "form_us": lambda: forms.hold(tensors),
        "form_by_own_check_us": lambda: own.check(*tensors),
    }
    return {name: partial(microseconds_per_tensor, act) for name, act in acts.items()}


def microseconds_per_tensor(act: Callable[[], object]) -> float:
    """Microseconds that ``act`` takes for each of TENSORS."""
    return saving.timed(act) / TENSORS * 1e6


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
            **small_tensors(),
        }
        for measure in contestants.values():
            measure()  # the first of each pays for what the others find warm
        results = measuring.take_turns(contestants, given.repeats)
    measuring.publish("choices", {"repeats": given.repeats, **{name: measuring.spread(values) for name, values in results.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
