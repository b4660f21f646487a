"""Makes incidents of sightings: what one fault printed in several lines, from several ranks, is one incident with one class.

Merging is by key and time. A time counts when two lines carry it by the same clock; else the moments at which the lines were read; else
lines that stand in one log are taken as near. It is not attribution: incidents of one log are not compared with another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from trainer_runtime.contract.evidence import MAX_EVIDENCE_TEXT, Strength
from trainer_runtime.signals.fault_classes import GPU_RESET_REQUIRED
from trainer_runtime.signals.finding import FieldValue, Finding, Sighting
from trainer_runtime.signals.log_line import LogLine, Moment
from trainer_runtime.signals.nccl import COLLECTIVE

MERGE_SECONDS: Final = MappingProxyType({"gpu": 5.0, COLLECTIVE: 1000.0})
"""How far apart two lines of one incident may be, by the first part of its key. A GPU's follow-up lines come within milliseconds, other
sources join bursts within 5 s; c10d's heartbeat monitor speaks 480 s after the time-out, and once more after another 480 s."""
DEFAULT_MERGE_SECONDS: Final = 180.0

MAX_INCIDENTS: Final = 256
MAX_LINES: Final = 20
MAX_LINE_CHARACTERS: Final = 1000
MAX_RANKS: Final = 64

WEIGHT: Final = MappingProxyType(
    {
        Strength.NODE: 6,
        Strength.SUSPECT: 5,
        Strength.APP: 4,
        Strength.ENV: 3,
        Strength.VICTIM: 2,
        Strength.UNKNOWN: 1,
        Strength.BENIGN: 0,
    }
)
"""The heaviest line of an incident names it; among equals the first."""


@dataclass(frozen=True)
class _Open:
    """An incident that lines may still join."""

    finding: Finding
    key: tuple[str, ...]
    moment: Moment | None
    read_at: float | None


class Incidents:
    """All incidents of one log. Memory is bounded: beyond ``limit`` the lightest, then the oldest is forgotten."""

    def __init__(self, limit: int = MAX_INCIDENTS) -> None:
        self._limit = limit
        self._by_number: dict[int, _Open] = {}
        self._newest_by_key: dict[tuple[str, ...], int] = {}
        self._next = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return every incident that is remembered, in the order in which they began."""
        return tuple(self._by_number[number].finding for number in sorted(self._by_number))

    def add(self, seen: Sighting, line: LogLine, read_at: float | None = None) -> Finding | None:
        """Put a sighting where it belongs. Returns the incident when that is news: a new one, or one whose class or strength changed."""
        number = self._find_home(seen, line.moment, read_at)
        if number is None:
            return self._begin(seen, line, read_at)
        before = self._by_number[number]
        after = replace(
            before,
            finding=_joined(before.finding, seen, line),
            moment=line.moment or before.moment,
            read_at=read_at if read_at is not None else before.read_at,
        )
        self._by_number[number] = after
        changed = (after.finding.fault_class, after.finding.strength) != (before.finding.fault_class, before.finding.strength)
        return after.finding if changed else None

    def _find_home(self, seen: Sighting, moment: Moment | None, read_at: float | None) -> int | None:
        number = self._newest_by_key.get(seen.key)
        if number is None and seen.follows:
            number = max(self._by_number, default=None)
        if number is None:
            return None
        home = self._by_number[number]
        window = MERGE_SECONDS.get(home.key[0], DEFAULT_MERGE_SECONDS)
        return number if _seconds_between(home, moment, read_at) <= window else None

    def _begin(self, seen: Sighting, line: LogLine, read_at: float | None) -> Finding:
        lines = seen.lines or (line.text,)
        finding = Finding(
            fault_class=seen.fault_class,
            strength=seen.strength,
            lines=tuple(text[:MAX_LINE_CHARACTERS] for text in lines[:MAX_LINES]),
            fields=_fields_of(seen, line),
            at=line.moment.seconds if line.moment is not None and line.moment.clock == "utc" else None,
            anchor=_anchor(seen, line),
            incident=self._next,
        )
        if len(self._by_number) >= self._limit:
            self._forget_one()
        self._by_number[self._next] = _Open(finding, seen.key, line.moment, read_at)
        self._newest_by_key[seen.key] = self._next
        self._next += 1
        return finding

    def _forget_one(self) -> None:
        number = min(self._by_number, key=lambda each: (WEIGHT[self._by_number[each].finding.strength], each))
        del self._by_number[number]
        self._newest_by_key = {key: home for key, home in self._newest_by_key.items() if home != number}


def _seconds_between(home: _Open, moment: Moment | None, read_at: float | None) -> float:
    if home.moment is not None and moment is not None and home.moment.clock == moment.clock:
        return abs(moment.seconds - home.moment.seconds)
    if home.read_at is not None and read_at is not None:
        return abs(read_at - home.read_at)
    return 0.0


def _joined(before: Finding, seen: Sighting, line: LogLine) -> Finding:
    new_lines = seen.lines or (line.text,)
    old_count = before.fields.get("lines_seen", len(before.lines))
    lines_seen = (old_count if isinstance(old_count, int) else len(before.lines)) + len(new_lines)
    lines = (*before.lines, *(text[:MAX_LINE_CHARACTERS] for text in new_lines))[:MAX_LINES]
    takes_over = not seen.follows and _outweighs(seen, before)
    new_fields = _fields_of(seen, line)
    fields = {**before.fields, **new_fields} if takes_over else {**new_fields, **before.fields}
    fields |= _united(before.fields, new_fields)
    if lines_seen > len(lines):
        fields["lines_seen"] = lines_seen
    if not takes_over:
        return replace(before, lines=lines, fields=fields)
    return replace(before, fault_class=seen.fault_class, strength=seen.strength, lines=lines, fields=fields, anchor=_anchor(seen, line))


def _outweighs(seen: Sighting, before: Finding) -> bool:
    if WEIGHT[seen.strength] != WEIGHT[before.strength]:
        return WEIGHT[seen.strength] > WEIGHT[before.strength]
    # "Reset required" is the driver's conclusion from another fault: that fault names the incident, whichever line came first.
    return before.fault_class == GPU_RESET_REQUIRED != seen.fault_class


def _fields_of(seen: Sighting, line: LogLine) -> dict[str, FieldValue]:
    """The sighting's fields; the rank that its printer's label names wins over one inside the text."""
    fields = dict(seen.fields)
    if line.rank is not None:
        fields["rank"] = line.rank
    if line.local_rank is not None:
        fields["local_rank"] = line.local_rank
    rank = fields.get("rank")
    if isinstance(rank, int):
        fields["ranks"] = (rank,)
    return fields


def _united(before: Mapping[str, FieldValue], new: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """Lists (ranks, xids) of one incident keep every member, in the order they were seen."""
    united: dict[str, FieldValue] = {}
    for name in before.keys() & new.keys():
        old_values, new_values = before[name], new[name]
        if isinstance(old_values, tuple) and isinstance(new_values, tuple):
            united[name] = tuple(dict.fromkeys((*old_values, *new_values)))[:MAX_RANKS]
    return united


def _anchor(seen: Sighting, line: LogLine) -> str:
    return (seen.anchor or line.text)[:MAX_EVIDENCE_TEXT]
