"""What parent and sender say to each other: a `WorkerState` per line goes in, an `Answer` per line comes out, both as contract JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer_runtime.contract.beat import ArchiveLook, CheckpointRecord, Phase, RankSummary, RecordKey, Reply, SaveFailure
from trainer_runtime.contract.evidence import Evidence
from trainer_runtime.contract.exit_report import ExitReport


@dataclass(frozen=True)
class WorkerState:
    """All that a beat says of the worker. Always the whole state: a line that is lost because the next one overtook it costs nothing.

    ``records`` are the newest ones the parent knows; the sender remembers which were acknowledged.
    """

    attempt: int
    worker_index: int
    phase: Phase = Phase.START
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    phase_limits: dict[str, float] = field(default_factory=dict)
    ranks: RankSummary | None = None
    records: tuple[CheckpointRecord, ...] = ()
    inventory: tuple[CheckpointRecord, ...] = ()
    highest_fence: int | None = None
    fence_job_uid: str | None = None
    quiet_seconds: float | None = None
    save_failure: SaveFailure | None = None
    archive: ArchiveLook | None = None
    delete_proposals: tuple[RecordKey, ...] = ()
    failure: ExitReport | None = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The operator's reply, and which beat it answers: a reply to a ``train`` beat is no answer to ``stopped``."""

    attempt: int
    phase: Phase
    reply: Reply
