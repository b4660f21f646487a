"""Whether something is wrong with the present attempt: a failure to record, or a better start that supersedes it.

Questions only. What is done about it is in `incident` and `stopping`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rtj_operator.api.v1alpha1 import Job, JobStatus
from rtj_operator.decide import causes, incident, ledger, node_policy, run_claim
from rtj_operator.decide.attribution import Topology, Verdict, attribute, teller_of
from rtj_operator.decide.case import Case
from rtj_operator.decide.evidence import collect, told_by
from rtj_operator.decide.learn import hold_beat
from rtj_operator.decide.liveness import lost_at
from rtj_operator.decide.node_conditions import bad_conditions
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.resume_choice import choose_resume
from rtj_operator.decide.run_claim import Jobs
from rtj_operator.decide.startup import gang_starts_late_at, gives_up_at, starts_late_at, starts_late_in_words
from rtj_operator.decide.workers import Worker, highest_known_attempt
from trainer_runtime.contract.beat import Beat
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.signals import fault_classes as classes


@dataclass(frozen=True)
class Superseding:
    """Why another attempt must replace the present one although nothing failed."""

    cause: str
    why: str
    waits: bool = False
    """Whether the next attempt waits with a growing backoff."""
    lifted: str | None = None
    """A node that the job no longer avoids, so that it finds room."""


def failure_times(observation: Observation, status: JobStatus, workers: Sequence[Worker], now: datetime, policy: Policy) -> list[datetime]:
    """Return when each trouble of the attempt counts, or will count if nothing changes. One that is due is an incident."""
    times: list[datetime] = []
    for worker in workers:
        if worker.has_failed and 0 not in status.done_workers:
            times.append(gives_up_at(worker, workers, policy) or now)
        elif (at := gives_up_at(worker, workers, policy)) is not None:
            times.append(at)
        if _machine_faults(worker, observation, status, policy):
            times.append(now)
        due = (
            lost_at(worker, observation, now, policy),
            stuck_at(worker, observation, policy),
            not_started_at(worker, workers, observation),
        )
        times += [at for at in due if at is not None]
    late = late_start_at(observation, status, workers, now, policy)
    if late is not None:
        times.append(late)
    unfinished = [worker for worker in workers if not (worker.is_done or worker.has_ended)]
    if status.done_since is not None and unfinished:
        times.append(status.done_since + timedelta(seconds=policy.done_grace_seconds))
    return times


def stuck_at(worker: Worker, observation: Observation, policy: Policy) -> datetime | None:
    """Return when a pod that is being deleted on a Ready node counts as stuck; None when that does not apply.

    The clock is the grace of that very deletion: an incident gives seconds where the pod's own may be minutes, a drain may give an hour.
    """
    spec, pod = observation.job.spec, worker.pod
    if spec is None or pod is None or pod.terminal or pod.deleting_since is None:
        return None
    if observation.nodes and (worker.node is None or not worker.node.is_ready):
        return None
    ends_at = pod.deleting_until or pod.deleting_since + timedelta(seconds=spec.recovery.termination_seconds)
    return ends_at + timedelta(seconds=policy.stuck_pod_seconds)


def not_started_at(worker: Worker, workers: Sequence[Worker], observation: Observation) -> datetime | None:
    """Return when a container that has not begun to run counts as a failure; None when that does not apply."""
    spec = observation.job.spec
    return starts_late_at(worker, workers, spec.recovery.start_seconds) if spec is not None else None


def late_start_at(observation: Observation, status: JobStatus, workers: Sequence[Worker], now: datetime, policy: Policy) -> datetime | None:
    """Return when a gang that runs and does not begin to train counts as a failure; None when that does not apply.

    Once the attempt has trained it never does, and a gang that holds before another job's fence waits for that job.
    """
    spec = observation.job.spec
    if spec is None or ledger.has_trained(status) or run_claim.is_waiting(status.run):
        return None
    return gang_starts_late_at(workers, spec.recovery.start_seconds, now, policy)


def case_of(observation: Observation, status: JobStatus, workers: tuple[Worker, ...], now: datetime, policy: Policy) -> Case:
    """Return what the decision table judges: all evidence of the attempt, attributed."""
    spec = observation.job.spec
    assert spec is not None
    known = incident.known_evidence(status)
    own = _own_findings(observation, status, workers, now, policy)
    stuck = {item.worker for item in (*known, *own) if item.fault_class == causes.STUCK_POD}
    seen = collect(observation, workers, now, policy)
    # a pod that does not end is no longer just one that was taken away
    evidence = [*own, *(item for item in seen if item.worker not in stuck or item.fault_class != classes.PREEMPTED)]
    ends = [worker.ended.finished_at for worker in workers if worker.has_failed and worker.ended is not None]
    faults = [at for worker in workers for at in _machine_faults(worker, observation, status, policy)]
    topology = Topology(
        attempt=status.attempt,
        workers=spec.workers,
        procs_per_worker=spec.ranks_per_worker,
        # a fact that moves the job must lie in its own window, however late it is looked at and whatever its clock says
        first_failed_at=min((at.timestamp() for at in ends if at is not None), default=max(faults, default=None)),
        stopping_since=status.stopping_since.timestamp() if status.stopping_since is not None else None,
        grace_seconds=float(spec.recovery.termination_seconds),
        nodes={worker.index: worker.node_name for worker in workers if worker.node_name is not None},
    )
    verdict: Verdict = attribute(evidence, topology, now, known)
    root = verdict.evidence[0] if verdict.evidence else None
    is_remembered = root is not None and root in known and teller_of(root) not in {teller_of(item) for item in evidence}
    return Case(observation.job, spec, verdict, workers, Jobs.of(observation), policy, is_remembered)


def find_superseding(
    observation: Observation, status: JobStatus, workers: tuple[Worker, ...], now: datetime, policy: Policy
) -> Superseding | None:
    """Return why the present attempt must be replaced: the cluster or the store knows more than the status did, or it holds half a gang."""
    known = highest_known_attempt(observation)
    if known > status.attempt:
        return Superseding(causes.SUPERSEDED, f"attempt {known} of this job exists already")
    held = hold_beat(workers)
    news = hold_news(status, held.beat, observation.job, now) if held is not None else ""
    if news:
        return Superseding(causes.SUPERSEDED, news)
    liftable = node_policy.find_liftable(status.excluded_nodes, observation.nodes)
    lifted = liftable.node if liftable is not None else None
    due = partly_scheduled_at(status, workers, policy)
    if due is not None and due <= now:
        placed = sum(1 for worker in workers if worker.node_name is not None)
        return Superseding(causes.PARTLY_SCHEDULED, f"only {placed} of {len(workers)} workers found a node", waits=True, lifted=lifted)
    due = unschedulable_at(status, workers, observation, policy)
    if due is not None and due <= now:
        return Superseding(causes.UNSCHEDULABLE, "no worker found a node", waits=True, lifted=lifted)
    return None


def hold_news(status: JobStatus, beat: Beat, job: Job, now: datetime) -> str:
    """Return what a holding worker 0 sees that makes its assignment out of date; an empty text when it may go on."""
    if beat.highest_fence is not None and beat.highest_fence >= status.attempt:
        return f"fence {beat.highest_fence} stands in the run"
    if status.starts_fresh:
        return ""
    known = ledger.merge(status, beat.inventory, job.run, now)
    better = choose_resume(known, False, job.uid).point
    present = status.resume_point
    if better is None or (present is not None and not present.foreign and better.step <= present.step):
        return ""
    return f"the store holds step {better.step} of attempt {better.attempt}"


def partly_scheduled_at(status: JobStatus, workers: Sequence[Worker], policy: Policy) -> datetime | None:
    """Return when a gang that holds some nodes and waits for others gives them back; None when it is whole or holds nothing."""
    placed = [worker for worker in workers if worker.node_name is not None]
    is_split = 0 < len(placed) < len(workers) and not any(worker.is_missing for worker in workers)
    if not is_split or status.attempt_started_at is None:
        return None
    # the clock starts with the first node that is held: until then the gang may have waited in a queue for hours
    since = min((worker.scheduled_at or status.attempt_started_at for worker in placed), default=status.attempt_started_at)
    return since + timedelta(seconds=policy.partly_scheduled_seconds)


def unschedulable_at(status: JobStatus, workers: Sequence[Worker], observation: Observation, policy: Policy) -> datetime | None:
    """Return when a gang that fits nowhere gives up one of its own exclusions; None when it holds a node or has none to give up."""
    if not workers or node_policy.find_liftable(status.excluded_nodes, observation.nodes) is None:
        return None
    refused: list[datetime] = []
    for worker in workers:
        scheduled = worker.pod.condition("PodScheduled") if worker.pod is not None else None
        if worker.node_name is not None or scheduled is None or scheduled.reason != "Unschedulable" or scheduled.at is None:
            return None
        refused.append(scheduled.at)
    return max(refused) + timedelta(seconds=policy.partly_scheduled_seconds)


def _machine_faults(worker: Worker, observation: Observation, status: JobStatus, policy: Policy) -> list[float]:
    """Return the Unix times of machine faults that are known while the worker still runs.

    A condition that this job was moved for before must be a new one.
    """
    if worker.is_done or worker.has_ended or status.attempt_started_at is None:
        return []
    found = [item.at for item in told_by(worker) if item.strength is Strength.NODE and item.attempt == status.attempt]
    if worker.node is None:
        return found
    was_blamed = any(failure.node == worker.node.name for failure in status.failures)
    since = status.attempt_started_at if was_blamed else status.attempt_started_at - timedelta(minutes=10)
    bad = [item.condition for item in bad_conditions(worker.node, policy.condition_rules) if item.strength is Strength.NODE]
    changed = [condition.transitioned_at for condition in bad if condition.transitioned_at is not None]
    return [*found, *(at.timestamp() for at in changed if at > since)]


def _own_findings(observation: Observation, status: JobStatus, workers: Sequence[Worker], now: datetime, policy: Policy) -> list[Evidence]:
    """What the operator finds by waiting: pods that do not end, what does not start, workers that outlive worker 0's done."""
    found: list[Evidence] = []
    if status.stopping_since is not None:
        return found  # a pod that is slow to end then is slow for us, and says nothing about the failure
    is_late = status.done_since is not None and status.done_since + timedelta(seconds=policy.done_grace_seconds) <= now
    for worker in workers:
        at = stuck_at(worker, observation, policy)
        if at is not None and at <= now:
            found.append(_finding(worker, status, at, causes.STUCK_POD, "its pod does not end although its node is Ready"))
        elif (late := not_started_at(worker, workers, observation)) is not None and late <= now:
            found.append(_finding(worker, status, late, causes.NOT_STARTED, _still_waiting(worker)))
        elif is_late and not (worker.is_done or worker.has_ended):
            found.append(_finding(worker, status, now, causes.NOT_ENDED, "worker 0 is done, this one neither reported done nor ended"))
    spec, late = observation.job.spec, late_start_at(observation, status, workers, now, policy)
    if spec is not None and late is not None and late <= now:
        text = starts_late_in_words(workers, spec.recovery.start_seconds)
        found.append(Evidence(now.timestamp(), Source.BEAT, causes.STARTS_LATE, Strength.UNKNOWN, text, status.attempt))
    return found


def _still_waiting(worker: Worker) -> str:
    container = worker.pod.container if worker.pod is not None else None
    words = ": ".join(part for part in (container.reason, container.message) if part) if container is not None else ""
    return f"its container has not begun to run{f' ({words})' if words else ''}"


def _finding(worker: Worker, status: JobStatus, at: datetime, cause: str, text: str) -> Evidence:
    return Evidence(at.timestamp(), Source.POD, cause, Strength.UNKNOWN, text, status.attempt, worker=worker.index, node=worker.node_name)
