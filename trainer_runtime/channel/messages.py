"""What ranks and rtj-run say to each other over the local socket: one JSON object per line, with the message's name in ``kind``.

Up: progress, checkpoint records, why a rank ends. Down: save, stop, proceed. It carries facts and orders, never tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Phase, RecordKey, SaveFailure
from trainer_runtime.contract.exit_report import DamagedCheckpoint, Outcome


@dataclass(frozen=True)
class Progress:
    """Up, from every rank at a phase change and from local rank 0 at most once a second."""

    rank: int
    phase: Phase
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    phase_limits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """Up, from local rank 0 of every worker: a checkpoint was committed or verified."""

    record: CheckpointRecord


@dataclass(frozen=True)
class Holding:
    """Up, from rank 0 before it creates its fence; it waits up to 30 s for Proceed."""

    inventory: tuple[CheckpointRecord, ...]
    highest_fence: int | None
    fence_job_uid: str | None
    quiet_seconds: float | None = None
    """How long the run has not changed; only asked when the fence is another job's."""


@dataclass(frozen=True)
class SaveAbandoned:
    """Up, from rank 0: a save failed and training goes on. The next verified record takes it back."""

    failure: SaveFailure


@dataclass(frozen=True)
class ArchiveLooked:
    """Up, from rank 0: a look at the archive ended, well or not. The next one replaces it."""

    look: ArchiveLook


@dataclass(frozen=True)
class DeleteProposed:
    """Up, from rank 0: retention would delete these; repeated until granted by MayDelete."""

    keys: tuple[RecordKey, ...]


@dataclass(frozen=True)
class Raised:
    """Up, from a rank whose training code raised, before it exits. ``at_ns`` is Unix time in nanoseconds."""

    rank: int
    at_ns: int
    exception: str
    step: int | None = None


@dataclass(frozen=True)
class Ending:
    """Up, from a rank that ends for a reason of its own: done, saved and stopped, refused, damaged, store unavailable, fenced."""

    rank: int
    outcome: Outcome
    message: str = ""
    checkpoint: DamagedCheckpoint | None = None
    highest_fence: int | None = None
    fence_job_uid: str | None = None


@dataclass(frozen=True)
class SaveAndStop:
    """Down: agree on one step, save, verify, end with outcome preempted_saved. ``deadline_seconds`` is what is left of the grace."""

    deadline_seconds: float


@dataclass(frozen=True)
class Save:
    """Down: save at the next step boundary and go on."""


@dataclass(frozen=True)
class Proceed:
    """Down, the answer to Holding: the operator's current assignment for this worker, or None when nobody answered.

    A newer attempt than the rank's own means: superseded, exit fenced.
    """

    assignment: Assignment | None = None


@dataclass(frozen=True)
class MayDelete:
    """Down: the operator granted these deletions."""

    keys: tuple[RecordKey, ...]


Up = Progress | Recorded | Holding | SaveAbandoned | ArchiveLooked | DeleteProposed | Raised | Ending
Down = SaveAndStop | Save | Proceed | MayDelete
