"""The pods of all jobs, as slim records: what `decide` may look at and nothing more.

A pod counts for a job only when label, owner reference and namespace agree: a label alone can be written by anybody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rtj_operator.api import keys
from rtj_operator.cluster.client import KubeClient
from rtj_operator.cluster.informer import Informer, Source
from rtj_operator.cluster.outage import utc_now
from rtj_operator.cluster.sightings import Sightings
from rtj_operator.cluster.times import parse_time
from rtj_operator.decide.observation import ContainerView, PodCondition, PodView
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.contract.exit_report import ExitReport


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod and whose it is."""

    namespace: str
    job_uid: str
    view: PodView


def parse_pod(pod: dict[str, Any]) -> PodRecord | None:
    """Return the record of a pod of ours; None when its labels are not what the operator writes or another object owns it."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    uid, gang, worker = labels.get(keys.JOB_UID, ""), labels.get(keys.GANG, ""), labels.get(keys.WORKER_INDEX, "")
    owners = metadata.get("ownerReferences") or ()
    is_owned = any(owner.get("uid") == uid and owner.get("controller") for owner in owners)
    if not (uid and gang.isdigit() and worker.isdigit() and is_owned):
        return None
    status = pod.get("status") or {}
    view = PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        gang=int(gang),
        worker=int(worker),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        node=pod["spec"].get("nodeName"),
        created_at=parse_time(metadata.get("creationTimestamp")),
        deleting_since=_deleting_since(metadata),
        deleting_until=parse_time(metadata.get("deletionTimestamp")),
        conditions=tuple(_condition(condition) for condition in status.get("conditions") or ()),
        container=_trainer(pod),
    )
    return PodRecord(metadata["namespace"], uid, view)


def _deleting_since(metadata: dict[str, Any]) -> Any:
    at = parse_time(metadata.get("deletionTimestamp"))
    return at - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0) if at else None


def _condition(condition: dict[str, Any]) -> PodCondition:
    return PodCondition(
        type=condition["type"],
        status=condition["status"],
        reason=condition.get("reason", ""),
        message=condition.get("message", ""),
        at=parse_time(condition.get("lastTransitionTime")),
    )


def _trainer(pod: dict[str, Any]) -> ContainerView | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    containers: list[dict[str, Any]] = pod["spec"].get("containers") or []
    name = containers[0]["name"] if len(containers) == 1 else keys.TRAINER_CONTAINER
    status = next((entry for entry in statuses if entry["name"] == name), None)
    if status is None:
        return None
    state, detail = next(iter((status.get("state") or {"waiting": {}}).items()))
    report = _report(detail.get("message", "")) if state == "terminated" else None
    return ContainerView(
        state=state,
        reason=detail.get("reason", ""),
        message="" if report else detail.get("message", ""),
        exit_code=detail.get("exitCode"),
        started_at=parse_time(detail.get("startedAt")),
        finished_at=parse_time(detail.get("finishedAt")),
        report=report,
    )


def _report(message: str) -> ExitReport | None:
    try:
        return loads(ExitReport, message)
    except ContractError:
        return None  # the words of another program, which are kept as they are


class PodCache:
    """All pods of all jobs, found by job, by pod uid and by node. ``on_change`` gets the job uid of what changed."""

    def __init__(
        self, client: KubeClient, namespaces: Sequence[str], on_change: Callable[[str], None], clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._on_change = on_change
        self._starts = Sightings(clock)
        self._by_job: dict[str, dict[str, PodRecord]] = defaultdict(dict)
        self._by_uid: dict[str, PodRecord] = {}
        self._by_node: dict[str, dict[str, str]] = defaultdict(dict)
        self._informers = {
            namespace: Informer(client, Source(path, label_selector=keys.JOB_UID), parse_pod, self._changed)
            for namespace, path in ({name: f"/api/v1/namespaces/{name}/pods" for name in namespaces} or {"": "/api/v1/pods"}).items()
        }
        """By namespace; one under "" for all of them."""
        self.informers = list(self._informers.values())

    def of_job(self, namespace: str, job_uid: str) -> tuple[PodView, ...]:
        """Return the job's pods in the order of gang and worker."""
        records = self._by_job.get(job_uid, {}).values()
        return tuple(sorted((r.view for r in records if r.namespace == namespace), key=lambda view: (view.gang, view.worker)))

    def created(self, pod: dict[str, Any]) -> None:
        """Take a pod that we created: no pass may find it missing because the watch is slow."""
        namespace = pod["metadata"]["namespace"]
        self._informers[namespace if namespace in self._informers else ""].note(pod)

    def find(self, pod_uid: str) -> PodRecord | None:
        """Return the pod with that uid, or None when there is none of ours."""
        return self._by_uid.get(pod_uid)

    def may_run(self, job_uid: str) -> bool:
        """Say whether a pod of that job, in whatever namespace, runs or may yet run."""
        return any(not record.view.terminal for record in self._by_job.get(job_uid, {}).values())

    def jobs_on(self, node: str) -> set[str]:
        """Return the uids of the jobs that have a pod on that node."""
        return set(self._by_node.get(node, {}).values())

    def _changed(self, key: str, before: PodRecord | None, after: PodRecord | None) -> None:
        if after is not None:
            after = self._with_start(after)
        if before is not None:
            if after is None or after.view.uid != before.view.uid:
                self._starts.note(before.view.uid, None)
            self._by_uid.pop(before.view.uid, None)
            self._leave_node(before)
            siblings = self._by_job[before.job_uid]
            siblings.pop(key, None)
            if not siblings:
                del self._by_job[before.job_uid]
        if after is not None:
            self._by_uid[after.view.uid] = after
            if after.view.node is not None:
                self._by_node[after.view.node][after.view.uid] = after.job_uid
            self._by_job[after.job_uid][key] = after
        for uid in {record.job_uid for record in (before, after) if record is not None}:
            self._on_change(uid)

    def _with_start(self, record: PodRecord) -> PodRecord:
        """Return the record with its container's start by our clock; the kubelet writes it by the node's."""
        view = record.view
        if view.container is None:
            return record
        self._starts.note(view.uid, view.container.started_at)
        return replace(record, view=replace(view, container=replace(view.container, started_at=self._starts.at(view.uid))))

    def _leave_node(self, record: PodRecord) -> None:
        node = record.view.node
        if node is None:
            return
        pods = self._by_node[node]
        pods.pop(record.view.uid, None)
        if not pods:
            del self._by_node[node]
