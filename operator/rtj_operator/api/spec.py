"""``spec`` of a ResilientTrainingJob: what the user asks for. Every field here works; what does not work yet has no field.

The CRD refuses bad values at apply. The same rules stand here once more, because an object may have been stored before its rule existed.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rtj_operator.api import template as pod_template
from rtj_operator.api import volumes
from rtj_operator.api.base import ApiModel
from rtj_operator.api.checkpoint_spec import Checkpoint


class NodeRemediation(str, Enum):
    """What may be done about a node that failed a job."""

    CORDON = "Cordon"
    AVOID = "Avoid"
    OBSERVE = "Observe"
    OFF = "Off"


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
    """Longest time from all workers scheduled to the first step, or to the phase compile that the script names before it. What takes longer
    is a failure: charged to nothing while a container does not run, to hang when all run and their beats say that they still start."""
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
    def _keeps_checkpoints_on_volumes_that_fit(self) -> Self:
        error = volumes.find_volume_error(self.template, self.checkpoint)
        if error:
            raise ValueError(error)
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
