"""The shape of a rule for one kind of line, and how a table of them is read. The tables stand with the parsers that own them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.finding import FieldValue, Sighting, sighting

MAX_NUMBER_DIGITS: Final = 18


@dataclass(frozen=True)
class LineRule:
    """One kind of line: a literal that every such line contains, the pattern that proves it, and what it means."""

    literal: str
    """Looked for before the pattern is tried; the stream's filter must let every line with it pass."""
    fault_class: str
    pattern: re.Pattern[str] | None = None
    """None: the literal alone is proof. Named groups become fields."""
    strength: Strength | None = None
    """None: the class's default."""
    family: str = ""
    """First part of the merge key; empty: the fault class."""
    merge_by: tuple[str, ...] = ()
    """Fields that tell two incidents of this kind apart."""

    def read(self, body: str) -> Sighting | None:
        """Return what ``body`` says, or None when it is not this kind of line."""
        if self.literal not in body:
            return None
        fields: dict[str, FieldValue] = {}
        if self.pattern is not None:
            match = self.pattern.search(body)
            if match is None:
                return None
            fields = {name: read_field(name, value) for name, value in match.groupdict().items() if value is not None}
        key = (self.family or self.fault_class, *(str(fields.get(name, "")) for name in self.merge_by))
        return sighting(self.fault_class, self.strength, fields, key)


def rule(
    literal: str,
    fault_class: str,
    pattern: str | None = None,
    strength: Strength | None = None,
    family: str = "",
    merge_by: tuple[str, ...] = (),
) -> LineRule:
    """Return a LineRule with its pattern compiled."""
    return LineRule(literal, fault_class, None if pattern is None else re.compile(pattern), strength, family, merge_by)


def first_match(rules: Iterable[LineRule], body: str) -> Sighting | None:
    """Return what the first rule that fits says, or None."""
    for line_rule in rules:
        found = line_rule.read(body)
        if found is not None:
            return found
    return None


def read_field(name: str, value: str) -> FieldValue:
    """Return a group's value: bus ids in one spelling, plain numbers as integers, anything else as it stands."""
    if name == "gpu":
        return canonical_bus_id(value)
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= MAX_NUMBER_DIGITS:
        return int(value)
    return value


def canonical_bus_id(text: str) -> str:
    """Return ``dddd:bb:dd`` in lower case: drivers print 4 or 8 domain digits, with or without the function number."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest.partition('.')[0]}"
