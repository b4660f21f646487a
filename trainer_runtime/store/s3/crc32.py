"""CRC-32 of a whole from the CRC-32s of its parts.

Parts are sent in parallel, and the server wants the checksum of the object; summing all bytes a second time would cost as much as the
first. Appending ``n`` zero bytes to a message multiplies its CRC, taken as a polynomial over GF(2), by x^(8n) modulo the CRC's own one.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Final

_POLYNOMIAL: Final = 0xEDB88320
"""CRC-32 of ISO 3309 (zlib, gzip, S3), lowest power of x in the highest bit."""
_ONE: Final = 0x80000000


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC-32 of the concatenation of parts, each given as its CRC-32 and its length in bytes."""
    whole = 0
    for crc, length in parts:
        whole = _multiply(whole, _power_of_x(8 * length)) ^ crc
    return whole


def to_base64(crc: int) -> str:
    """Return the form in which S3 writes a CRC-32: its four bytes, highest first, in base64."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _multiply(a: int, b: int) -> int:
    product = 0
    bit = _ONE
    while bit:
        if a & bit:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
        bit >>= 1
    return product


def _power_of_x(exponent: int) -> int:
    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        exponent >>= 1
    return power
