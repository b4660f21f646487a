"""``spec`` of a ResilientTrainingJob: what the user asks for. Every field here works; what does not work yet has no field.

The CRD refuses bad values at apply. The same rules stand here once more, because an object may have been stored before its rule existed.
"""

from __future__ import annotations

from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from rtj_operator.api import template as pod_template
from rtj_operator.api.base import ApiModel
from trainer_runtime.contract.layout import is_run_name

FILE_SCHEME = "file://"
NOT_SHARED_VOLUMES = ("emptyDir", "configMap", "secret", "downwardAPI", "projected", "image", "gitRepo")
"""Volume sources that end with the pod or cannot be written: a checkpoint there is no checkpoint."""


class NodeRemediation(str, Enum):
    """What may be done about a node that failed a job."""

    CORDON = "Cordon"
    AVOID = "Avoid"
    OBSERVE = "Observe"
    OFF = "Off"


class Every(ApiModel):
    """When to save. At least one of the two is needed; whichever comes first counts."""

    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Save when this many optimizer steps were made since the last save."""
    seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Save when this many seconds passed since the last save."""

    @model_validator(mode="after")
    def _has_a_trigger(self) -> Self:
        if self.steps is None and self.seconds is None:
            raise ValueError("needs at least one of steps and seconds")
        return self


class Keep(ApiModel):
    """Which verified checkpoints are kept. The one that an attempt would resume from is always kept."""

    last: Annotated[int, Field(ge=2, le=1000)] = 5
    """How many of the newest verified checkpoints are kept; at least 2, so that a damaged one has an older one behind it."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Also keep every checkpoint whose step is a multiple of this, for ever."""


class Checkpoint(ApiModel):
    """Where checkpoints are kept, how often they are made, and which of them stay."""

    store: Annotated[str, Field(max_length=256)]
    """Where checkpoints live: file:///<path>, a path in the trainer container on a volume that all workers share. Immutable."""
    run: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of the directory in the store; default <namespace>.<name>. A job deleted and applied again goes on with it. Immutable."""
    start_fresh: bool = False
    """Once per job, begin at step 0 beside what the run's directory holds. The older checkpoints stay there and are not used any more."""
    every: Every = Every(seconds=1800)
    """When to save; acts at the next attempt."""
    keep: Keep = Keep()
    """Which verified checkpoints are kept; acts at the next attempt."""

    @field_validator("store")
    @classmethod
    def _is_a_store_that_works(cls, value: str) -> str:
        if not value.startswith(FILE_SCHEME):
            raise ValueError(f"{value!r} cannot be used: only file:///<path> works in this version, s3:// does not")
        path = value.removeprefix(FILE_SCHEME)
        if not path.startswith("/") or path == "/" or ".." in PurePosixPath(path).parts:
            raise ValueError(f"{value!r} is not file:///<path> with an absolute path below / and without '..'")
        return value.rstrip("/")

    @field_validator("run")
    @classmethod
    def _is_a_run_name(cls, value: str | None) -> str | None:
        if value is not None and not is_run_name(value):
            raise ValueError(f"{value!r} is not [a-z0-9][a-z0-9._-]{{0,127}} without '..'")
        return value

    @property
    def path(self) -> str:
        """The store's absolute path in the trainer container."""
        return self.store.removeprefix(FILE_SCHEME)


class Budgets(ApiModel):
    """How many failures of one kind a sliding window may hold before the job is Failed."""

    application: Annotated[int, Field(ge=0, le=100_000)] = 3
    """Failures of the program itself."""
    hang: Annotated[int, Field(ge=0, le=100_000)] = 5
    """Attempts that stopped advancing."""
    infrastructure: Annotated[int, Field(ge=0, le=100_000)] = 100
    """Failures of machines, network and storage."""
    preemption: Annotated[int, Field(ge=0, le=100_000)] = 1000
    """Pods that were taken away by the cluster."""
    window_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = 86_400
    """Length of the sliding window."""


class Recovery(ApiModel):
    """How failures are handled. Acts at once."""

    node_remediation: NodeRemediation = NodeRemediation.CORDON
    """What is done about a node that failed the job: Cordon (avoid it, and make it unschedulable when the evidence is strong), Avoid
    (only this job keeps off it), Observe (say what would be done), "Off" (in quotes: YAML reads a bare Off as false). The operator's
    own setting is the upper bound."""
    budgets: Budgets = Budgets()
    """Failures of each kind that are allowed in a sliding window."""
    no_progress_limit: Annotated[int, Field(ge=1, le=1000)] = 3
    """Application, hang and unknown failures in a row without a new verified step before the job is Failed."""
    start_seconds: Annotated[int, Field(ge=10, le=86_400)] = 1800
    """Longest time from all workers scheduled to the first step."""
    lost_node_seconds: Annotated[int, Field(ge=10, le=3600)] = 60
    """A node counts as lost this long after its last sign of life, when it is not Ready or gone."""
    termination_seconds: Annotated[int, Field(ge=5, le=3600)] = 30
    """terminationGracePeriodSeconds of the pods; also the time an emergency save has."""


class JobSpec(ApiModel):
    """What the user asks for."""

    workers: Annotated[int, Field(ge=1, le=4096)]
    """Number of pods. Immutable."""
    procs_per_worker: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    """Ranks (torch processes) in each pod: a number, or auto: the nvidia.com/gpu limit of the trainer container, else 1. Immutable."""
    template: dict[str, Any]
    """The pod of every worker, kept as written. The operator wires the only container, or the one named trainer. Immutable."""
    checkpoint: Checkpoint
    """Where checkpoints are kept, how often they are made, and which of them stay."""
    recovery: Recovery = Recovery()
    """How failures are handled."""
    suspend: bool = False
    """true: save, delete the pods and wait. false: go on from the newest verified checkpoint."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """Running time after which the job is Failed; suspended time does not count."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Delete the job this many seconds after it finished; not set: never."""

    @model_validator(mode="after")
    def _has_a_usable_template(self) -> Self:
        shape_error = pod_template.find_shape_error(self.template)
        if shape_error:
            raise ValueError(shape_error)
        pod_template.trainer_index(self.template)
        restart_policy = pod_template.pod_spec(self.template).get("restartPolicy", "Never")
        if restart_policy != "Never":
            raise ValueError(f"template.spec.restartPolicy: {restart_policy!r} cannot be used: the operator restarts, it must be Never")
        for path, name in pod_template.reserved_env(self.template):
            raise ValueError(f"{path}: env {name} is reserved: the operator sets it")
        for path, name in pod_template.reserved_volumes(self.template):
            raise ValueError(f"{path}: volume {name} is reserved: the operator adds it")
        return self

    @model_validator(mode="after")
    def _keeps_checkpoints_on_a_volume_that_stays(self) -> Self:
        path = self.checkpoint.path
        mount = pod_template.find_mount(self.template, path)
        if mount is None:
            raise ValueError(f"checkpoint.store: {path} is on no volume of the trainer container: it would be lost with the pod")
        for source in NOT_SHARED_VOLUMES:
            if source in mount.volume:
                raise ValueError(
                    f"checkpoint.store: {path} is on volume {mount.volume.get('name')!r} of type {source}: not shared or not kept; "
                    "use a persistentVolumeClaim, nfs, csi or hostPath volume"
                )
        return self

    @property
    def ranks_per_worker(self) -> int:
        """``procsPerWorker`` with auto resolved."""
        if self.procs_per_worker != "auto":
            return self.procs_per_worker
        trainer = pod_template.find_trainer(self.template)
        return max(1, pod_template.gpu_limit(trainer or {}))


_UNION_BRANCHES = ("int", "constrained-int", "literal['auto']")
"""What pydantic puts into the path of a value that may be of two types; users never wrote it."""


def describe_error(error: ValidationError, root: str) -> str:
    """Say the first thing that is wrong, beginning with the field's path as the user wrote it."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = root
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_BRANCHES:
            path += f".{part}"
    text = first["msg"].removeprefix("Value error, ")
    separator = "." if first["type"] == "value_error" and path == root else ": "
    return f"{path}{separator}{text}"
