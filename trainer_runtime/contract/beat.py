"""The heartbeat of one worker and the operator's reply. Body at most 64 KiB, HTTPS POST of JSON to ``/v1/beat``.

The reply is computed from status and beat alone, so a restarted operator repeats what it said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import CONTRACT_VERSION
from trainer_runtime.contract.evidence import Evidence
from trainer_runtime.contract.exit_report import ExitReport

MAX_BODY_BYTES: Final = 64 * 1024
BEAT_PATH: Final = "/v1/beat"
BEAT_SECONDS: Final = 5.0
"""Period between beats without news; senders add up to 10 % jitter. News is sent at once."""


class Phase(str, Enum):
    """What a worker does now; each has its own limit in hang detection."""

    HOLD = "hold"
    START = "start"
    COMPILE = "compile"
    TRAIN = "train"
    SAVE = "save"
    EVAL = "eval"
    TEARDOWN = "teardown"
    STOPPED = "stopped"
    DONE = "done"


class Directive(str, Enum):
    """What the operator wants of a worker."""

    CONTINUE = "continue"
    SAVE = "save"
    STOP = "stop"
    RESTART = "restart"


class Level(str, Enum):
    """How much is proven about a checkpoint; levels merge upwards."""

    COMMITTED = "committed"
    VERIFIED = "verified"


@dataclass(frozen=True)
class CheckpointRecord:
    """One commit or verify result, repeated in beats until acknowledged. The key is (run, step, attempt)."""

    run: str
    step: int
    attempt: int
    uri: str
    manifest_sha256: str
    level: Level
    tier: str = "store"
    abandoned: bool = False
    """In an inventory: the fences say that it left the lineage. It is told so that the run is not taken for empty, and is never chosen."""


@dataclass(frozen=True)
class RecordKey:
    """Names a record in an acknowledgement. The level is part of it: committed and verified are acknowledged each."""

    run: str
    step: int
    attempt: int
    level: Level


@dataclass(frozen=True)
class RankSummary:
    """The ranks of one worker at one glance."""

    alive: int
    slowest_rank: int | None = None
    last_collective: int | None = None


@dataclass(frozen=True)
class Beat:
    """One worker's state. ``sent_at`` is Unix time in seconds by the worker's clock; the operator judges liveness by its own."""

    job_uid: str
    attempt: int
    worker_index: int
    pod_uid: str
    sequence: int
    """Grows by one per beat of one sender process; a smaller one that arrives late is dropped."""
    phase: Phase
    sent_at: float
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    phase_limits: dict[str, float] = field(default_factory=dict)
    """Seconds without a new step after which the phase counts as hung, as learned."""
    ranks: RankSummary | None = None
    staged: int | None = None
    """Newest step sealed in the stage, if any."""
    records: tuple[CheckpointRecord, ...] = ()
    """The newest 3 commit and verify results that were not acknowledged."""
    inventory: tuple[CheckpointRecord, ...] = ()
    """In phase hold: the newest 20 steps worker 0 sees in the store."""
    highest_fence: int | None = None
    """In phase hold: the highest fence worker 0 sees in the store, None when there is none."""
    fence_job_uid: str | None = None
    """Whose that fence is."""
    delete_proposals: tuple[RecordKey, ...] = ()
    failure: ExitReport | None = None
    evidence: tuple[Evidence, ...] = ()
    version: str = CONTRACT_VERSION


@dataclass(frozen=True)
class Reply:
    """The operator's answer to one beat."""

    directive: Directive
    received_at: float
    assignment: Assignment | None = None
    """The worker's current orders; None when the attempt has none for it."""
    acked: tuple[RecordKey, ...] = ()
    """Records of this beat that a status write holds."""
    may_delete: tuple[RecordKey, ...] = ()
    version: str = CONTRACT_VERSION
