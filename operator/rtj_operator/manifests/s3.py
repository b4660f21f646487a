"""Reads the manifests of jobs whose S3 store the administrator allowed, so that a resume point is chosen from the store itself.

A look runs beside the passes: it is begun when a choice is due, and wakes the job when it has ended. One that fails or takes too long says
so, and the choice is made from what workers reported: an unreachable store never holds a job up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.manifests.base import Look
from rtj_operator.manifests.bucket import Bucket, Clients
from rtj_operator.manifests.run_listing import StoreTrouble, list_run
from rtj_operator.settings import ManifestPrefix
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.manifest import Fence
from trainer_runtime.contract.place import S3, parse_store

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""How long a look may take. A gang takes longer to be scheduled."""
TURN_SECONDS: Final = 45.0
"""How long a look waits for its turn when many jobs are relaunched at once."""
FRESH: Final = timedelta(seconds=30)
"""How long a look counts: nothing runs meanwhile that could write, but its last checkpoint may have been under way."""
THREADS: Final = 16
"""Looks at the same time; each waits for the network most of its time."""


@dataclass
class _Looked:
    """What is known of one job's store."""

    look: Look = Look()
    attempt: int = -1
    """The attempt after which the store was looked at."""
    ended_at: datetime | None = None
    task: asyncio.Task[None] | None = None
    fences: dict[int, Fence] = field(default_factory=dict)


class S3Reader:
    """Looks into the stores of jobs. For one event loop."""

    def __init__(self, allowed: Sequence[ManifestPrefix], wake: Callable[[str], None], clock: Callable[[], datetime]) -> None:
        """``wake`` is called with a job's uid when a look at its store has ended."""
        self._allowed = tuple(allowed)
        self._wake = wake
        self._clock = clock
        self._looked: dict[str, _Looked] = {}
        self._turns = asyncio.Semaphore(THREADS)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="manifests")
        self._clients = Clients(THREADS)

    def look(self, job: Job, is_due: bool, now: datetime) -> Look:
        """Return what is known of the job's store; begin a look when one is due and none is fresh.

        When none is due only what went wrong last is told: what was found may have been deleted since.
        """
        allowed = find_allowed(self._allowed, job)
        if allowed is None:
            return Look()
        known = self._looked.setdefault(job.uid, _Looked())
        is_fresh = known.attempt == job.status.attempt and known.ended_at is not None and now - known.ended_at < FRESH
        if not is_due:
            return Look(is_awaited=not is_fresh, problem=known.look.problem)
        if is_fresh:
            return known.look
        if known.task is None:
            known.look = Look()
            known.task = asyncio.create_task(self._look(job, allowed, known), name=f"look-{job.uid}")
        return Look(is_awaited=True)

    def forget(self, job_uid: str) -> None:
        """Drop everything about a job that is gone."""
        known = self._looked.pop(job_uid, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    async def close(self) -> None:
        """End the looks that are under way. A request that waits for an answer ends by its own deadline."""
        tasks = [known.task for known in self._looked.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self, job: Job, allowed: ManifestPrefix, known: _Looked) -> None:
        assert job.spec is not None
        store, run = job.spec.checkpoint.store, job.run
        try:
            async with asyncio.timeout(TURN_SECONDS + LOOK_SECONDS), self._turns, asyncio.timeout(LOOK_SECONDS):
                known.look = Look(found=await self._read(allowed, store, run, known.fences))
        except TimeoutError:
            known.look = Look(problem=f"{store} was not read within {LOOK_SECONDS:.0f} s")
        except StoreTrouble as error:
            known.look = Look(problem=str(error))
        except Exception as error:  # the edge of a look: a mistake of ours about one store must not leave its job waiting for ever
            log.exception("%s/%s: the look at %s failed", job.namespace, job.name, store)
            known.look = Look(problem=f"{store}: {type(error).__name__}: {error}")
        finally:
            known.task = None
            known.attempt = job.status.attempt
            known.ended_at = self._clock()
        if known.look.problem:
            log.warning("%s/%s: %s", job.namespace, job.name, known.look.problem)
        self._wake(job.uid)

    async def _read(self, allowed: ManifestPrefix, store: str, run: str, fences: dict[int, Fence]) -> tuple[CheckpointRecord, ...]:
        def read() -> tuple[CheckpointRecord, ...]:
            return list_run(Bucket(self._clients.get(allowed), store, LOOK_SECONDS), store, run, fences)

        return await asyncio.get_running_loop().run_in_executor(self._threads, read)


def find_allowed(allowed: Sequence[ManifestPrefix], job: Job) -> ManifestPrefix | None:
    """Return the longest prefix that may be read for this job; None when there is none, so that nothing is sent anywhere."""
    if job.spec is None or job.spec.checkpoint.place.scheme != S3:
        return None
    wished = job.spec.checkpoint.s3
    endpoint = wished.endpoint if wished is not None else None
    fitting = [
        prefix
        for prefix in allowed
        if prefix.namespace == job.namespace and prefix.endpoint == endpoint and _is_below(job.spec.checkpoint.store, prefix.prefix)
    ]
    return max(fitting, key=lambda prefix: len(prefix.prefix), default=None)


def _is_below(store: str, prefix: str) -> bool:
    wanted, place = parse_store(prefix), parse_store(store)
    return place.bucket == wanted.bucket and (not wanted.path or f"{place.path}/".startswith(f"{wanted.path}/"))
