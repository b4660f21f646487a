"""torch's element types and safetensors' words for them.

A type that the file format lacks is refused here, by name, before anything is staged.
"""

from __future__ import annotations

from typing import Final

import torch

from trainer_runtime.errors import ConfigurationError

_WORDS: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES: Final = {word: dtype for dtype, word in _WORDS.items()}
"""torch's type, by safetensors' word."""


def word_for(dtype: torch.dtype, name: str) -> str:
    """Return safetensors' word. Raises ConfigurationError that names the tensor ``name`` and its dtype when there is none."""
    word = _WORDS.get(dtype)
    if word is None:
        raise ConfigurationError(f"{name}: dtype {dtype} cannot be saved; safetensors has {', '.join(sorted(DTYPES))}")
    return word
