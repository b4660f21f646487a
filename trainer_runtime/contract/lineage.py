"""Which checkpoints lead to where the run is now. Pure, and from fences alone: neither clocks nor names of files decide what is newest.

A fence records where its attempt began. So the lineage is a walk: all that the newest attempt wrote; before that, what the attempt it
resumed from wrote, up to that step; and so on until an attempt that began from nothing, from another run or from weights alone. Whatever
else was committed, by an attempt that was rolled back or by one that did not know it was over, is abandoned: listed, never chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainer_runtime.contract.assignment import ResumeMode
from trainer_runtime.contract.layout import StepName
from trainer_runtime.contract.manifest import Fence


@dataclass(frozen=True)
class Lineage:
    """The committed checkpoints of a run, oldest first in both lists."""

    on: tuple[StepName, ...]
    abandoned: tuple[StepName, ...]

    @property
    def newest(self) -> StepName | None:
        return self.on[-1] if self.on else None


def lineage_of(fences: Iterable[Fence], names: Iterable[StepName]) -> Lineage:
    """Sort committed checkpoints into those on the lineage of the highest fence and those abandoned.

    Without any fence nothing is on it: a run whose fences are lost must be looked at by a person.
    """
    by_attempt = {fence.attempt: fence for fence in fences}
    unseen = set(names)
    on: list[StepName] = []
    attempt = max(by_attempt, default=None)
    bound: int | None = None
    while attempt is not None:
        reached = {name for name in unseen if name.attempt == attempt and (bound is None or name.step <= bound)}
        on.extend(reached)
        unseen -= reached
        fence = by_attempt.get(attempt)
        if fence is None or fence.resume is None or fence.resume_run is not None or fence.resume.attempt >= attempt:
            break
        if fence.resume.mode is ResumeMode.WARM_START:  # it took the weights and counts from step 0 again
            break
        attempt, bound = fence.resume.attempt, fence.resume.step
    return Lineage(on=tuple(sorted(on)), abandoned=tuple(sorted(unseen)))
