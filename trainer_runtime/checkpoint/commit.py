"""The moment a save becomes a checkpoint: all ranks' parts fit together, this attempt still owns the run, then one atomic step.

Only the committer (rank 0) runs this. It believes what the ranks sent it, not a listing of a shared directory: those are cached and lie.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from trainer_runtime.checkpoint.documents import find_index_fault
from trainer_runtime.checkpoint.fences import require_ownership
from trainer_runtime.checkpoint.fingerprint import combined
from trainer_runtime.checkpoint.reference import Reference
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.contract.layout import MANIFEST, StepName, step_path
from trainer_runtime.contract.manifest import (
    FollowedStep,
    IndexEntry,
    JobIdentity,
    Manifest,
    Parent,
    RankIndex,
    SnapshotFile,
    digest,
    parse_manifest,
)
from trainer_runtime.errors import SaveFailed
from trainer_runtime.store.base import Store


@dataclass(frozen=True)
class Writer:
    """Who writes: for manifests, fences and verified marks. ``attempt`` 0 before `open_run`: nobody gave one, take the next free number."""

    job: JobIdentity
    pod_uid: str
    name: str
    """Pod name, or host and process outside a cluster."""
    rank: int
    world_size: int
    attempt: int


@dataclass(frozen=True)
class About:
    """What the manifest says besides the bytes: where in training the checkpoint was taken, and what a strict resume compares."""

    step: int
    epoch: int
    samples: int
    strict: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    parents: tuple[Parent, ...] = ()
    not_saved: tuple[str, ...] = ()
    allowances: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    """Versions of what computed the state, by name; this process may run without it."""
    snapshots: dict[str, tuple[SnapshotFile, ...]] = field(default_factory=dict)
    followed: FollowedStep | None = None


def commit(store: Store, run: str, staging: str, writer: Writer, about: About, index_bytes: tuple[bytes, ...]) -> Reference:
    """Turn the directory ``staging`` into a checkpoint and return its reference. ``index_bytes``: every rank's index, by rank.

    Raises SaveFailed when the parts do not fit, Fenced when a newer attempt owns the run, StoreUnavailable when the store fails. Raises
    AlreadyInStore or NotInStore when the name is taken or ``staging`` is gone: an earlier commit of this attempt may count after all.
    """
    indexes = [loads(RankIndex, data) for data in index_bytes]
    fault = find_index_fault(indexes, writer.world_size)
    if fault is not None:
        raise SaveFailed(f"step {about.step} is not committed: {fault}")
    manifest = _manifest(run, writer, about, indexes, index_bytes)
    try:
        parse_manifest(manifest)
    except ContractError as error:  # what no reader could read must not be committed
        raise SaveFailed(f"step {about.step} is not committed: its manifest could not be read again: {error}") from error
    name = StepName(about.step, writer.attempt)
    require_ownership(store, run, writer.attempt, writer.job.uid)
    store.commit(staging, f"{run}/{step_path(name)}", MANIFEST, manifest)
    return Reference(store.uri, run, name, digest(manifest))


def _manifest(run: str, writer: Writer, about: About, indexes: list[RankIndex], index_bytes: tuple[bytes, ...]) -> bytes:
    return Manifest(
        run=run,
        attempt=writer.attempt,
        step=about.step,
        epoch=about.epoch,
        job=writer.job,
        world_size=writer.world_size,
        indexes=tuple(IndexEntry(rank, digest(data), len(data)) for rank, data in enumerate(index_bytes)),
        total_bytes=sum(file.size for index in indexes for file in index.files),
        parents=about.parents,
        consumed_samples=about.samples,
        strict=dict(about.strict),
        software=dict(about.software),
        not_saved=about.not_saved,
        tags=about.tags,
        allowances=about.allowances,
        metrics=dict(about.metrics),
        snapshots=about.snapshots,
        followed=about.followed,
        fingerprint=combined(indexes),
        created_at=time.time(),
    ).to_bytes()
