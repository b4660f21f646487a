"""Which checkpoints may go. Pure: it proposes; who may delete, and when, is `cleaning`'s business.

Only verified checkpoints on the lineage count towards what must stay: something that was never proven must not push out something that was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trainer_runtime.contract.assignment import Keep, ResumePoint
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import ConfigurationError

ABANDONED_SECONDS: Final = 24 * 3600.0
"""How long an abandoned or never verified checkpoint stays, so that a person can look at what a rollback left behind."""


@dataclass(frozen=True)
class Held:
    """One committed checkpoint as retention sees it."""

    name: StepName
    on_lineage: bool
    verified: bool
    tagged: bool
    age_seconds: float
    """Since it was last changed, by the store's clock."""


def propose(held: Iterable[Held], keep: Keep, resume: ResumePoint | None) -> tuple[StepName, ...]:
    """Return what may be deleted, oldest first.

    Kept are: the newest ``keep.last`` verified ones, every verified one whose step ``keep.every_steps`` divides, tagged ones, the resume
    point, and what is newer than the newest verified one (it may still be in the making). An abandoned or unverified one goes after 24 h.

    Raises ConfigurationError for a ``keep`` that would leave nothing.
    """
    if keep.last < 1:
        raise ConfigurationError(f"keep.last: {keep.last} is not >= 1")
    if keep.every_steps is not None and keep.every_steps < 1:
        raise ConfigurationError(f"keep.every_steps: {keep.every_steps} is not >= 1")
    known = sorted(held, key=lambda item: item.name)
    proven = [item.name for item in known if item.on_lineage and item.verified]
    kept = set(proven[-keep.last :])
    kept |= {name for name in proven if keep.every_steps is not None and name.step % keep.every_steps == 0}
    kept |= {item.name for item in known if item.tagged}
    if resume is not None:
        kept.add(StepName(resume.step, resume.attempt))
    return tuple(item.name for item in known if item.name not in kept and _may_go(item, proven))


def _may_go(item: Held, proven: list[StepName]) -> bool:
    if item.on_lineage and item.verified:
        return True
    if item.on_lineage and (not proven or item.name > proven[-1]):
        return False
    return item.age_seconds >= ABANDONED_SECONDS
