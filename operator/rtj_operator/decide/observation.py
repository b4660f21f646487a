"""What one pass knows about one job: everything `decide` may look at, as frozen values.

Times are aware UTC datetimes. Liveness is judged by the operator's own clock: a beat carries when *we* received it, a node when *we* saw it
alive, and a container no start that lies ahead of the moment in which *we* saw it run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rtj_operator.api.v1alpha1 import Job
from trainer_runtime.contract.beat import Beat, CheckpointRecord
from trainer_runtime.contract.exit_report import ExitReport


@dataclass(frozen=True)
class ContainerView:
    """The trainer container of a pod. Exactly one of waiting, running, terminated is meant by ``state``."""

    state: str
    """``waiting``, ``running`` or ``terminated``."""
    reason: str = ""
    """The kubelet's word: ImagePullBackOff, CreateContainerError, OOMKilled, Error, Completed, Unknown…; read before the exit code."""
    message: str = ""
    exit_code: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    report: ExitReport | None = None
    """The exit report of the termination message; None when there is none or it cannot be read."""


@dataclass(frozen=True)
class PodCondition:
    """One condition of a pod (Ready, DisruptionTarget, PodScheduled…)."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class PodView:
    """One pod that carries this job's uid, of whatever gang, as the informer last saw it."""

    name: str
    uid: str
    gang: int
    worker: int
    phase: str
    """Pending, Running, Succeeded, Failed, Unknown."""
    reason: str = ""
    """status.reason, e.g. Evicted, NodeShutdown, NodeLost."""
    message: str = ""
    node: str | None = None
    created_at: datetime | None = None
    deleting_since: datetime | None = None
    """When deletion was asked for (deletionTimestamp minus grace); None when it was not."""
    deleting_until: datetime | None = None
    """When the grace of that deletion is over (deletionTimestamp): whoever deleted it may have given more than the pod's own."""
    conditions: tuple[PodCondition, ...] = ()
    container: ContainerView | None = None

    @property
    def terminal(self) -> bool:
        """Whether no container of the pod runs or will run again."""
        return self.phase in ("Succeeded", "Failed")

    def condition(self, type_: str) -> PodCondition | None:
        """Return the condition of that type, or None."""
        return next((condition for condition in self.conditions if condition.type == type_), None)


@dataclass(frozen=True)
class NodeCondition:
    """One condition of a Node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transitioned_at: datetime | None = None


@dataclass(frozen=True)
class Taint:
    """One taint of a Node."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True)
class NodeView:
    """One Node as the informer last saw it."""

    name: str
    uid: str
    ready: str
    """``True``, ``False`` or ``Unknown``: the status of condition Ready."""
    resource_version: str = ""
    boot_id: str = ""
    unschedulable: bool = False
    conditions: tuple[NodeCondition, ...] = ()
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Only ``rtj.dev/*``."""
    gpus: int = 0
    """nvidia.com/gpu in its capacity."""
    alive_at: datetime | None = None
    """The node's own last sign of life: when its lease or a heartbeat of its conditions was seen to be renewed."""

    @property
    def is_ready(self) -> bool:
        """Whether the Node's Ready condition is True."""
        return self.ready == "True"


@dataclass(frozen=True)
class WorkerBeat:
    """The newest beat of one worker's sender, and when it came by the operator's clock."""

    beat: Beat
    received_at: datetime
    pod_name: str


@dataclass(frozen=True)
class SendersView:
    """The heartbeat channel as a whole, for telling a dead worker from a dead channel."""

    listening_since: datetime
    """When this operator began to take beats; silence before it means nothing."""
    known: int = 0
    """Senders of all jobs that beat in the last 10 minutes and whose pods run."""
    silent: int = 0
    """Those of them without a beat in the last 30 s."""
    api_outage_until: datetime | None = None
    """When the last outage of the API server ended, or now while it lasts; None when there was none."""


@dataclass(frozen=True)
class RunOwner:
    """Another live job that owns this job's run directory."""

    namespace: str
    name: str


@dataclass(frozen=True)
class TemplateCheck:
    """Result of the server-side dry-run create of worker 0 for this generation."""

    outcome: str
    """``valid``; ``invalid`` (422 or 400: the user must change it); ``refused`` (403: quota or policy, may pass later); ``unknown`` (an
    outage)."""
    message: str = ""


@dataclass(frozen=True)
class CreateRefusal:
    """A child that could not be created in the last pass, so that it is shown and retried with backoff."""

    worker: int
    reason: str
    """``forbidden`` (quota, policy), ``conflict`` (a foreign object has the name) or ``error``."""
    message: str
    at: datetime


@dataclass(frozen=True)
class NodeRefusal:
    """A write to a Node that the API server refused, be it for a right, an admission webhook or a policy."""

    node: str
    message: str
    """The server's words, cut to a length that a condition and an event have room for."""
    at: datetime


@dataclass(frozen=True)
class StoreView:
    """What adds to ``status.checkpoints``: what beats reported and no status write holds yet, and what a look at the store found."""

    records: tuple[CheckpointRecord, ...] = ()
    """Told by beats, in the order of arrival."""
    found: tuple[CheckpointRecord, ...] = ()
    """Read in the store itself, for the choice of a resume point. Empty when the operator may not read that store."""
    is_awaited: bool = False
    """The store can be read and no look at it is fresh: a choice waits for it. The look is bounded in time, and wakes the job."""
    problem: str = ""
    """Why the last look at the store found nothing out; the choice is made from what was reported."""


@dataclass(frozen=True)
class Observation:
    """One job and all that surrounds it, at one time."""

    job: Job
    pods: tuple[PodView, ...]
    nodes: Mapping[str, NodeView]
    """Every Node of the cluster by name; empty without node rights."""
    beats: Mapping[int, WorkerBeat]
    """Newest beat by worker index, of any attempt, from pods that exist."""
    senders: SendersView
    store: StoreView = field(default_factory=StoreView)
    spec_error: str = ""
    """Why the spec cannot be used, with the field's path; empty when it can."""
    service_exists: bool = False
    run_owner: RunOwner | None = None
    sources: frozenset[tuple[int, int]] = frozenset()
    """The (step, attempt) of this run that live jobs name in spec.checkpoint.resumeFrom: never deleted."""
    live_job_uids: frozenset[str] = frozenset()
    """Uids of all jobs that exist and are not finished."""
    ending_job_uids: frozenset[str] = frozenset()
    """Of the jobs whose fences this job's workers see: those that were seen to end here while a pod of theirs may still run."""
    ended_job_uids: frozenset[str] = frozenset()
    """Of the same: those that were seen to end here and of which no pod can run any more."""
    template_check: TemplateCheck | None = None
    """None until it was made for this generation."""
    refusals: tuple[CreateRefusal, ...] = ()
    node_refusals: Mapping[str, NodeRefusal] = field(default_factory=dict)
    """By node, of whichever job's writes: those that stand, which are tried again."""
    node_rights: bool = True
    """Whether the operator watches Nodes and may patch them."""
    caches_synced_at: datetime | None = None
    """When both informers had their first full list; nothing is judged before."""
