"""The bytes of a tensor as they lie in host memory, to be hashed, or to be filled from a file.

``Tensor.numpy()`` is not the way: torch marks a storage of which numpy ever had a view, and lets nobody resize it after that. So a save or
a restore would change what a script, or a library that frees and regrows its parameters' memory, may do with its own tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class _Lent:
    """A tensor's memory as numpy asks for it. The tensor lives for as long as this does, and this for as long as what numpy makes of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.nbytes,),
            "data": (tensor.data_ptr(), False),
        }


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor in host memory, which may be written too. The view keeps the tensor alive."""
    return np.asarray(_Lent(tensor)).data if tensor.nbytes else memoryview(bytearray())
