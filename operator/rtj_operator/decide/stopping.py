"""Stopping the present attempt: who is deleted when and how hard, and whether nothing of it runs any more.

A stop has one of four reasons. Only a suspend waits for a save first: a gang that is stopped for an incident stages nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rtj_operator.api.v1alpha1 import ExcludedNode, JobSpec, JobStatus, StopReason
from rtj_operator.decide import causes, ledger, node_policy
from rtj_operator.decide.draft import Draft
from rtj_operator.decide.liveness import lost_at
from rtj_operator.decide.observation import Observation, PodView
from rtj_operator.decide.plan import DeletePod
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.watch import stuck_at
from rtj_operator.decide.workers import Worker
from trainer_runtime.contract.evidence import Strength


def stop_pods(draft: Draft, observation: Observation, spec: JobSpec, now: datetime, policy: Policy) -> Draft:
    """Add what ends the pods that still run: nothing before its time, a plain delete, or a forced one for a lost node or a stuck pod."""
    status = draft.status
    earliest = delete_from(status, spec, policy)
    if earliest is not None and earliest > now:
        draft = draft.wake(earliest)
    for pod in running_pods(observation.pods):
        worker = as_worker(pod, observation)
        lost, stuck = lost_at(worker, observation, now, policy), stuck_at(worker, observation, policy)
        if lost is not None and lost <= now:
            draft = draft.act(DeletePod(pod.name, pod.uid, 0))
        elif stuck is not None and stuck <= now:
            draft = _with_stuck_node(draft.act(DeletePod(pod.name, pod.uid, 0)), worker, observation, spec, now, policy)
        elif pod.deleting_since is None and (earliest is None or earliest <= now):
            draft = draft.act(DeletePod(pod.name, pod.uid, _grace(status, spec, policy)))
        draft = draft.wake(lost, stuck)
    return draft


def is_live(status: JobStatus) -> bool:
    """Say whether an attempt is recorded and neither being stopped nor over."""
    return status.gang > 0 and status.stopping_since is None and not status.phase.is_terminal


def running_pods(pods: Iterable[PodView]) -> list[PodView]:
    """Return the pods, of any gang, in which a container runs or may yet run."""
    return [pod for pod in pods if not pod.terminal]


def delete_from(status: JobStatus, spec: JobSpec, policy: Policy) -> datetime | None:
    """Return when pods may be deleted at the earliest; None: at once."""
    since = status.stopping_since
    if since is None:
        return None
    if status.stop_reason is StopReason.SUSPEND and not is_saved_for_suspend(status) and ledger.has_trained(status):
        return since + timedelta(seconds=spec.recovery.termination_seconds)
    if status.stop_reason is StopReason.END and status.ending is not None and status.ending.succeeded:
        return since + timedelta(seconds=policy.done_grace_seconds)
    return None


def is_saved_for_suspend(status: JobStatus) -> bool:
    """Say whether the save that the suspend asked for is verified."""
    newest = status.checkpoint
    return (
        newest is not None
        and status.stopping_since is not None
        and newest.attempt == status.attempt
        and newest.verified_at >= status.stopping_since
    )


def as_worker(pod: PodView, observation: Observation) -> Worker:
    """Return a pod of any gang as a worker, for the questions of liveness."""
    beat = observation.beats.get(pod.worker)
    node = observation.nodes.get(pod.node) if pod.node is not None else None
    return Worker(pod.worker, pod, beat if beat is not None and beat.beat.pod_uid == pod.uid else None, node, True, False, None)


def _grace(status: JobStatus, spec: JobSpec, policy: Policy) -> int:
    if status.stop_reason is StopReason.SUSPEND:
        return spec.recovery.termination_seconds
    return min(policy.stop_grace_seconds, spec.recovery.termination_seconds)


def _with_stuck_node(draft: Draft, worker: Worker, observation: Observation, spec: JobSpec, now: datetime, policy: Policy) -> Draft:
    """Keep the next gang off the node whose pod had to be forced (row 19); the present incident has been charged already."""
    status, name = draft.status, worker.node_name
    mode = node_policy.effective_mode(spec.recovery.node_remediation, policy, observation.node_rights)
    if name is None or mode.value not in ("Avoid", "Cordon") or any(entry.node == name for entry in status.excluded_nodes):
        return draft
    entry = ExcludedNode(
        node=name,
        cause=causes.STUCK_POD,
        strength=Strength.SUSPECT,
        incident=status.attempt,
        since=now,
        until=now + timedelta(seconds=policy.exclude_seconds),
    )
    return draft.change(excluded_nodes=node_policy.within_cap((*status.excluded_nodes, entry), spec, observation.nodes, policy))
