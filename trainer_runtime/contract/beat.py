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

MAX_REASON_CHARACTERS: Final = 300
"""Of a failed save or look at the archive: room for a store's path and the cause."""
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


class Tier(str, Enum):
    """Where a copy of a checkpoint lies, the nearest to the ranks first."""

    STAGE = "stage"
    """Memory of the worker's host: survives its ranks, not its pod."""
    LOCAL = "local"
    """A disk of the worker's node."""
    STORE = "store"
    """The job's store, which every worker reaches."""
    ARCHIVE = "archive"
    """A second store."""


SHARED_TIERS: Final = frozenset({Tier.STORE, Tier.ARCHIVE})
"""Tiers that pods on any node reach: only these may be chosen for a new gang."""


@dataclass(frozen=True)
class CheckpointRecord:
    """One commit or verify result, repeated in beats until acknowledged. The key is (run, step, attempt), of one tier."""

    run: str
    step: int
    attempt: int
    uri: str
    manifest_sha256: str
    level: Level
    tier: Tier = Tier.STORE
    abandoned: bool = False
    """In an inventory: the fences say that it left the lineage. It is told so that the run is not taken for empty, and is never chosen."""
    tagged: bool = False
    """Its manifest has tags: it is permanent, and no deletion of it is granted."""


@dataclass(frozen=True)
class RecordKey:
    """Names a record in an acknowledgement. Level and tier are part of it: what is known of one copy says nothing of another."""

    run: str
    step: int
    attempt: int
    level: Level
    tier: Tier = Tier.STORE


@dataclass(frozen=True)
class RankSummary:
    """The ranks of one worker at one glance."""

    alive: int
    slowest_rank: int | None = None
    last_collective: int | None = None


@dataclass(frozen=True)
class SaveFailure:
    """The newest save was abandoned while training goes on."""

    step: int
    """The step that was to be saved."""
    reason: str
    """Path and cause, in words."""
    count: int = 1
    """Saves in a row that failed, this one included."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", self.reason[:MAX_REASON_CHARACTERS])


@dataclass(frozen=True)
class ArchiveLook:
    """How the newest look at what the archive lacks ended: each copies that, after a verified save."""

    failures: int = 0
    """Looks in a row that failed, this one included; 0: the archive has all that belongs there."""
    reason: str = ""
    """Path and cause, in words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", self.reason[:MAX_REASON_CHARACTERS])


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
    quiet_seconds: float | None = None
    """In phase hold, when that fence is another job's: how long ago the run last changed, by the clocks of store and worker; negative when
    the store's is ahead. None: unknown."""
    save_failure: SaveFailure | None = None
    """From worker 0: the newest save failed; None again from the next verified one."""
    archive: ArchiveLook | None = None
    """From worker 0; None: no look of this attempt has ended, or there is no archive."""
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
