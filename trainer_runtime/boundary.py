"""The step boundary: the one place where ranks agree to save or stop, and the pure rule that says what happens there.

What a rank wishes at the end of step k is reduced (MAX) over all ranks in the background and read at the end of step k + 1, so that no step
waits for it and every rank acts at the same step. Triggers that all ranks count alike (every n steps) need no agreement. It moves no state:
`run` acts on what is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final, Protocol

import torch
import torch.distributed as dist

LEAST_TIMEOUT_SECONDS: Final = 1800.0
"""Least time-out of the private group."""
_ABOVE_HANG_LIMIT: Final = 2.0
"""A hung rank must be judged by the hang watch, which knows whose fault it is, before its peers' agreement gives up."""


@dataclass(frozen=True)
class Wishes:
    """What one rank says at a boundary, or what all said together: True if any rank said so."""

    stop: bool = False
    save: bool = False
    busy: bool = False
    """A save is in flight. All ranks must know that alike, or some would skip a save that others take part in."""
    no_time: bool = False
    """What is left until the process is killed is less than any save has taken. Here too, some would wait for a save that others skip."""


class Agreement(Protocol):
    """One exchange of wishes per step, one step late."""

    def start(self, wishes: Wishes) -> None:
        """Tell the others, at the end of a step. Returns at once."""

    def read(self) -> Wishes:
        """Return what all ranks said at the end of the step before, nothing at first. Raises RuntimeError when a rank is gone."""

    def finish(self) -> None:
        """Wait for all ranks once, at the end of the run."""


class AloneAgreement:
    """A world of one agrees with itself, one step late like every other."""

    def __init__(self) -> None:
        self._last = Wishes()

    def start(self, wishes: Wishes) -> None:
        self._last = wishes

    def read(self) -> Wishes:
        last, self._last = self._last, Wishes()
        return last

    def finish(self) -> None:
        self._last = Wishes()


class GroupAgreement:
    """The wishes of all ranks over a gloo group of our own: never the training's groups, whose collectives it could get between.

    ``hang_seconds``: the hang limit, None when it is learned.
    """

    def __init__(self, hang_seconds: float | None) -> None:
        timeout = max(LEAST_TIMEOUT_SECONDS, _ABOVE_HANG_LIMIT * (hang_seconds or 0.0))
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        assert isinstance(group, dist.ProcessGroup)  # every rank is a member of it
        self._group = group
        self._flags: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def start(self, wishes: Wishes) -> None:
        self._flags = torch.tensor([wishes.stop, wishes.save, wishes.busy, wishes.no_time], dtype=torch.int32)
        self._work = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def read(self) -> Wishes:
        if self._work is None or self._flags is None:
            return Wishes()
        self._work.wait()
        self._work = None
        return Wishes(*(bool(flag) for flag in self._flags.tolist()))

    def finish(self) -> None:
        self.read()
        dist.barrier(group=self._group)


class Action(Enum):
    """What all ranks do at this boundary."""

    GO_ON = "go on"
    SAVE = "save"
    SAVE_AND_STOP = "save and stop"
    STOP = "stop"
    """Without a save, which would not end in time."""


@dataclass(frozen=True)
class Triggers:
    """What was asked for and not done yet, as every rank knows it alike."""

    every_steps: int | None
    last_saved_step: int
    save_owed: bool = False
    """A save was agreed and could not be staged at that boundary."""
    stop_owed: bool = False
    save_called: bool = False
    """run.save() was called in this step, on every rank."""


def decide(triggers: Triggers, agreed: Wishes, step: int, is_between_steps: bool) -> Action:
    """Return the action at the end of ``step``. ``is_between_steps`` False: gradients are being accumulated, so nothing may be saved now.

    A busy stage makes a save wait for the next free boundary; a stop and an explicit save wait for the stage instead.
    """
    if not is_between_steps:
        return Action.GO_ON
    if triggers.stop_owed or agreed.stop:
        return Action.STOP if agreed.no_time else Action.SAVE_AND_STOP
    if triggers.save_called:
        return Action.SAVE
    due = triggers.every_steps is not None and step // triggers.every_steps > triggers.last_saved_step // triggers.every_steps
    if (due or triggers.save_owed or agreed.save) and not agreed.busy:
        return Action.SAVE
    return Action.GO_ON
