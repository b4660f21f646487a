"""What the status keeps of checkpoints: those that are known, the one the present attempt starts from, and the run they lie in."""

from __future__ import annotations

from typing import Annotated, Final

from rtj_operator.api.base import ApiModel, Count, First, Key, Line, Time, Uri, Word
from trainer_runtime.contract.allow import ALLOW_WORDS, Allow
from trainer_runtime.contract.assignment import Goal, ResumeMode, ResumePoint
from trainer_runtime.contract.beat import SHARED_TIERS, Level, Tier


class NewestCheckpoint(ApiModel):
    """The newest verified checkpoint on the lineage."""

    step: Count
    """Its step."""
    attempt: Count
    """The attempt that wrote it."""
    uri: Uri
    """Its directory."""
    manifest_sha256: Word
    """SHA-256 of its manifest."""
    verified_at: Time
    """When the operator learned that every byte was read back and matched."""


class CheckpointRecordStatus(ApiModel):
    """One checkpoint that the operator knows. Its key is (step, attempt)."""

    step: Count
    """Its step."""
    attempt: Count
    """The attempt that wrote it."""
    uri: Uri
    """Its directory."""
    manifest_sha256: Word
    """SHA-256 of its manifest."""
    level: Level
    """committed: its manifest exists; verified: every byte was read back and matched."""
    tier: Tier = Tier.STORE
    """Where the copy lies: store, archive, or local and stage, which only the pods that wrote them reach."""
    verified_at: Time | None = None
    """When it became verified."""
    abandoned: bool = False
    """It left the lineage by a rollback or a fresh start; it is never chosen."""
    quarantined: Line | None = None
    """Why it is never chosen: damaged, missing, or reported with two digests."""
    deleting: bool = False
    """Retention may delete it; it is never chosen."""
    tagged: bool = False
    """It has tags, so retention never deletes it."""

    @property
    def is_shared(self) -> bool:
        """Whether pods on any node reach it; a copy in memory or on a node's disk is of no use to a new gang."""
        return self.tier in SHARED_TIERS

    @property
    def is_good(self) -> bool:
        """Whether a gang may resume from it once it is verified: within reach, on the lineage, not quarantined, not being deleted."""
        return self.is_shared and not self.abandoned and self.quarantined is None and not self.deleting

    @property
    def is_verified(self) -> bool:
        """Whether every byte was read back and matched."""
        return self.level is Level.VERIFIED


class AttemptResume(ApiModel):
    """The checkpoint the present attempt starts from; it never changes within an attempt."""

    step: Count
    """Its step."""
    attempt: Count
    """The attempt that wrote it."""
    uri: Uri
    """Its directory."""
    manifest_sha256: Word = ""
    """SHA-256 of its manifest; absent for one that spec.checkpoint.resumeFrom names: the workers find it out and record it."""
    mode: ResumeMode = ResumeMode.STRICT
    """Strict: everything, bit for bit. WarmStart: weights only."""
    foreign: bool = False
    """It lies in another run, and spec.checkpoint.resumeFrom named it."""

    @property
    def begins_at(self) -> int:
        """The step from which training goes on: a warm start counts anew."""
        return self.step if self.mode is ResumeMode.STRICT else 0

    @property
    def in_words(self) -> str:
        """Where an attempt starts, as events tell it."""
        words = f"step {self.step} of attempt {self.attempt}"
        return f"{words} of another run ({self.mode.value})" if self.foreign else words

    def to_contract(self) -> ResumePoint:
        """Return it as workers get it."""
        return ResumePoint(step=self.step, attempt=self.attempt, uri=self.uri, manifest_sha256=self.manifest_sha256, mode=self.mode)


class AttemptSettings(ApiModel):
    """What the spec asked of the workers when the present attempt began; a later change acts at the next attempt."""

    save_every_steps: Count | None = None
    """spec.checkpoint.every.steps."""
    save_every_seconds: Count | None = None
    """spec.checkpoint.every.seconds."""
    keep_last: Count = 5
    """spec.checkpoint.keep.last."""
    keep_every_steps: Count | None = None
    """spec.checkpoint.keep.everySteps."""
    keep_best_metric: Key | None = None
    """spec.checkpoint.keep.best.metric."""
    keep_best_mode: Goal = Goal.MIN
    """spec.checkpoint.keep.best.mode."""
    keep_daily: Count | None = None
    """spec.checkpoint.keep.daily."""
    keep_weekly: Count | None = None
    """spec.checkpoint.keep.weekly."""
    allow: Annotated[tuple[Allow, ...], First(len(ALLOW_WORDS))] = ()
    """spec.checkpoint.allow."""
    s3_endpoint: Uri | None = None
    """spec.checkpoint.s3.endpoint."""
    s3_region: Key | None = None
    """spec.checkpoint.s3.region."""
    local: Uri | None = None
    """spec.checkpoint.local.path."""
    archive_store: Uri | None = None
    """spec.checkpoint.archive.store."""
    archive_every_steps: Count | None = None
    """spec.checkpoint.archive.everySteps."""
    start_seconds: Count = 1800
    """spec.recovery.startSeconds."""


class ResumedFrom(ApiModel):
    """The checkpoint that the last resume used."""

    step: Count
    """Its step."""
    attempt: Count
    """The attempt that wrote it."""


class AttemptStart(ApiModel):
    """Where one attempt started on the lineage."""

    attempt: Count
    """The attempt."""
    step: Count | None = None
    """The step of this run that it resumed from; absent: it started from nothing, or from another run."""
    fenced: bool = False
    """Whether its fence is known to stand in the store; an attempt without one abandons nothing."""


class SaveFailureStatus(ApiModel):
    """The newest save was abandoned while training went on."""

    step: Count
    """The step that was to be saved."""
    reason: Line = ""
    """Path and cause."""
    count: Count = 1
    """Saves in a row that failed."""

    @property
    def in_words(self) -> str:
        """The failure as condition and event tell it."""
        times = f" ({self.count} saves in a row)" if self.count > 1 else ""
        return f"step {self.step} was not saved{times}: {self.reason}"


class ArchiveFailureStatus(ApiModel):
    """The newest look at what the archive lacks failed while training went on."""

    reason: Line = ""
    """Path and cause."""
    count: Count = 1
    """Looks in a row that failed; there is one after each verified save."""

    @property
    def in_words(self) -> str:
        """The failure as the event tells it."""
        times = f" {self.count} times in a row" if self.count > 1 else ""
        return f"copying to the archive failed{times}: {self.reason}"


class ForeignFence(ApiModel):
    """Another job's fence that a worker of this one saw in the run's directory."""

    job_uid: Word
    """Uid of the job that made it."""
    fence: Count
    """Its number."""
    changed_at: Time | None = None
    """When the run had last changed when it was first looked at; absent: not known."""


MAX_STARTS: Final = 32
"""Attempts whose start is remembered; far more than can have left a checkpoint that is still known."""


class RunStatus(ApiModel):
    """The run's directory as far as the operator knows it."""

    fence: Count | None = None
    """Highest fence that a worker of this job reported."""
    taken_over_from: Word | None = None
    """Uid of the dead job whose run this one took over, once."""
    foreign_fence: ForeignFence | None = None
    """The fence of another job that this one waits for, or waited for before it took the run over."""
    ignored_source: Uri | None = None
    """The spec.checkpoint.resumeFrom.uri that is ignored because the run has checkpoints of its own; told once."""
    start_fresh_used_by: Word | None = None
    """Uid of the job that used spec.checkpoint.startFresh; it acts once per uid."""
    starts: Annotated[tuple[AttemptStart, ...], First(MAX_STARTS)] = ()
    """Where attempts started, oldest first; what an attempt wrote above the start of a later one left the lineage."""
