"""Every job as it was last seen, by whoever saw it last: the watch, a list, or our own write.

A version never goes back: what our own write returned stays until the watch has passed it, so that no pass works on the past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.decide.observation import RunOwner
from rtj_operator.reconcile.run_owner import RunIndex
from rtj_operator.reconcile.work_queue import Key

MAX_ENDED: Final = 10_000
"""Uids of deleted jobs that are remembered, newest kept. One that is forgotten costs a job on the same run ten quiet minutes."""


class JobCache:
    """Jobs by key and by uid. ``on_gone`` is called with a job that was deleted or replaced by another of its name."""

    def __init__(self, on_gone: Callable[[Job], None]) -> None:
        self._on_gone = on_gone
        self._jobs: dict[Key, Job] = {}
        self._keys: dict[str, Key] = {}
        self._runs = RunIndex()
        self._ended: dict[str, None] = {}
        """In the order of their ends."""

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, key: Key) -> Job | None:
        """Return the job of that namespace and name."""
        return self._jobs.get(key)

    def by_uid(self, uid: str) -> Job | None:
        """Return the job with that uid."""
        key = self._keys.get(uid)
        return self._jobs.get(key) if key else None

    def all(self) -> Iterable[Job]:
        """Return all jobs."""
        return list(self._jobs.values())

    def live_uids(self) -> frozenset[str]:
        """Return the uids of all jobs that exist and are not finished."""
        return frozenset(job.uid for job in self._jobs.values() if not job.is_finished)

    def has_ended(self, uid: str) -> bool:
        """Say whether a job with that uid was seen here, and is deleted or finished now. False for one that was never seen."""
        job = self.by_uid(uid)
        return job.is_finished if job is not None else uid in self._ended

    def run_owner(self, job: Job) -> RunOwner | None:
        """Return the other live job that owns this job's run directory, if there is one."""
        return self._runs.find_owner(job, self.by_uid)

    def sources(self, job: Job) -> frozenset[tuple[int, int]]:
        """Return the (step, attempt) of this job's run that live jobs name in spec.checkpoint.resumeFrom."""
        return self._runs.sources(job, self.by_uid)

    def saw(self, obj: dict[str, Any]) -> Job | None:
        """Take an object from a watch, list or read. Returns the job if it is news, None when a newer version is known already."""
        job = Job.parse(obj)
        known = self._jobs.get(job.key)
        if known is not None and known.uid == job.uid and _version(job.resource_version) <= _version(known.resource_version):
            return None
        if known is not None and known.uid != job.uid:
            if _version(job.resource_version) < _version(known.resource_version):
                return None
            self._drop(known)
        self._jobs[job.key] = job
        self._keys[job.uid] = job.key
        self._runs.note(job)
        return job

    def wrote(self, obj: dict[str, Any]) -> Job:
        """Take the object that our own write returned. A job that was deleted meanwhile does not come back by it."""
        job = Job.parse(obj)
        known = self._jobs.get(job.key)
        if known is not None and known.uid == job.uid and _version(job.resource_version) >= _version(known.resource_version):
            self._jobs[job.key] = job
        return job

    def gone(self, key: Key, uid: str | None = None) -> None:
        """Take note that a job is deleted; with a uid only if it is that one."""
        known = self._jobs.get(key)
        if known is not None and uid in (None, known.uid):
            self._drop(known)

    def replace(self, objects: Iterable[dict[str, Any]], list_version: str) -> list[Job]:
        """Take a full list: drop what it lacks (unless it was created after the list), and return the jobs that are news."""
        items = list(objects)
        listed = {str((obj.get("metadata") or {}).get("uid")) for obj in items}
        for job in list(self._jobs.values()):
            if job.uid not in listed and _version(job.resource_version) <= _version(list_version):
                self._drop(job)
        return [news for obj in items if (news := self.saw(obj)) is not None]

    def _drop(self, job: Job) -> None:
        del self._jobs[job.key]
        del self._keys[job.uid]
        self._runs.forget(job)
        self._ended[job.uid] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._on_gone(job)


def _version(text: str) -> int:
    """Resource versions of one resource are comparable numbers (guaranteed since Kubernetes 1.35, true of etcd before)."""
    return int(text) if text.isdigit() else 0
