"""Many small tensors into the stage by few calls of the kernel, which copies each in less than half of torch's time
(`benchmarks.choices`).

It works on addresses, so whoever calls it has made sure that they are those of plain, contiguous host memory, right now.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer_runtime.errors import SaveFailed

PARTS_PER_CALL: Final = 1024
"""IOV_MAX of Linux."""
_PWRITEV: Final = ctypes.CDLL(None, use_errno=True).pwritev
_PWRITEV.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong)
_PWRITEV.restype = ctypes.c_ssize_t


class Scattered:
    """Parts of this process's memory, by address and length in bytes, which go to one stretch of a file in this order."""

    def __init__(self, addresses: Sequence[int], lengths: Sequence[int]) -> None:
        # struct iovec: a pointer and a size_t
        self._parts: npt.NDArray[np.uint64] = np.empty((len(addresses), 2), np.uint64)
        self._parts[:, 0] = addresses
        self._parts[:, 1] = lengths
        starts = range(0, len(addresses), PARTS_PER_CALL)
        self._calls = [(first, int(self._parts[first : first + PARTS_PER_CALL, 1].sum())) for first in starts]

    def write(self, descriptor: int, offset: int) -> None:
        """Copy all of it to ``offset`` of the file. Raises SaveFailed when memory is not there any more, where a copy of our own would end
        the process."""
        for first, wanted in self._calls:
            count = min(PARTS_PER_CALL, len(self._parts) - first)
            written = _PWRITEV(descriptor, self._parts[first:].ctypes.data, count, offset)
            if written != wanted:
                reason = os.strerror(ctypes.get_errno()) if written < 0 else f"{written} of {wanted} bytes were taken"
                raise SaveFailed(f"copying small tensors into the stage: {reason}")
            offset += wanted
