"""What each condition says now: one small function per type, from status and observation. For programs; the phase is for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rtj_operator.api.conditions import Condition, find_condition, is_condition_true, set_condition
from rtj_operator.api.ranges import format_ranges
from rtj_operator.api.reasons import ConditionReason as Reason
from rtj_operator.api.v1alpha1 import ConditionStatus, ConditionType, JobPhase, JobStatus, NodeRemediation, StopReason
from rtj_operator.decide import causes, incident, launch, liveness, node_policy, run_claim
from rtj_operator.decide.case import NodeWish
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.stopping import is_live
from rtj_operator.decide.workers import Worker

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True)
class Stated:
    """What one condition says now."""

    status: ConditionStatus
    reason: str
    message: str = ""


def conditions_of(
    status: JobStatus, observation: Observation, workers: tuple[Worker, ...], now: datetime, policy: Policy
) -> tuple[Condition, ...]:
    """Return all conditions of that status. ``workers`` are those of the present attempt."""
    running = _running(status, observation, workers, now, policy)
    is_running = running.status is TRUE
    stated: dict[ConditionType, Stated | None] = {
        ConditionType.VALID: _valid(status, observation),
        ConditionType.SUSPENDED: _suspended(status, observation),
        ConditionType.RUNNING: running,
        ConditionType.RECOVERING: _recovering(status, is_running),
        ConditionType.HEARTBEATS_REACHABLE: _heartbeats(status, observation, workers, now, policy),
        ConditionType.CHECKPOINT_HEALTHY: _checkpoint(status, observation, is_running),
        ConditionType.NODE_REMEDIATION: _node_remediation(status, observation, now, policy),
        ConditionType.COMPLETE: _ended(status, JobPhase.SUCCEEDED),
        ConditionType.FAILED: _ended(status, JobPhase.FAILED),
        ConditionType.FINISHED: _ended(status, JobPhase.SUCCEEDED, JobPhase.FAILED),
    }
    conditions = status.conditions
    for type_, says in stated.items():
        if says is not None:
            conditions = set_condition(
                conditions, type_, says.status, reason=says.reason, message=says.message, now=now, generation=observation.job.generation
            )
    return conditions


def _valid(status: JobStatus, observation: Observation) -> Stated | None:
    if status.phase.is_terminal:
        return None
    says = launch.validity(observation, status)
    return Stated(says.status, says.reason, says.message)


def _suspended(status: JobStatus, observation: Observation) -> Stated:
    spec = observation.job.spec
    if spec is None or status.phase.is_terminal or not (spec.suspend or status.stop_reason is StopReason.SUSPEND):
        return Stated(FALSE, Reason.NOT_SUSPENDED)
    if status.gang == 0 and not observation.pods:
        return Stated(TRUE, Reason.SUSPENDED_BY_USER, "spec.suspend is true and no pod is left")
    return Stated(FALSE, Reason.SUSPENDING, "saving, then deleting the pods")


def _running(status: JobStatus, observation: Observation, workers: tuple[Worker, ...], now: datetime, policy: Policy) -> Stated:
    """Once true for an attempt it stays so until the attempt is stopped: an operator that was restarted has no beats yet."""
    if run_claim.is_waiting(status.run) and status.gang > 0 and status.ending is None and not status.phase.is_terminal:
        text = run_claim.waits_in_words(status.run, observation.job.run, run_claim.Jobs.of(observation), policy)
        return Stated(FALSE, Reason.RUN_NOT_QUIET, text)
    if not is_live(status):
        before = find_condition(status.conditions, ConditionType.RUNNING)
        if status.stop_reason is StopReason.END and status.ending is not None and status.ending.succeeded and before is not None:
            return Stated(before.status, before.reason, before.message)
        return Stated(FALSE, Reason.STOPPED)
    same_attempt = observation.job.status.attempt == status.attempt
    train = sum(1 for worker in workers if worker.trains or worker.is_done)
    if same_attempt and is_condition_true(status.conditions, ConditionType.RUNNING):
        return Stated(TRUE, Reason.ALL_WORKERS_TRAIN, f"attempt {status.attempt}")
    if workers and same_attempt and (train == len(workers) or _run_without_beats(workers, observation, now, policy)):
        return Stated(TRUE, Reason.ALL_WORKERS_TRAIN, f"attempt {status.attempt}")
    refusal = observation.refusals[-1] if observation.refusals else None
    if refusal is not None and any(worker.pod is None for worker in workers):
        reason = Reason.NAME_CONFLICT if refusal.reason == "conflict" else Reason.POD_CREATE_FORBIDDEN
        return Stated(FALSE, reason, f"worker {refusal.worker}: {refusal.message}")
    return Stated(FALSE, Reason.WAITING_FOR_WORKERS, f"{train} of {len(workers)} workers train")


def _run_without_beats(workers: tuple[Worker, ...], observation: Observation, now: datetime, policy: Policy) -> bool:
    """Plain torchrun without the runtime sends no beats: containers that run for long enough on Ready nodes train."""
    silent = liveness.silent_workers(workers, observation.senders, policy, now)
    return len(silent) == len(workers) and all(worker.container_runs and worker.beat is None for worker in workers)


def _recovering(status: JobStatus, is_running: bool) -> Stated:
    if status.stop_reason in (StopReason.INCIDENT, StopReason.SUPERSEDED):
        failure = incident.present_incident(status) if status.stop_reason is StopReason.INCIDENT else None
        text = f"attempt {status.attempt}: {failure.cause}" if failure is not None else f"attempt {status.attempt} is being replaced"
        return Stated(TRUE, Reason.BACKOFF if status.next_launch_after is not None else Reason.INCIDENT, text)
    before = find_condition(status.conditions, ConditionType.RECOVERING)
    if before is None:
        return Stated(FALSE, Reason.NO_INCIDENT)
    if before.status is TRUE and (is_running or status.gang == 0 or status.phase.is_terminal):
        return Stated(FALSE, Reason.RECOVERED if is_running else Reason.STOPPED)
    if before.status is TRUE and is_live(status):
        return Stated(TRUE, Reason.INCIDENT, f"attempt {status.attempt} starts")
    return Stated(before.status, before.reason, before.message)


def _heartbeats(status: JobStatus, observation: Observation, workers: tuple[Worker, ...], now: datetime, policy: Policy) -> Stated | None:
    """None: nothing is known anew, the condition stays as it was."""
    senders = observation.senders
    if not is_live(status) or liveness.verdicts_resume_at(senders, now, policy) is not None:
        return None
    silent = liveness.silent_workers(workers, senders, policy, now)
    if silent:
        if len(silent) == len(workers):
            return Stated(FALSE, Reason.NO_BEATS, "no beats arrive although the pods run")
        return Stated(FALSE, Reason.NO_BEATS, f"no beats arrive from worker {format_ranges(silence.worker for silence in silent)}")
    return Stated(TRUE, Reason.BEATS_ARRIVE) if workers and all(worker.beat is not None for worker in workers) else None


def _checkpoint(status: JobStatus, observation: Observation, is_running: bool) -> Stated:
    is_starting = not is_running and status.stopping_since is None and not status.phase.is_terminal
    if observation.store.problem and is_starting:
        return Stated(FALSE, Reason.STORE_UNAVAILABLE, f"the operator chooses from what was reported: {observation.store.problem}")
    last = status.last_failure
    if last is not None and last.cause == causes.STORE_UNAVAILABLE and not is_running and not status.phase.is_terminal:
        reason = Reason.STORE_MISMATCH if "fence" in last.message else Reason.STORE_UNAVAILABLE
        return Stated(FALSE, reason, last.message)
    if status.save_failure is not None:
        return Stated(FALSE, Reason.SAVE_FAILED, status.save_failure.in_words)
    newest = max(
        (record for record in status.checkpoints if not record.abandoned), key=lambda record: (record.step, record.attempt), default=None
    )
    if newest is None:
        return Stated(UNKNOWN, Reason.NOTHING_SAVED)
    if newest.quarantined is not None:
        return Stated(FALSE, Reason.QUARANTINED, f"step {newest.step} of attempt {newest.attempt}: {newest.quarantined}")
    return (
        Stated(TRUE, Reason.VERIFIED)
        if status.checkpoint is not None
        else Stated(UNKNOWN, Reason.NOTHING_SAVED, "committed, not yet verified")
    )


def _node_remediation(status: JobStatus, observation: Observation, now: datetime, policy: Policy) -> Stated | None:
    spec = observation.job.spec
    if spec is None or status.phase.is_terminal:
        return None
    wish = spec.recovery.node_remediation
    mode = node_policy.effective_mode(wish, policy, observation.node_rights)
    failure = status.last_failure
    if failure is not None and (now - failure.at).total_seconds() < node_policy.ACT_SECONDS:
        row_wish = incident.wish_of(failure)
        refusal = observation.node_refusals.get(failure.node or "")
        if refusal is not None and mode is NodeRemediation.CORDON and row_wish in (NodeWish.CORDON, NodeWish.STRIKE):
            return Stated(FALSE, Reason.NODE_WRITE_REFUSED, f"node {refusal.node} could not be written: {refusal.message}")
        if row_wish is NodeWish.CORDON and "breaker:" in failure.node_action:
            return Stated(FALSE, Reason.BREAKER_TRIPPED, failure.node_action)
    if mode is wish:
        return Stated(TRUE, Reason.ENABLED, mode.value)
    if wish is NodeRemediation.CORDON and not observation.node_rights:
        return Stated(FALSE, Reason.NO_NODE_RIGHTS, f"acts as {mode.value}: the operator may not write Nodes")
    return Stated(FALSE, Reason.LIMITED_BY_OPERATOR, f"acts as {mode.value}: the operator's own setting")


def _ended(status: JobStatus, *phases: JobPhase) -> Stated:
    if status.phase in phases and status.ending is not None:
        return Stated(TRUE, status.ending.reason, status.ending.message)
    return Stated(
        FALSE,
        Reason.NOT_FINISHED if not status.phase.is_terminal else Reason.DONE if status.phase is JobPhase.SUCCEEDED else Reason.STOPPED,
    )
