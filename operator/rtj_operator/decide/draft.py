"""The plan while it is being made: the next status, and what the steps of one decision add to it. A value; every step returns a new one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rtj_operator.api.base import MAX_MESSAGE
from rtj_operator.api.v1alpha1 import JobStatus
from rtj_operator.decide.plan import Action, JobEvent


@dataclass(frozen=True)
class Draft:
    """A plan in the making."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    wakes: tuple[datetime, ...] = ()
    """When something changes by time alone."""

    def change(self, **fields: Any) -> Draft:
        """Return it with these status fields changed."""
        return replace(self, status=self.status.evolve(**fields))

    def with_status(self, status: JobStatus) -> Draft:
        """Return it with another status."""
        return replace(self, status=status)

    def act(self, *actions: Action) -> Draft:
        """Return it with these actions after those it has."""
        return replace(self, actions=(*self.actions, *actions))

    def tell(self, reason: str, message: str, warning: bool = False) -> Draft:
        """Return it with one more event. Only for a transition that this draft makes: an event is sent whenever the plan is."""
        return replace(self, events=(*self.events, JobEvent(reason, message[:MAX_MESSAGE], warning)))

    def wake(self, *times: datetime | None) -> Draft:
        """Return it with these times to look again."""
        return replace(self, wakes=(*self.wakes, *(at for at in times if at is not None)))

    def next_wake(self, now: datetime) -> datetime | None:
        """Return the earliest time after now."""
        return min((at for at in self.wakes if at > now), default=None)
