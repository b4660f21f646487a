"""The conditions of a job: their types, and the one rule by which they change. For machines; `phase` is for people.

Which condition holds when is decided in `decide.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum

from rtj_operator.api.base import ApiModel, Count, Message, Time, Word


class ConditionType(str, Enum):
    """Every condition a job can have, in the order in which they are written."""

    VALID = "Valid"
    """The spec can be used. False until the user changes it."""
    SUSPENDED = "Suspended"
    """spec.suspend is on and no pod is left."""
    RUNNING = "Running"
    """Every worker of the present attempt trains."""
    RECOVERING = "Recovering"
    """An incident is being handled: from its detection until every worker trains again."""
    HEARTBEATS_REACHABLE = "HeartbeatsReachable"
    """Beats of this job arrive. False means the channel is broken, not the workers."""
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    """Saves are committed and verified as asked, and the store can be reached."""
    NODE_REMEDIATION = "NodeRemediation"
    """The operator may do to nodes what the job wishes; False says what stands in the way."""
    COMPLETE = "Complete"
    """Training ended well. Final."""
    FAILED = "Failed"
    """The operator gave up. Final."""
    FINISHED = "Finished"
    """Complete or Failed, for ``kubectl wait``, which has no OR. Final."""


class ConditionStatus(str, Enum):
    """Kubernetes' three truth values."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One condition, as metav1.Condition."""

    type: Word
    """Name of the condition."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Word
    """Why, as one CamelCase word that programs may rely on."""
    message: Message = ""
    """Why, for people."""
    last_transition_time: Time
    """When status last changed."""
    observed_generation: Count | None = None
    """The metadata.generation this condition speaks about."""


def find_condition(conditions: Iterable[Condition], type_: ConditionType) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == type_.value), None)


def is_condition_true(conditions: Iterable[Condition], type_: ConditionType) -> bool:
    """Say whether that condition is there and True."""
    condition = find_condition(conditions, type_)
    return condition is not None and condition.status is ConditionStatus.TRUE


def set_condition(
    conditions: Iterable[Condition],
    type_: ConditionType,
    status: ConditionStatus,
    *,
    reason: str,
    message: str,
    now: datetime,
    generation: int,
) -> tuple[Condition, ...]:
    """Return the conditions with this one set. ``lastTransitionTime`` moves only when ``status`` changes, as Kubernetes' API rules say.

    Known types come in the order of ConditionType, others after them as they were.
    """
    present = tuple(conditions)
    before = find_condition(present, type_)
    unchanged = before is not None and before.status is status
    after = Condition(
        type=type_.value,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if before is not None and unchanged else now.replace(microsecond=0),
        observed_generation=generation,
    )
    order = {known.value: place for place, known in enumerate(ConditionType)}
    others = [condition for condition in present if condition.type != type_.value]
    return tuple(sorted([*others, after], key=lambda condition: order.get(condition.type, len(order))))
