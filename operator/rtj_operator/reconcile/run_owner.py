"""Which live job owns a run directory, and which checkpoints in it live jobs begin with.

The owner is the one that launched, else the oldest: two writers would shut each other out by fences. It says who; what a job that is not
the owner does is decided in `decide`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.errors import UnusableSpec
from rtj_operator.build.run_key import run_key, source_key
from rtj_operator.decide.observation import RunOwner
from trainer_runtime.contract.layout import StepName


class RunIndex:
    """Jobs by run directory. What names the directory is immutable in a spec, so it is computed once per job."""

    def __init__(self) -> None:
        self._key_of: dict[str, str] = {}
        self._uids: dict[str, set[str]] = defaultdict(set)
        self._source_of: dict[str, tuple[str, StepName]] = {}

    def note(self, job: Job) -> None:
        """Take a job in; one whose spec cannot be used owns nothing. The checkpoint it begins with may change in a spec."""
        self._note_source(job)
        if job.uid in self._key_of:
            return
        try:
            key = run_key(job)
        except UnusableSpec:
            return
        self._key_of[job.uid] = key
        self._uids[key].add(job.uid)

    def forget(self, job: Job) -> None:
        """Take out a job that is gone."""
        self._source_of.pop(job.uid, None)
        key = self._key_of.pop(job.uid, None)
        if key is not None:
            self._uids[key].discard(job.uid)
            if not self._uids[key]:
                del self._uids[key]

    def find_owner(self, job: Job, by_uid: Callable[[str], Job | None]) -> RunOwner | None:
        """Return the other live job that owns this job's run directory; None when the job owns it itself."""
        key = self._key_of.get(job.uid)
        if key is None:
            return None
        rivals = [by_uid(uid) for uid in self._uids[key] if uid != job.uid]
        live = [rival for rival in rivals if rival is not None and not rival.is_finished]
        owner = min([job, *live], key=_claim)
        return None if owner is job else RunOwner(owner.namespace, owner.name)

    def sources(self, job: Job, by_uid: Callable[[str], Job | None]) -> frozenset[tuple[int, int]]:
        """Return the (step, attempt) of this job's run that specs of live jobs begin with."""
        key = self._key_of.get(job.uid)
        named = ((uid, name) for uid, (run, name) in self._source_of.items() if run == key)
        return frozenset((name.step, name.attempt) for uid, name in named if (user := by_uid(uid)) is not None and not user.is_finished)

    def _note_source(self, job: Job) -> None:
        try:
            source = source_key(job)
        except UnusableSpec:
            return  # what it named before stays protected: a spec is seldom broken for long
        if source is None:
            self._source_of.pop(job.uid, None)
        else:
            self._source_of[job.uid] = source


def _claim(job: Job) -> tuple[bool, datetime, str]:
    # Creation times are whole seconds, so two jobs of one second are told apart by uid; whoever runs already must not lose by that.
    return (job.status.attempt == 0, job.creation_timestamp or datetime.max.replace(tzinfo=UTC), job.uid)
