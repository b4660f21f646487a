"""What parsers return (a sighting: one line or block) and what the stream makes of it (a finding: one incident).

It is not evidence yet: evidence also names the attempt, the worker and the node, which no log line knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.signals.fault_classes import DEFAULT_STRENGTH

FieldValue: TypeAlias = str | int | tuple[int, ...]


@dataclass(frozen=True)
class Sighting:
    """What one line or one multi-line block says, before anything is merged."""

    fault_class: str
    strength: Strength
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    """Sightings with equal keys, close in time, are one incident. The first part is the family, which sets how close."""
    follows: bool = False
    """Says only that a process ended: joins whatever incident came before it, and stands alone when there is none."""
    lines: tuple[str, ...] = ()
    """The lines of a block; empty when the sighting is the line that was just read."""
    anchor: str = ""
    """The text that decided; empty when that is the line that was just read."""


def sighting(
    fault_class: str,
    strength: Strength | None = None,
    fields: Mapping[str, FieldValue] | None = None,
    key: tuple[str, ...] = (),
    follows: bool = False,
    lines: tuple[str, ...] = (),
    anchor: str = "",
) -> Sighting:
    """Return a Sighting with the class's default strength, and the class as its key, where none is given."""
    return Sighting(fault_class, strength or DEFAULT_STRENGTH[fault_class], fields or {}, key or (fault_class,), follows, lines, anchor)


@dataclass(frozen=True)
class Finding:
    """One incident as one log tells it. A later finding with the same ``incident`` replaces the earlier one."""

    fault_class: str
    strength: Strength
    lines: tuple[str, ...]
    """The lines that belong to it, in the order they came; at most merge.MAX_LINES, ``fields["lines_seen"]`` counts the rest too."""
    fields: Mapping[str, FieldValue]
    at: float | None = None
    """Unix seconds of the first line, when it carried a time with a zone; None otherwise."""
    anchor: str = ""
    """The text that decided the class."""
    incident: int = 0
    """Number of the incident in its stream, from 0."""


def to_evidence(
    finding: Finding,
    at: float,
    attempt: int,
    worker: int | None = None,
    node: str | None = None,
    rank: int | None = None,
    source: Source = Source.LOG,
) -> Evidence:
    """Turn a finding into evidence of ``attempt``. ``at`` is Unix seconds; ``rank`` wins over the one the log line named."""
    named_rank = finding.fields.get("rank")
    gpu = finding.fields.get("gpu")
    return Evidence(
        at=at,
        source=source,
        fault_class=finding.fault_class,
        strength=finding.strength,
        text=finding.anchor,
        attempt=attempt,
        worker=worker,
        node=node,
        rank=rank if rank is not None else named_rank if isinstance(named_rank, int) else None,
        gpu=gpu if isinstance(gpu, str) else None,
    )
