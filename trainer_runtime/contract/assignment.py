"""What a worker must run now. One value, so that attempt, rendezvous and resume point can never come from two places.

An attempt's assignment never changes: another resume point is another attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from trainer_runtime.contract.codec import CONTRACT_VERSION, ContractError


class ResumeMode(str, Enum):
    """How a checkpoint is taken up: everything and bit for bit, or the weights only."""

    STRICT = "Strict"
    WARM_START = "WarmStart"


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint an attempt starts from, named so that every rank can prove it has the same one."""

    step: int
    attempt: int
    """The attempt that wrote it, not the one that reads it."""
    uri: str
    """Directory of the checkpoint: ``<store>/<run>/steps/<step>-<attempt>``."""
    manifest_sha256: str
    """Empty: a person named the checkpoint (``spec.checkpoint.resumeFrom``), so nobody knows its digest yet. Whoever reads it verifies all
    of it first, and records the digest it found in the attempt's fence."""
    mode: ResumeMode = ResumeMode.STRICT


@dataclass(frozen=True)
class SaveEvery:
    """Save when either is reached; None switches that trigger off. Seconds are counted by the runtime from the last save."""

    steps: int | None = None
    seconds: float | None = None


class Goal(str, Enum):
    """Which end of a metric is the good one."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Best:
    """Keep the checkpoint whose reported ``metric`` (a keyword of ``Run.report``) is the best one."""

    metric: str
    mode: Goal = Goal.MIN


@dataclass(frozen=True)
class Keep:
    """Which verified checkpoints retention must leave; one that any rule names stays."""

    last: int = 5
    """The newest so many."""
    every_steps: int | None = None
    """Every step divisible by this."""
    best: Best | None = None
    daily: int | None = None
    """The newest one of each of so many days (UTC) that have one."""
    weekly: int | None = None
    """The newest one of each of so many ISO weeks (UTC) that have one."""


@dataclass(frozen=True)
class S3Settings:
    """Where the S3 API is; None: what the AWS SDK finds. Credentials never travel here."""

    endpoint: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class Archive:
    """A second store to which every n-th and every tagged checkpoint is copied."""

    store: str
    """URL: ``s3://…`` or ``file:///…``."""
    every_steps: int | None = None
    """Copy every step divisible by this; None: tagged ones only."""


@dataclass(frozen=True)
class RunSettings:
    """Settings of the spec that the runtime obeys; they act at the next attempt."""

    save_every: SaveEvery = field(default_factory=SaveEvery)
    keep: Keep = field(default_factory=Keep)
    allow: tuple[str, ...] = ()
    hang_seconds: float | None = None
    """None: learned as max(60, 5 x median step)."""
    start_seconds: float = 1800.0
    s3: S3Settings = field(default_factory=S3Settings)
    local: str | None = None
    """Directory in the trainer container on the node's own disk; None: no local tier."""
    archive: Archive | None = None


@dataclass(frozen=True)
class Assignment:
    """One worker's orders for one attempt. ``resume is None and not start_fresh`` means: the run must be empty, refuse otherwise."""

    attempt: int
    worker_index: int
    workers: int
    procs_per_worker: int
    master_addr: str
    master_port: int
    run_id: str
    """Rendezvous id; carries job uid and attempt, so that a worker of an older attempt can never join."""
    resume: ResumePoint | None = None
    start_fresh: bool = False
    settings: RunSettings = field(default_factory=RunSettings)
    version: str = CONTRACT_VERSION

    def __post_init__(self) -> None:
        if self.attempt < 1:
            raise ContractError(f"attempt: {self.attempt} is not >= 1")
        if not 0 <= self.worker_index < self.workers:
            raise ContractError(f"worker_index: {self.worker_index} is not in 0..{self.workers - 1}")
        if self.procs_per_worker < 1:
            raise ContractError(f"procs_per_worker: {self.procs_per_worker} is not >= 1")

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.workers * self.procs_per_worker
