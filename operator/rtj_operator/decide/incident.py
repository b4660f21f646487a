"""Records a failure in the status: the verdict, the row of the table, its charge and its consequences, all in one write.

The incident's id is its attempt. While the gang is being stopped better evidence may come in; then the incident is revised, never counted
twice. That holds for one that ends the job too: a victim's word often comes before the evidence of what it is the victim of.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rtj_operator.api.reasons import ConditionReason
from rtj_operator.api.status import MAX_FAILURES
from rtj_operator.api.v1alpha1 import Charge, Ending, EvidenceStatus, Failure, JobSpec, JobStatus, NodeRemediation, Restarts, StopReason
from rtj_operator.decide import budgets, ledger, node_policy
from rtj_operator.decide.attribution import Verdict
from rtj_operator.decide.case import Case, NodeWish, Ruling
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.recovery import TABLE, Row, find_row, is_stronger, node_wish
from trainer_runtime.contract.evidence import Evidence


def record(status: JobStatus, case: Case, observation: Observation, now: datetime, policy: Policy) -> JobStatus:
    """Return the status with this incident recorded and the stop begun."""
    row = find_row(case)
    ruling = row.job(case)
    failure = _failure(case, row, ruling, status, observation, now, policy)
    status = _with_consequences(status, case, row, ruling, observation, now, policy)
    status = _charged(status, case.spec, row.charge, ruling, case, now, policy)
    if status.ending is not None and ruling.ending is None:
        failure = failure.evolve(action=f"give up: {status.ending.message}")
    return status.evolve(
        failures=(failure, *status.failures)[:MAX_FAILURES],
        last_failure=failure,
        stopping_since=status.stopping_since or now,
        stop_reason=StopReason.INCIDENT,
    )


def revised(status: JobStatus, case: Case, observation: Observation, now: datetime, policy: Policy) -> JobStatus:
    """Return the status with the present incident judged anew if what is known now stands higher in the table; else unchanged.

    A fact that is only remembered holds others back and is not judged again: a row may ask the worker it came from, which is gone.

    Only while an incident is what stops the attempt, so that an ending that stands is the incident's own.
    """
    incident = present_incident(status)
    if incident is None:
        return status
    row = find_row(case)
    if case.is_remembered or not is_stronger(row, incident.row):
        return status
    return record(_taken_back(status, incident, case.spec), case, observation, now, policy)


def present_incident(status: JobStatus) -> Failure | None:
    """Return the incident of the present attempt, or None."""
    failure = status.last_failure
    return failure if failure is not None and failure.attempt == status.attempt else None


def known_evidence(status: JobStatus) -> tuple[Evidence, ...]:
    """Return what the present incident rests on, strongest first. Nobody else keeps it: a worker's words are gone with its pod."""
    incident = present_incident(status)
    if incident is None:
        return ()
    return tuple(
        Evidence(
            at=item.at.timestamp(),
            source=item.source,
            fault_class=item.fault_class,
            strength=item.strength,
            text=item.text,
            attempt=incident.attempt,
            worker=item.worker,
            node=item.node,
            rank=item.rank,
            gpu=item.gpu,
            step=item.step,
        )
        for item in incident.evidence
    )


def wish_of(failure: Failure) -> NodeWish:
    """Return what the incident's row wants done about the node, from the status alone."""
    row = next((row for row in TABLE if row.number == failure.row), None)
    return row.node if row is not None else NodeWish.NOTHING


def _failure(case: Case, row: Row, ruling: Ruling, status: JobStatus, observation: Observation, now: datetime, policy: Policy) -> Failure:
    verdict = case.verdict
    step = verdict.step
    begun = status.resume_point.begins_at if status.resume_point is not None else 0
    newest = status.checkpoint.step if status.checkpoint is not None else begun
    reached = max((worker.step for worker in case.workers if worker.step is not None), default=step)
    return Failure(
        attempt=status.attempt,
        cause=verdict.cause,
        charge=row.charge,
        worker=verdict.worker,
        node=verdict.node,
        rank=verdict.rank,
        confidence=verdict.confidence,
        row=row.number,
        action=ruling.action,
        node_action=_node_action(case, row, observation, now, policy),
        message=_in_words(verdict, row),
        evidence=tuple(_evidence(item) for item in verdict.evidence),
        fingerprint=verdict.fingerprint,
        step=step,
        lost_steps=max(0, reached - newest) if reached is not None else None,
        at=now,
    )


def _with_consequences(
    status: JobStatus, case: Case, row: Row, ruling: Ruling, observation: Observation, now: datetime, policy: Policy
) -> JobStatus:
    if ruling.quarantine is not None:
        status = ledger.quarantine(status, ruling.quarantine.step, ruling.quarantine.attempt, ruling.quarantine.reason, now)
    run = status.run
    if ruling.highest_fence is not None:
        run = run.evolve(fence=max(run.fence or 0, ruling.highest_fence))
    if ruling.taken_over_from is not None:
        run = run.evolve(taken_over_from=ruling.taken_over_from)
    if ruling.foreign_fence is not None:
        run = run.evolve(foreign_fence=ruling.foreign_fence)
    status = status.evolve(run=run)
    mode = node_policy.effective_mode(case.spec.recovery.node_remediation, policy, observation.node_rights)
    if node_wish(row, case) is not NodeWish.NOTHING and mode in (NodeRemediation.AVOID, NodeRemediation.CORDON):
        entries = node_policy.excluded(status.excluded_nodes, case.verdict, status.attempt, case.spec, observation.nodes, now, policy)
        status = status.evolve(excluded_nodes=entries)
    return status


def _charged(
    status: JobStatus, spec: JobSpec, charge: Charge | None, ruling: Ruling, case: Case, now: datetime, policy: Policy
) -> JobStatus:
    """Count the incident, set the wait before the next attempt, and end the job when a budget is used up."""
    allowed = spec.recovery.budgets
    window = budgets.in_window(status.budget_window, allowed, now)
    ending = ruling.ending
    no_progress, unknown, retries = status.no_progress_count, status.unknown_count, status.retry_count
    if charge is not None:
        window = budgets.charged(window, charge, allowed, now)
        no_progress += charge in budgets.WITHOUT_PROGRESS
        unknown = unknown + 1 if charge is Charge.UNKNOWN else 0
        if ending is None and budgets.is_exceeded(window, charge, allowed, now):
            count = budgets.count(window, charge, allowed, now)
            ending = _given_up(ConditionReason.BUDGET_EXCEEDED, f"{count} {charge.value} failures in {allowed.window_seconds} s", case)
        elif ending is None and charge in budgets.WITHOUT_PROGRESS and no_progress >= spec.recovery.no_progress_limit:
            ending = _given_up(ConditionReason.NO_PROGRESS, f"{no_progress} failures in a row without a new verified step", case)
    retries = retries + 1 if ruling.waits and charge is None else 0
    wait = timedelta(0)
    if ruling.waits:
        wait = budgets.backoff(unknown if charge is Charge.UNKNOWN else retries, policy.backoff_seconds, policy.backoff_limit_seconds)
    return status.evolve(
        budget_window=window,
        restarts=_counted(status.restarts, charge, +1) if ending is None else status.restarts,
        no_progress_count=no_progress,
        unknown_count=unknown,
        retry_count=retries,
        ending=ending,
        next_launch_after=now + wait if wait else None,
    )


def _taken_back(status: JobStatus, incident: Failure, spec: JobSpec) -> JobStatus:
    """Return the status as if this incident had not been recorded, but for the stop it began and what it taught."""
    window = list(status.budget_window)
    for place in reversed(range(len(window))):
        if incident.charge is not None and window[place].charge is incident.charge and window[place].hour <= incident.at:
            window[place] = window[place].evolve(n=max(0, window[place].n - 1))
            break
    return status.evolve(
        budget_window=tuple(bucket for bucket in window if bucket.n),
        restarts=_counted(status.restarts, incident.charge, -1) if status.ending is None else status.restarts,
        no_progress_count=max(0, status.no_progress_count - (incident.charge in budgets.WITHOUT_PROGRESS)),
        unknown_count=max(0, status.unknown_count - (incident.charge is Charge.UNKNOWN)),
        retry_count=0,
        excluded_nodes=tuple(entry for entry in status.excluded_nodes if entry.incident != incident.attempt or entry.cordoned),
        failures=tuple(failure for failure in status.failures if failure.attempt != incident.attempt),
        ending=None,
        next_launch_after=None,
    )


def _counted(restarts: Restarts, charge: Charge | None, by: int) -> Restarts:
    if charge is None:
        return restarts
    return restarts.evolve(**{"total": max(0, restarts.total + by), charge.value: max(0, getattr(restarts, charge.value) + by)})


def _given_up(reason: str, why: str, case: Case) -> Ending:
    return Ending(succeeded=False, reason=reason, message=f"{why}; the last: {case.cause}: {case.verdict.text}")


def _node_action(case: Case, row: Row, observation: Observation, now: datetime, policy: Policy) -> str:
    """Say what is done about the node, or why nothing is."""
    wish, node = node_wish(row, case), case.verdict.node
    if wish is NodeWish.NOTHING:
        return ""
    mode = node_policy.effective_mode(case.spec.recovery.node_remediation, policy, observation.node_rights)
    if mode is NodeRemediation.OFF:
        return "nothing: nodeRemediation is Off"
    wanted = "exclude and cordon" if wish is NodeWish.CORDON else "exclude"
    if mode is NodeRemediation.OBSERVE:
        return f"would {wanted} {node}: nodeRemediation is Observe"
    if wish is not NodeWish.CORDON:
        return f"exclude {node}"
    if mode is not NodeRemediation.CORDON:
        return f"exclude {node}; no cordon: " + (
            "nodeRemediation is Avoid" if observation.node_rights else "the operator has no node rights"
        )
    trusted = node_policy.is_trusted(case.verdict.evidence, case.verdict.worker, case.job.namespace, policy)
    is_high = case.verdict.confidence.value == "high"
    why_not = node_policy.cordon_obstacle(is_high, trusted, observation.nodes.get(node or ""), case.spec, observation.nodes, now, policy)
    return f"exclude and cordon {node}" if not why_not else f"exclude {node}; no cordon: {why_not}"


def _in_words(verdict: Verdict, row: Row) -> str:
    who = f"worker {verdict.worker}" if verdict.worker is not None else "no worker is named"
    rank = f", rank {verdict.rank}" if verdict.rank is not None else ""
    node = f" on {verdict.node}" if verdict.node is not None else ""
    at = f" at step {verdict.step}" if verdict.step is not None else ""
    text = f": {verdict.text}" if verdict.text else ""
    return f"{verdict.cause} ({row.evidence}): {who}{rank}{node}{at}, confidence {verdict.confidence.value}{text}"


def _evidence(item: Evidence) -> EvidenceStatus:
    return EvidenceStatus(
        at=datetime.fromtimestamp(item.at, UTC),
        source=item.source,
        fault_class=item.fault_class,
        strength=item.strength,
        text=item.text,
        worker=item.worker,
        node=item.node,
        rank=item.rank,
        gpu=item.gpu,
        step=item.step,
    )
