"""A run in an S3 bucket, written through the runtime's own store, and what the operator's reader says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from rtj_operator.api.v1alpha1 import Job
from rtj_operator.manifests.base import Look
from rtj_operator.manifests.s3 import S3Reader
from rtj_operator.settings import ManifestPrefix
from tests.api.jobs import stored
from tests.store.servers import store_at
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import MANIFEST, VERIFIED, StepName, fence_path, staging_path, step_path
from trainer_runtime.contract.manifest import Fence, JobIdentity, Manifest, VerifiedMark, digest
from trainer_runtime.store.base import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = "ml.gpt"


@dataclass
class RunInBucket:
    """One job's run below a prefix of a bucket."""

    endpoint: str
    bucket: str
    prefix: str = "team-a"
    run: str = RUN

    @cached_property
    def store(self) -> Store:
        """The store as the workers have it."""
        return store_at(self.endpoint, self.bucket, self.prefix)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def job(self, **changes: object) -> Job:
        """The job, with fields of spec.checkpoint changed."""
        wished = {"store": self.url, "s3": {"endpoint": self.endpoint}, **changes}
        job = Job.parse(stored({"spec.checkpoint": wished}))
        assert job.spec is not None, job.spec_error
        return job

    def allow(self, **changes: str | None) -> ManifestPrefix:
        """What an administrator allows."""
        fields: dict[str, Any] = {"namespace": "ml", "prefix": self.url, "endpoint": self.endpoint, **changes}
        return ManifestPrefix(**fields)

    def fence(self, attempt: int, resume: tuple[int, int] | None = None) -> None:
        """Begin an attempt."""
        point = ResumePoint(resume[0], resume[1], f"{self.url}/{self.run}/{step_path(StepName(*resume))}", "") if resume else None
        self.store.create(f"{self.run}/{fence_path(attempt)}", dumps(Fence(attempt, "job", "pod", "nonce", point)).encode())

    def commit(self, step: int, attempt: int, *, verified: bool = True, tags: Iterable[str] = ()) -> str:
        """Commit a checkpoint, and mark it verified; returns its manifest's digest."""
        name, store = StepName(step, attempt), self.store
        manifest = Manifest(self.run, attempt, step, 0, JobIdentity("ml", "gpt", "job"), 1, (), 0, tags=tuple(tags)).to_bytes()
        store.create(f"{self.run}/{staging_path(name)}/data/00000-model-0.safetensors", b"bytes")
        store.commit(f"{self.run}/{staging_path(name)}", f"{self.run}/{step_path(name)}", MANIFEST, manifest)
        if verified:
            mark = VerifiedMark(digest(manifest), "full", 0.0, "worker 0")
            store.create(f"{self.run}/{step_path(name)}/{VERIFIED}", dumps(mark).encode())
        return digest(manifest)


async def look_of(job: Job, *allowed: ManifestPrefix) -> Look:
    """Return the outcome of one whole look."""
    ended = asyncio.Event()
    reader = S3Reader(allowed, lambda uid: ended.set(), lambda: NOW)
    try:
        assert reader.look(job, True, NOW).is_awaited
        async with asyncio.timeout(60):
            await ended.wait()
        return reader.look(job, True, NOW)
    finally:
        await reader.close()
