"""When the next beat is due. Pure: what is news, how often to repeat, how long to wait for an operator that is away."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from trainer_runtime.contract.beat import BEAT_SECONDS, Phase
from trainer_runtime.heartbeat.state import WorkerState

WAITING_SECONDS: Final = 1.0
"""Period while the worker waits for an answer (hold, stopped, done): the operator's next word ends the wait."""
NEWS_GAP_SECONDS: Final = 0.2
"""Least time between two beats: a burst of evidence becomes one beat."""
FIRST_RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 10.0
"""An operator that came back hears of every worker within this; a worker counts as silent after 30 s."""
JITTER: Final = 0.1
"""Share of the period by which beats are spread, so that the workers of a job do not beat in step."""

_WAITING = frozenset({Phase.HOLD, Phase.STOPPED, Phase.DONE})
_PROGRESS = frozenset({"step", "epoch", "loss", "step_seconds", "phase_limits"})


def is_news(before: WorkerState | None, after: WorkerState) -> bool:
    """Say whether ``after`` must be told at once. Progress of the loop may wait for the period; everything else may not."""
    if before is None:
        return True
    names = [field.name for field in dataclasses.fields(WorkerState) if field.name not in _PROGRESS]
    return any(getattr(before, name) != getattr(after, name) for name in names)


def seconds_to_next(phase: Phase, failures: int, chance: float) -> float:
    """Return seconds from the end of the last try to the next without news; news comes after NEWS_GAP_SECONDS.

    ``failures`` tries in a row failed; ``chance`` is random in [0, 1).
    """
    if failures:
        retry = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * math.ldexp(1.0, min(failures - 1, 10)))
        return retry * (1 - JITTER * chance)
    period = WAITING_SECONDS if phase in _WAITING else BEAT_SECONDS
    return period * (1 + JITTER * chance)
