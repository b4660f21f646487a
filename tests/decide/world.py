"""A tiny cluster of values: it carries out plans on pods, nodes and beats held in memory, with the status going through its JSON each time.

It is not a model of Kubernetes' timing: a test says when the kubelet, the scheduler or a worker does something.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job, JobStatus
from rtj_operator.decide import decide
from rtj_operator.decide.observation import (
    ContainerView,
    CreateRefusal,
    NodeCondition,
    NodeRefusal,
    NodeView,
    Observation,
    PodCondition,
    PodView,
    RunOwner,
    SendersView,
    StoreView,
    TemplateCheck,
    WorkerBeat,
)
from rtj_operator.decide.plan import (
    CordonNode,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    JobEvent,
    NodeWrite,
    Plan,
    ReleaseNode,
    StrikeNode,
)
from rtj_operator.settings import OperatorSettings
from trainer_runtime.contract.beat import Beat, CheckpointRecord, Level, Phase
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.contract.exit_report import ExitReport, FirstFailure, Outcome

START = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
UID = "uid-1"
SETTINGS = OperatorSettings(
    heartbeat_url="https://rtj.rtj-system.svc:8443",
    heartbeat_ca_file=Path("ca.pem"),
    heartbeat_cert_file=Path("tls.crt"),
    heartbeat_key_file=Path("tls.key"),
)
RUN = "default.gpt"


def spec_of(workers: int = 3, **changes: Any) -> dict[str, Any]:
    """A raw spec; ``changes`` are top-level fields in camelCase."""
    return {
        "workers": workers,
        "template": {
            "spec": {
                "containers": [{"name": "trainer", "image": "gpt:1", "volumeMounts": [{"name": "ckpt", "mountPath": "/checkpoints"}]}],
                "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}}],
            }
        },
        "checkpoint": {"store": "file:///checkpoints"},
        **changes,
    }


def record(step: int, attempt: int, level: Level = Level.VERIFIED, sha: str = "") -> CheckpointRecord:
    """A checkpoint record of the job's run."""
    return CheckpointRecord(
        RUN, step, attempt, f"file:///checkpoints/{RUN}/steps/{step:010d}-{attempt:08d}", sha or f"sha-{step}-{attempt}", level
    )


def evidence(fault_class: str, strength: Strength, at: datetime, attempt: int, text: str = "", rank: int | None = None) -> Evidence:
    """One line that a worker saw."""
    return Evidence(at.timestamp(), Source.LOG, fault_class, strength, text or fault_class, attempt, rank=rank)


@dataclass
class World:
    """One job and its surroundings. Time moves only by `after`."""

    spec: dict[str, Any] = field(default_factory=spec_of)
    nodes: dict[str, NodeView] = field(default_factory=lambda: {f"n{i}": node(f"n{i}", START) for i in range(6)})
    now: datetime = START
    status: JobStatus = field(default_factory=JobStatus)
    pods: dict[str, PodView] = field(default_factory=dict)
    beats: dict[int, WorkerBeat] = field(default_factory=dict)
    records: list[CheckpointRecord] = field(default_factory=list)
    look: StoreView = field(default_factory=StoreView)
    """What a look at the store says, beside the records."""
    sources: frozenset[tuple[int, int]] = frozenset()
    service: bool = False
    generation: int = 1
    template_check: TemplateCheck | None = field(default_factory=lambda: TemplateCheck("valid"))
    run_owner: RunOwner | None = None
    live_job_uids: frozenset[str] = frozenset({UID})
    ending_job_uids: frozenset[str] = frozenset()
    ended_job_uids: frozenset[str] = frozenset()
    refusals: tuple[CreateRefusal, ...] = ()
    node_refusals: dict[str, NodeRefusal] = field(default_factory=dict)
    """Nodes that the API server lets nobody write."""
    node_rights: bool = True
    can_read_nodes: bool = True
    senders: SendersView = field(default_factory=lambda: SendersView(listening_since=START - timedelta(hours=1)))
    settings: OperatorSettings = SETTINGS
    deleted: bool = False
    events: list[JobEvent] = field(default_factory=list)
    written: list[JobStatus] = field(default_factory=list)
    created: list[CreatePod] = field(default_factory=list)
    _uids: Any = field(default_factory=lambda: itertools.count(1))
    _sequence: Any = field(default_factory=lambda: itertools.count(1))

    # the operator

    @property
    def job(self) -> Job:
        """The job as the API server has it."""
        metadata = {"namespace": "default", "name": "gpt", "uid": UID, "generation": self.generation, "resourceVersion": "1"}
        return Job.parse({"metadata": metadata, "spec": self.spec, "status": self.status.to_api()})

    def observe(self) -> Observation:
        """What a pass would see now."""
        job = self.job
        return Observation(
            job=job,
            pods=tuple(sorted(self.pods.values(), key=lambda pod: (pod.gang, pod.worker))),
            nodes=self.nodes if self.can_read_nodes else {},
            beats=dict(self.beats),
            senders=self.senders,
            store=replace(self.look, records=tuple(self.records)),
            sources=self.sources,
            spec_error=job.spec_error,
            service_exists=self.service,
            run_owner=self.run_owner,
            live_job_uids=self.live_job_uids,
            ending_job_uids=self.ending_job_uids,
            ended_job_uids=self.ended_job_uids,
            template_check=self.template_check,
            refusals=self.refusals,
            node_refusals=self.node_refusals,
            node_rights=self.node_rights,
            caches_synced_at=START,
        )

    def plan(self) -> Plan:
        """Decide without carrying anything out."""
        return decide(self.observe(), self.now, self.settings)

    def run_pass(self) -> Plan:
        """Decide, write the status, carry out the actions."""
        plan = self.plan()
        if plan.status != self.status:
            self.written.append(plan.status)
        self.status = Job.parse({"metadata": {}, "spec": self.spec, "status": plan.status.to_api()}).status
        self.records.clear()
        self.events += plan.events
        for action in plan.actions:
            self._act(action)
        return plan

    def settle(self, limit: int = 20) -> Plan:
        """Make passes until one changes nothing."""
        for _ in range(limit):
            before = (self.status, dict(self.pods))
            plan = self.run_pass()
            if (self.status, dict(self.pods)) == before:
                return plan
        raise AssertionError(f"no rest after {limit} passes: {plan}")

    def _act(self, action: Any) -> None:
        if isinstance(action, CreateService):
            self.service = True
        elif isinstance(action, CreatePod):
            self.created.append(action)
            name = f"gpt-{action.gang}-{action.worker}"
            if name not in self.pods:
                self.pods[name] = PodView(name, f"pod-{next(self._uids)}", action.gang, action.worker, "Pending", created_at=self.now)
        elif isinstance(action, DeletePod):
            self._delete(action)
        elif isinstance(action, NodeWrite) and action.node in self.node_refusals:
            return
        elif isinstance(action, CordonNode):
            view = self.nodes[action.node]
            owner = {keys.CORDONED_BY: f"default/gpt/{UID}", keys.CORDONED_TIME: action.at.isoformat()}
            self.nodes[action.node] = replace(view, unschedulable=True, annotations={**view.annotations, **owner})
        elif isinstance(action, StrikeNode):
            view = self.nodes[action.node]
            strike = f"{action.at.isoformat()}={action.reason}=default/gpt/{action.incident}"
            self.nodes[action.node] = replace(view, annotations={**view.annotations, keys.STRIKES: strike})
        elif isinstance(action, ReleaseNode):
            view = self.nodes[action.node]
            kept = {key: value for key, value in view.annotations.items() if not key.startswith("rtj.dev/cordoned-")}
            self.nodes[action.node] = replace(view, annotations={**kept, keys.RELEASED_TIME: action.at.isoformat()})
        elif isinstance(action, DeleteJob):
            self.deleted = True

    def _delete(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod is None or pod.uid != action.uid:
            return
        if action.grace_seconds == 0 or pod.terminal or pod.node is None:
            self._forget(pod)
        elif pod.deleting_since is None:
            until = self.now + timedelta(seconds=action.grace_seconds)
            self.pods[action.name] = replace(pod, deleting_since=self.now, deleting_until=until)

    def _forget(self, pod: PodView) -> None:
        self.pods.pop(pod.name, None)
        if (beat := self.beats.get(pod.worker)) is not None and beat.beat.pod_uid == pod.uid:
            del self.beats[pod.worker]

    # time and the cluster

    def after(self, seconds: float) -> World:
        """Let time pass; Ready nodes renew their leases."""
        self.now += timedelta(seconds=seconds)
        for name, view in self.nodes.items():
            if view.is_ready:
                self.nodes[name] = replace(view, alive_at=self.now)
        return self

    @property
    def gang(self) -> list[PodView]:
        """Pods of the present gang, by worker."""
        return sorted((pod for pod in self.pods.values() if pod.gang == self.status.gang), key=lambda pod: pod.worker)

    def pod(self, worker: int) -> PodView:
        """The present gang's pod of that worker."""
        return next(pod for pod in self.gang if pod.worker == worker)

    def change_pod(self, worker: int, **changes: Any) -> None:
        """Let the cluster change a pod."""
        pod = self.pod(worker)
        self.pods[pod.name] = replace(pod, **changes)

    def schedule(self, workers: Iterable[int] | None = None) -> None:
        """Bind pods to schedulable nodes that the job does not exclude, one each."""
        avoided = {entry.node for entry in self.status.excluded_nodes}
        usable = [view.name for view in self.nodes.values() if view.is_ready and not view.unschedulable and view.name not in avoided]
        for pod in self.gang:
            if pod.node is None and (workers is None or pod.worker in workers):
                condition = PodCondition("PodScheduled", "True", at=self.now)
                self.pods[pod.name] = replace(pod, node=usable[pod.worker % len(usable)], conditions=(condition,))

    def start(self, workers: Iterable[int] | None = None) -> None:
        """Schedule the gang and run its containers."""
        self.schedule(workers)
        for pod in self.gang:
            if workers is None or pod.worker in workers:
                self.change_pod(pod.worker, phase="Running", container=ContainerView("running", started_at=self.now))

    def beat(self, worker: int, phase: Phase = Phase.TRAIN, step: int | None = None, **fields: Any) -> None:
        """Let one worker beat for the present attempt."""
        pod = self.pod(worker)
        fields.setdefault("attempt", self.status.attempt)
        beat = Beat(UID, worker_index=worker, pod_uid=pod.uid, sequence=next(self._sequence), phase=phase, sent_at=0.0, step=step, **fields)
        self.beats[worker] = WorkerBeat(beat, self.now, pod.name)

    def train(self, step: int | None = 1, workers: Iterable[int] | None = None) -> None:
        """Let workers beat phase train at that step."""
        for pod in self.gang:
            if (workers is None or pod.worker in workers) and not pod.terminal:
                self.beat(pod.worker, step=step)

    def launch(self, step: int = 1) -> World:
        """From whatever is pending to a gang that trains."""
        self.settle()
        self.start()
        self.train(step)
        self.settle()
        assert self.phase == "Running", self.status
        return self

    def exit(self, worker: int, code: int = 1, report: ExitReport | None = None, reason: str = "Error", message: str = "") -> None:
        """Let a worker's container end."""
        phase = "Succeeded" if code == 0 else "Failed"
        container = ContainerView("terminated", reason, message, code, self.now, self.now, report)
        self.change_pod(worker, phase=phase, container=container)

    def fail(self, worker: int, exception: str = "ValueError: bad batch", step: int | None = 7, **fields: Any) -> None:
        """Let a worker end with a report of a rank's exception."""
        self.exit(worker, 1, self.report_of(worker, exception, step, **fields))

    def tell_failure(self, worker: int, exception: str = "ValueError: bad batch", step: int | None = 7, **fields: Any) -> None:
        """Let a worker beat that its ranks ended, while its container still runs."""
        self.beat(worker, Phase.STOPPED, step, failure=self.report_of(worker, exception, step, **fields))

    def report_of(self, worker: int, exception: str, step: int | None, rank: int | None = None, **fields: Any) -> ExitReport:
        """A worker's report of a rank's exception now."""
        first = FirstFailure(worker if rank is None else rank, int(self.now.timestamp() * 1e9), exception, step)
        return ExitReport(self.status.attempt, worker, Outcome.FAILED, 1, first_failure=first, **fields)

    def lose_pod(self, worker: int) -> None:
        """Let a pod be gone, and with it what its worker said."""
        self._forget(self.pod(worker))

    def end_deleted(self) -> None:
        """Let the kubelet finish what is being deleted on Ready nodes."""
        for pod in list(self.pods.values()):
            if pod.deleting_since is not None and (pod.node is None or self.nodes[pod.node].is_ready):
                self._forget(pod)

    def lose_node(self, name: str) -> None:
        """Cut a node's power: it is not Ready and renews nothing."""
        self.nodes[name] = replace(self.nodes[name], ready="Unknown")

    def set_condition(self, name: str, type_: str, status: str = "True", reason: str = "", message: str = "") -> None:
        """Let a node's agent set a condition now."""
        view = self.nodes[name]
        condition = NodeCondition(type_, status, reason, message, transitioned_at=self.now)
        self.nodes[name] = replace(view, conditions=(*view.conditions, condition))

    # questions

    @property
    def phase(self) -> str:
        """The status' phase."""
        return self.status.phase.value

    def condition(self, type_: str) -> tuple[str, str]:
        """(status, reason) of a condition; empty when it is not there."""
        found = next((condition for condition in self.status.conditions if condition.type == type_), None)
        return (found.status.value, found.reason) if found is not None else ("", "")

    def told(self) -> list[str]:
        """Reasons of all events so far."""
        return [event.reason for event in self.events]


def node(name: str, at: datetime, **fields: Any) -> NodeView:
    """A Ready node."""
    return NodeView(name, f"uid-{name}", "True", resource_version="5", boot_id=f"boot-{name}", alive_at=at, **fields)
