"""The bytes of one data file: a valid safetensors file whose header is padded so that the data begins on a page boundary.

A stage holds exactly these bytes, so staging a tensor writes its bytes once, and the file is written from memory as it stands. This module
makes headers and proves them; it never touches a tensor.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = 4096
"""Data begins at the first multiple of this that leaves room for the header: at byte 4096 for a short one."""
_LENGTH: Final = struct.Struct("<Q")
_METADATA: Final = {"format": "pt"}
"""What other readers of safetensors expect of a file that came from torch."""
MAX_HEADER_BYTES: Final = 100_000_000
"""safetensors' own limit."""


class BadHeader(ValueError):
    """A data file's header is not what its index says. The message names the tensor and the difference."""


@dataclass(frozen=True)
class Placed:
    """One tensor, or one piece of it, in a file. ``begin`` and ``end`` count from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_bytes(tensors: Iterable[Placed], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file's first bytes: length, JSON, spaces up to the page boundary where the data begins. ``metadata``: more of it."""
    table: dict[str, object] = {"__metadata__": {**_METADATA, **(metadata or {})}}
    for placed in tensors:
        table[placed.name] = {"dtype": placed.dtype, "shape": list(placed.shape), "data_offsets": [placed.begin, placed.end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    length = page_multiple(_LENGTH.size + len(text)) - _LENGTH.size
    return _LENGTH.pack(length) + text.ljust(length)


def page_multiple(size: int) -> int:
    """Return ``size`` rounded up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def header_length(first_bytes: bytes) -> int:
    """Return how many bytes stand before the data. Raises BadHeader."""
    if len(first_bytes) < _LENGTH.size:
        raise BadHeader("the file is shorter than a header's length field")
    (length,) = _LENGTH.unpack(first_bytes[: _LENGTH.size])
    if length > MAX_HEADER_BYTES:
        raise BadHeader(f"the header claims {length} bytes, more than safetensors' limit of {MAX_HEADER_BYTES}")
    return _LENGTH.size + int(length)


def check_header(header: bytes, size: int, expected: Mapping[str, Placed]) -> None:
    """Prove that a file's header lists exactly ``expected``, and that its tensors fill the data without a hole. Raises BadHeader."""
    try:
        table = json.loads(header[_LENGTH.size :])
    except ValueError as error:
        raise BadHeader(f"the header is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise BadHeader("the header is not a JSON object")
    table.pop("__metadata__", None)
    if table.keys() != expected.keys():
        raise BadHeader(f"the header and the index differ in tensors: {sorted(table.keys() ^ expected.keys())[:5]}")
    end = 0
    for placed in sorted(expected.values(), key=lambda placed: (placed.begin, placed.end)):
        wanted = {"dtype": placed.dtype, "shape": list(placed.shape), "data_offsets": [placed.begin, placed.end]}
        if table[placed.name] != wanted:
            raise BadHeader(f"{placed.name}: the header says {table[placed.name]}, the index {wanted}")
        if placed.begin != end:
            raise BadHeader(f"{placed.name}: begins at {placed.begin}, but the tensor before it ends at {end}")
        end = placed.end
    if len(header) + end != size:
        raise BadHeader(f"header and tensors make {len(header) + end} bytes, the file has {size}")
