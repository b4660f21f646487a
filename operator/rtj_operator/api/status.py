"""``status`` of a ResilientTrainingJob: what people read, and everything `decide` needs after the operator was killed.

What can be computed from pods, nodes or beats is not stored. Lists and texts are bounded, so that a status always fits (`status_size`).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, computed_field

from rtj_operator.api.base import ApiModel, Count, Cut, Finite, First, Message, Time, Word, cut
from rtj_operator.api.checkpoints import (
    ArchiveFailureStatus,
    AttemptResume,
    AttemptSettings,
    CheckpointRecordStatus,
    NewestCheckpoint,
    ResumedFrom,
    RunStatus,
    SaveFailureStatus,
)
from rtj_operator.api.conditions import Condition
from rtj_operator.api.incidents import BudgetBucket, ExcludedNode, Failure, Restarts
from rtj_operator.api.ranges import format_ranges, parse_ranges
from rtj_operator.api.status_size import MAX_CHECKPOINTS, fit


class JobPhase(str, Enum):
    """One word for people. Programs read conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing of the job will run again."""
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


class Launch(str, Enum):
    """How an attempt came to its pods: the present ones took it up, or new ones were created."""

    IN_PLACE = "InPlace"
    GANG = "Gang"


class StopReason(str, Enum):
    """Why the present attempt is being stopped."""

    INCIDENT = "Incident"
    SUSPEND = "Suspend"
    SUPERSEDED = "Superseded"
    """Another resume point, or a gang that was never scheduled whole: a new attempt that is charged to nothing."""
    END = "End"
    """The job is about to become terminal; see ``ending``."""


class Workers(ApiModel):
    """The pods of the present gang."""

    desired: Count = 0
    """spec.workers."""
    ready: Count = 0
    """Workers whose trainer container runs."""
    summary: Annotated[str, Cut(16)] = ""
    """ready/desired, for the READY column."""


class Progress(ApiModel):
    """What the workers last reported; written at most every 10 seconds."""

    step: Count | None = None
    """Optimizer steps made on this lineage."""
    epoch: Count | None = None
    """Epochs finished."""
    phase: Word | None = None
    """What the workers do: hold, start, compile, train, save, eval, teardown, stopped, done."""
    loss: Finite = None
    """The loss the program reported last; absent while it is not a finite number."""
    step_seconds: Finite = None
    """Median seconds per step."""
    reported_at: Time | None = None
    """When a worker last reported."""


class Ending(ApiModel):
    """How the job will end when no pod of it runs any more."""

    succeeded: bool
    """Complete, else Failed."""
    reason: Word
    """Reason of the final condition."""
    message: Message = ""
    """Message of the final condition."""


WorkerSet = Annotated[
    tuple[int, ...],
    BeforeValidator(lambda value: parse_ranges(value) if isinstance(value, str) else value),
    PlainSerializer(lambda indexes: format_ranges(indexes) or None, return_type=str | None, when_used="json"),
    WithJsonSchema({"type": "string", "maxLength": 12_288}),
]
"""A sorted set of worker indexes, written as ranges ("0-2,7") to stay small."""

MAX_CONDITIONS: Final = 12
"""Those of ConditionType, and room for two."""
MAX_FAILURES: Final = 10
MAX_EXCLUDED: Final = 64
MAX_BUCKETS: Final = 160
"""24 buckets a window, five charges, and room for a window that was made shorter."""


class JobStatus(ApiModel):
    """What is known about the job. Written by the operator alone."""

    observed_generation: Count | None = None
    """The metadata.generation that this status speaks about."""
    phase: JobPhase = JobPhase.PENDING
    """One word for people: Pending, Starting, Running, Recovering, Suspending, Suspended, Succeeded, Failed."""
    conditions: Annotated[tuple[Condition, ...], First(MAX_CONDITIONS)] = ()
    """For programs: Valid, Suspended, Running, Recovering, HeartbeatsReachable, CheckpointHealthy, NodeRemediation, Complete, Failed,
    Finished."""
    attempt: Count = 0
    """The present launch of all ranks. Grows by one, never falls, never reused."""
    gang: Count = 0
    """The attempt that created the present pods."""
    launch: Launch | None = None
    """How the present attempt came to its pods: InPlace or Gang."""
    attempt_started_at: Time | None = None
    """When the present attempt was recorded."""
    resume_point: AttemptResume | None = None
    """The checkpoint the present attempt starts from; absent: from step 0."""
    starts_fresh: bool = False
    """The present attempt starts at step 0 by wish, beside older checkpoints."""
    attempt_settings: AttemptSettings | None = None
    """What the spec asked of the workers when the present attempt began."""
    resumed_from: ResumedFrom | None = None
    """The checkpoint that the last resume used."""
    stopping_since: Time | None = None
    """When the stop of the present attempt began; absent while none is under way."""
    stop_reason: StopReason | None = None
    """Why it is being stopped: Incident, Suspend, Superseded, End."""
    ending: Ending | None = None
    """How the job will end when no pod of it runs any more."""
    next_launch_after: Time | None = None
    """The next attempt is not launched before this."""
    done_workers: WorkerSet = ()
    """Workers of the present attempt that reported done, as ranges."""
    done_since: Time | None = None
    """When worker 0, or every worker, reported done; the others have a bounded time to end."""
    seen_gang: Count = 0
    """Newest gang of which every pod was seen: a pod that is missing from it was deleted, not delayed."""
    restarts: Restarts = Restarts()
    """Attempts that followed an incident."""
    workers: Workers = Workers()
    """The pods of the present gang."""
    progress: Progress | None = None
    """What the workers last reported."""
    checkpoint: NewestCheckpoint | None = None
    """The newest verified checkpoint on the lineage."""
    checkpoints: Annotated[tuple[CheckpointRecordStatus, ...], First(MAX_CHECKPOINTS)] = ()
    """Checkpoints that are known, newest first: the newest 20, and always the 3 newest good ones and the one resumed from."""
    last_checkpoint_event_at: Time | None = None
    """When a CheckpointVerified event was last sent."""
    save_failure: SaveFailureStatus | None = None
    """The save that failed last; absent from the next verified one on."""
    last_save_failed_event_at: Time | None = None
    """When a SaveFailed event was last sent."""
    archive_failure: ArchiveFailureStatus | None = None
    """Why the archive lacks what belongs there; absent from the next look on that copies all of it."""
    last_failure: Failure | None = None
    """The newest incident."""
    failures: Annotated[tuple[Failure, ...], First(MAX_FAILURES)] = ()
    """The newest incidents, newest first. An error that comes again, and a node that was blamed before, are recognised by them. Budgets are
    not counted from them, and their texts only explain."""
    budget_window: Annotated[tuple[BudgetBucket, ...], First(MAX_BUCKETS)] = ()
    """Incidents by hour and charge; budgets are computed from these."""
    high_water_step: Count | None = None
    """Highest step ever verified; a rollback never lowers it."""
    no_progress_count: Count = 0
    """Application, hang and unknown failures in a row without a verified step above highWaterStep."""
    unknown_count: Count = 0
    """Unknown failures in a row; the backoff grows with it."""
    retry_count: Count = 0
    """Retries in a row that are charged to nothing (store not reachable, gang not scheduled whole); the backoff grows with it."""
    excluded_nodes: Annotated[tuple[ExcludedNode, ...], First(MAX_EXCLUDED)] = ()
    """Nodes that the job avoids."""
    active_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Running time up to activeSince; suspended time does not count."""
    active_since: Time | None = None
    """Start of the running stretch that activeSeconds does not hold yet."""
    template_checked_generation: Count | None = None
    """The metadata.generation whose pod template the API server accepted."""
    run: RunStatus = RunStatus()
    """The run's directory as far as the operator knows it."""
    start_time: Time | None = None
    """When the first attempt was recorded."""
    completion_time: Time | None = None
    """When the job became Complete or Failed."""
    selector: Annotated[str, Cut(256)] | None = None
    """Label selector of the job's pods."""

    @computed_field(alias="excludedSummary")
    def excluded_summary(self) -> Annotated[str, Cut(128)] | None:
        """Names of the excluded nodes in one text, for the EXCLUDED column, which cannot join a list."""
        return cut(",".join(excluded.node for excluded in self.excluded_nodes), 128) or None

    def to_api(self) -> dict[str, Any]:
        """Return what one server-side apply writes: camelCase, without absent fields and empty lists, always with ``attempt``, bounded."""
        return _without_empty(fit(_without_empty(self.model_dump(mode="json", by_alias=True))))


def _without_empty(value: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            item = _without_empty(item)
        elif isinstance(item, list):
            item = [_without_empty(part) if isinstance(part, dict) else part for part in item]
        if item is not None and item != [] and item != {}:
            kept[key] = item
    return kept
