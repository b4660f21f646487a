"""``rtj-checkpoints diff``: how two checkpoints differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.reading.comparing import Side, compare
from trainer_runtime.cli.checkpoints.choice import Chosen, Place, reading, short_name

SHOWN: Final = 30
"""Lines per heading."""


def run(place: Place, first: str, second: str) -> int:
    """Print what differs. Returns 0 when nothing does, else 1, as diff does."""
    chosen = place.choose(first), place.choose(second)
    with reading(*chosen):
        left, right = (Side(one.store, read_documents(one.store, one.found.reference)) for one in chosen)
        found = compare(left, right)
    print(f"first:  {_name(chosen[0])}\nsecond: {_name(chosen[1])}")
    _say("structure", found.structure)
    _say("settings", found.settings)
    _say("values", found.values)
    _say("tensors with other bytes", found.tensors)
    print(f"{found.equal_tensors} tensors are equal, {len(found.tensors)} are not" + ("; nothing differs" if found.is_equal else ""))
    return 0 if found.is_equal else 1


def _name(chosen: Chosen) -> str:
    return f"step {short_name(chosen.found)}  {chosen.found.reference.uri}"


def _say(heading: str, lines: Sequence[str]) -> None:
    if lines:
        print(f"{heading}:")
        for line in lines[:SHOWN]:
            print(f"  {line}")
        if len(lines) > SHOWN:
            print(f"  and {len(lines) - SHOWN} more")
