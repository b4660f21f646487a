"""Which checkpoints may go. Pure: it proposes; who may delete, and when, is `cleaning`'s business.

Only verified checkpoints on the lineage count towards what must stay: something that was never proven must not push out something that was.
A rule only ever adds to what stays, so one more rule never deletes more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from trainer_runtime.contract.assignment import Best, Goal, Keep
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.lineage import lineage_of
from trainer_runtime.contract.manifest import Fence
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
    changed_at: float
    """When it was last changed, as Unix seconds by the store's clock."""
    created_at: float = 0.0
    """The manifest's, as Unix seconds by the writer's clock. Days and weeks are counted by it, nothing else."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    abandoned_at: float = 0.0
    """When the fence that took it off the lineage was made, as Unix seconds by the store's clock; 0 while it is on it."""


def propose(held: Iterable[Held], keep: Keep, now: float, protected: Collection[StepName] = ()) -> tuple[StepName, ...]:
    """Return what may be deleted, oldest first. ``now``: Unix seconds.

    Kept are: the newest ``keep.last`` verified ones, every verified one that another rule of ``keep`` names, tagged ones, what is
    ``protected`` (the resume point, what another run began from, what is being copied), and what is newer than the newest verified one
    (it may still be in the making). An unverified one goes 24 h after it was last changed, an abandoned one 24 h after it was abandoned.

    Raises ConfigurationError for a ``keep`` that would leave nothing.
    """
    check_keep(keep)
    known = sorted(held, key=lambda item: item.name)
    proven = [item for item in known if item.on_lineage and item.verified]
    kept = {item.name for item in _named_by_rules(proven, keep)}
    kept |= {item.name for item in known if item.tagged}
    kept |= set(protected)
    newest = proven[-1].name if proven else None
    return tuple(item.name for item in known if item.name not in kept and _may_go(item, newest, now))


def check_keep(keep: Keep) -> None:
    """Raises ConfigurationError that names the rule whose number is below 1."""
    for rule in ("last", "every_steps", "daily", "weekly"):
        value = getattr(keep, rule)
        if value is not None and value < 1:
            raise ConfigurationError(f"keep.{rule}: {value} is not >= 1")


def find_best(proven: Iterable[Held], best: Best) -> Held | None:
    """Return the checkpoint with the best value of a metric, of equals the oldest; None when no checkpoint has a finite value of it."""
    valued = [item for item in proven if math.isfinite(item.metrics.get(best.metric, math.nan))]
    sign = 1.0 if best.mode is Goal.MIN else -1.0
    return min(valued, key=lambda item: (sign * item.metrics[best.metric], item.name), default=None)


def _named_by_rules(proven: Sequence[Held], keep: Keep) -> list[Held]:
    """Return what the rules keep of verified checkpoints, which come oldest first."""
    kept = list(proven[-keep.last :])
    if keep.every_steps is not None:
        kept += [item for item in proven if item.name.step % keep.every_steps == 0]
    if keep.best is not None:
        best = find_best(proven, keep.best)
        kept += [best] if best is not None else []
    if keep.daily is not None:
        kept += _newest_of_each(proven, keep.daily, lambda at: at.date())
    if keep.weekly is not None:
        kept += _newest_of_each(proven, keep.weekly, lambda at: at.isocalendar()[:2])
    return kept


def _newest_of_each(proven: Iterable[Held], count: int, period_of: Callable[[datetime], Hashable]) -> list[Held]:
    """Return the newest checkpoint of each of the ``count`` last periods that have one. Which one is newest, steps decide, not clocks."""
    newest: dict[Hashable, Held] = {}
    for item in proven:
        period = period_of(datetime.fromtimestamp(item.created_at, UTC))
        newest.pop(period, None)  # so that the periods are in the order of their newest checkpoints
        newest[period] = item
    return list(newest.values())[-count:]


def _may_go(item: Held, newest_proven: StepName | None, now: float) -> bool:
    if item.on_lineage and item.verified:
        return True
    if item.on_lineage and (newest_proven is None or item.name > newest_proven):
        return False
    return now - max(item.changed_at, item.abandoned_at) >= ABANDONED_SECONDS


def find_abandoning(fences: Sequence[Fence], name: StepName) -> Fence | None:
    """Return the fence that took a checkpoint off the lineage for the last time. None while it is on the lineage, and when no attempt came
    after the one that wrote it. ``fences``: lowest attempt first."""
    abandoning = None
    for number in reversed(range(len(fences))):
        if fences[number].attempt <= name.attempt or name in lineage_of(fences[: number + 1], [name]).on:
            break
        abandoning = fences[number]
    return abandoning
