"""Which events a change of status is worth: a function of the old and the new status, so that a transition is told once.

An event that needs words the status does not hold is added by the step that makes the transition.
"""

from __future__ import annotations

from collections.abc import Iterator

from rtj_operator.api.base import MAX_MESSAGE
from rtj_operator.api.conditions import find_condition
from rtj_operator.api.reasons import ConditionReason, EventReason
from rtj_operator.api.v1alpha1 import Condition, ConditionStatus, ConditionType, JobPhase, JobStatus, StopReason
from rtj_operator.decide.plan import JobEvent
from trainer_runtime.contract.assignment import ResumeMode


def transitions(before: JobStatus, after: JobStatus) -> tuple[JobEvent, ...]:
    """Return the events of this change, in the order in which things happen."""
    found = [
        *_checkpoints(before, after),
        *_failures(before, after),
        *_nodes(before, after),
        *_attempts(before, after),
        *_conditions(before, after),
        *_phases(before, after),
    ]
    return tuple(JobEvent(event.reason, event.message[:MAX_MESSAGE], event.warning) for event in found)


def _attempts(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    if after.attempt == before.attempt:
        return
    point = after.resume_point
    start = "from step 0" if point is None else f"from {point.in_words}"
    if before.start_time is None:
        yield JobEvent(EventReason.STARTED, f"attempt {after.attempt} starts {start} with {after.workers.desired} workers")
    elif before.gang == 0:
        yield JobEvent(EventReason.RESUMED, f"attempt {after.attempt} starts {start}")
    elif before.stop_reason is not StopReason.SUPERSEDED:  # told, with its reason, when the stop began
        failure = after.last_failure if after.last_failure is not None and after.last_failure.attempt == before.attempt else None
        why = f" after {failure.cause}" if failure is not None else ""
        yield JobEvent(EventReason.RESTARTING, f"attempt {after.attempt} starts {start}{why}")
    if point is not None:
        how = "resumes from" if point.mode is ResumeMode.STRICT else "takes the weights of"
        yield JobEvent(EventReason.RESUMED_FROM, f"attempt {after.attempt} {how} step {point.step}: {point.uri}")
    if after.run.ignored_source is not None and after.run.ignored_source != before.run.ignored_source:
        text = f"spec.checkpoint.resumeFrom {after.run.ignored_source} is ignored: the run has checkpoints of its own"
        yield JobEvent(EventReason.RESUME_FROM_IGNORED, text)
    resumed = point.begins_at if point is not None else 0
    if after.high_water_step is not None and resumed < after.high_water_step:
        yield JobEvent(
            EventReason.ROLLED_BACK,
            f"attempt {after.attempt} starts at step {resumed}, below the verified step {after.high_water_step}",
            True,
        )


def _failures(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    failure = after.last_failure
    if failure is None or (
        before.last_failure is not None and (before.last_failure.attempt, before.last_failure.row) == (failure.attempt, failure.row)
    ):
        return
    node = f"; node: {failure.node_action}" if failure.node_action else ""
    yield JobEvent(
        EventReason.FAILURE_DETECTED, f"attempt {failure.attempt}: {failure.message[:600]}; next: {failure.action[:200]}{node}", True
    )


def _nodes(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    known = {entry.node: entry for entry in before.excluded_nodes}
    for entry in after.excluded_nodes:
        old = known.get(entry.node)
        if old is None or old.incident != entry.incident:
            yield JobEvent(EventReason.NODE_EXCLUDED, f"node {entry.node} is avoided until {entry.until:%Y-%m-%dT%H:%M:%SZ}: {entry.cause}")
        if entry.cordoned and (old is None or not old.cordoned):
            yield JobEvent(EventReason.NODE_CORDONED, f"node {entry.node} is cordoned: {entry.cause}", True)
        if old is not None and old.cordoned and not entry.cordoned:
            yield JobEvent(EventReason.NODE_UNCORDONED, f"node {entry.node} is not cordoned by this job any more")


def _checkpoints(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    if after.last_checkpoint_event_at != before.last_checkpoint_event_at and after.checkpoint is not None:
        yield JobEvent(EventReason.CHECKPOINT_VERIFIED, f"step {after.checkpoint.step}: {after.checkpoint.uri}")
    if after.last_save_failed_event_at != before.last_save_failed_event_at and after.save_failure is not None:
        yield JobEvent(EventReason.SAVE_FAILED, f"{after.save_failure.in_words}; training goes on", True)
    if after.archive_failure is not None and before.archive_failure is None:
        yield JobEvent(EventReason.ARCHIVE_FAILED, f"{after.archive_failure.in_words}; training goes on", True)
    sound = {(record.step, record.attempt) for record in before.checkpoints if record.quarantined is not None}
    for record in after.checkpoints:
        if record.quarantined is not None and (record.step, record.attempt) not in sound:
            text = f"step {record.step} of attempt {record.attempt} is never used again: {record.quarantined}"
            yield JobEvent(EventReason.CHECKPOINT_QUARANTINED, text, True)


def _conditions(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    running = _became(before, after, ConditionType.RUNNING)
    if running is not None and running.status is ConditionStatus.TRUE:
        yield JobEvent(EventReason.RUNNING, f"attempt {after.attempt}: every worker trains")
    if running is not None and running.reason == ConditionReason.RUN_NOT_QUIET:
        yield JobEvent(EventReason.RUN_NOT_QUIET, running.message, True)
    if running is not None and running.reason in (ConditionReason.POD_CREATE_FORBIDDEN, ConditionReason.NAME_CONFLICT):
        yield JobEvent(EventReason.POD_CREATE_FORBIDDEN, running.message, True)
    valid = _became(before, after, ConditionType.VALID)
    if valid is not None and valid.reason == ConditionReason.RUN_OWNED:
        yield JobEvent(EventReason.RUN_OWNED, valid.message, True)
    elif valid is not None and valid.status is ConditionStatus.FALSE:
        yield JobEvent(EventReason.INVALID_SPEC, valid.message, True)
    elif valid is not None and valid.reason == ConditionReason.POD_CREATE_FORBIDDEN:
        yield JobEvent(EventReason.POD_CREATE_FORBIDDEN, valid.message, True)
    beats = _became(before, after, ConditionType.HEARTBEATS_REACHABLE)
    if beats is not None and beats.status is ConditionStatus.FALSE:
        yield JobEvent(EventReason.HEARTBEATS_UNREACHABLE, f"{beats.message}; nothing is restarted for it", True)
    store = _became(before, after, ConditionType.CHECKPOINT_HEALTHY)
    if store is not None and store.reason in (ConditionReason.STORE_UNAVAILABLE, ConditionReason.STORE_MISMATCH):
        yield JobEvent(EventReason.STORE_UNAVAILABLE, store.message, True)
    nodes = _became(before, after, ConditionType.NODE_REMEDIATION)
    if nodes is not None and nodes.reason == ConditionReason.BREAKER_TRIPPED:
        yield JobEvent(EventReason.CORDON_BREAKER_TRIPPED, nodes.message, True)
    if nodes is not None and nodes.reason == ConditionReason.NODE_WRITE_REFUSED:
        yield JobEvent(EventReason.NODE_WRITE_REFUSED, nodes.message, True)


def _phases(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    if after.phase is before.phase:
        return
    ending = after.ending
    if after.phase is JobPhase.SUSPENDED:
        yield JobEvent(EventReason.SUSPENDED, "no pod is left; spec.suspend: false goes on from the newest verified checkpoint")
    elif after.phase is JobPhase.SUCCEEDED:
        yield JobEvent(EventReason.SUCCEEDED, ending.message if ending is not None else "")
    elif after.phase is JobPhase.FAILED and ending is not None:
        own_event = {ConditionReason.BUDGET_EXCEEDED: EventReason.BUDGET_EXCEEDED, ConditionReason.NO_PROGRESS: EventReason.NO_PROGRESS}
        if ending.reason in own_event:
            yield JobEvent(own_event[ending.reason], ending.message, True)
        yield JobEvent(EventReason.FAILED, f"{ending.reason}: {ending.message}", True)


def _became(before: JobStatus, after: JobStatus, type_: ConditionType) -> Condition | None:
    """Return the condition if its status or reason is new."""
    old, new = find_condition(before.conditions, type_), find_condition(after.conditions, type_)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return None
    return new
