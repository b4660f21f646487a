"""One message is one line of JSON with the message's class in ``kind``.

Lines are bounded, so that neither end can fill the other's memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from trainer_runtime.channel.messages import (
    ArchiveLooked,
    DeleteProposed,
    Down,
    Ending,
    Holding,
    MayDelete,
    Proceed,
    Progress,
    Raised,
    Recorded,
    Save,
    SaveAbandoned,
    SaveAndStop,
    Up,
)
from trainer_runtime.contract.codec import ContractError, from_jsonable, to_jsonable

MAX_LINE_BYTES: Final = 256 * 1024
"""The longest message is an inventory of 20 records of about 400 bytes; the rest is room for long store addresses."""


@dataclass(frozen=True)
class Hello:
    """A connection's first line: which rank speaks. Messages without a rank of their own are attributed by it."""

    rank: int
    pid: int


M = TypeVar("M")

_UP: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Hello, Progress, Recorded, Holding, SaveAbandoned, ArchiveLooked, DeleteProposed, Raised, Ending)
}
_DOWN: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (SaveAndStop, Save, Proceed, MayDelete)}


def encode(message: Up | Down | Hello) -> bytes:
    """Return the message's line, with its newline. Raises ContractError when it is longer than MAX_LINE_BYTES."""
    name = type(message).__name__
    line = json.dumps({"kind": name, **to_jsonable(message)}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ContractError(f"{name}: {len(line)} bytes, a line may have {MAX_LINE_BYTES}")
    return line


def decode_up(line: bytes) -> Up | Hello:
    """Read what a rank sent. Raises ContractError."""
    message: Up | Hello = _decode(line, _UP)
    return message


def decode_down(line: bytes) -> Down:
    """Read what rtj-run sent. Raises ContractError."""
    message: Down = _decode(line, _DOWN)
    return message


def _decode(line: bytes, kinds: dict[str, type[Any]]) -> Any:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"channel: not JSON: {error}") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ContractError(f"kind: {kind!r} is not one of {sorted(kinds)}")
    return from_jsonable(kinds[kind], data)


class LineSplitter:
    """Cuts a byte stream into lines and holds at most one unfinished line."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` finished, without their newlines. Raises ContractError when one grows past MAX_LINE_BYTES."""
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        longest = max((len(line) for line in (*lines, rest)), default=0)
        if longest >= MAX_LINE_BYTES:
            raise ContractError(f"channel: a line of {longest} bytes, the limit is {MAX_LINE_BYTES}")
        return lines
