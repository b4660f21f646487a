"""Everything that lives as long as the process, built once and wired here. No request is sent and no task is started.

What wakes a job is wired here too: its own pods, a node that one of them is on, its beats. The order of start and stop is `app`'s.
"""

from __future__ import annotations

import functools
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry

from rtj_operator.api import keys
from rtj_operator.api.v1alpha1 import Job
from rtj_operator.build.environment import HeartbeatEndpoint
from rtj_operator.build.pod import build_pod
from rtj_operator.cluster.client import KubeClient, load_configuration, read_credentials
from rtj_operator.cluster.errors import ApiError, ApiUnreachable
from rtj_operator.cluster.events import EventRecorder
from rtj_operator.cluster.informer import Informer
from rtj_operator.cluster.lease import Lease
from rtj_operator.cluster.nodes import NodeCache
from rtj_operator.cluster.outage import utc_now
from rtj_operator.cluster.pods import PodCache
from rtj_operator.cluster.token_review import TokenReviews
from rtj_operator.decide.decision import decide
from rtj_operator.decide.node_policy import breaker_obstacle
from rtj_operator.decide.policy import policy_of
from rtj_operator.decide.reply import reply
from rtj_operator.heartbeat.beats import BeatBook
from rtj_operator.heartbeat.server import HeartbeatServer
from rtj_operator.heartbeat.tls import ServerTls
from rtj_operator.manifests.base import NoStores, StoreReader
from rtj_operator.manifests.ledger import Ledger
from rtj_operator.observability.metrics import Metrics
from rtj_operator.reconcile.act import Actor
from rtj_operator.reconcile.api_facts import ApiFacts
from rtj_operator.reconcile.beat_desk import BeatDesk
from rtj_operator.reconcile.crash_points import CrashPoints
from rtj_operator.reconcile.job_cache import JobCache
from rtj_operator.reconcile.node_writes import NodeWriter
from rtj_operator.reconcile.observe import Observer
from rtj_operator.reconcile.reconciler import Reconciler
from rtj_operator.reconcile.refusals import NodeRefusals, Refusals
from rtj_operator.reconcile.work_queue import WorkQueue
from rtj_operator.settings import OperatorSettings, SettingsError, variable_name


@dataclass
class Operator:
    """The parts that `app` starts, asks and stops."""

    settings: OperatorSettings
    client: KubeClient
    metrics: Metrics
    lease: Lease
    jobs: JobCache
    queue: WorkQueue
    pods: PodCache
    nodes: NodeCache
    observer: Observer
    stores: StoreReader
    events: EventRecorder
    tls: ServerTls
    beats: BeatBook
    heartbeat: HeartbeatServer
    reconciler: Reconciler
    credentials: Callable[[], dict[str, Any]]
    """Returns what kopf logs in with, as it is now."""
    is_synced: bool = False

    def informers(self) -> dict[str, Informer[Any]]:
        """Return every watch of ours by the name of its task."""
        found = {f"pods-{number}": informer for number, informer in enumerate(self.pods.informers)}
        found.update({f"nodes-{number}": informer for number, informer in enumerate(self.nodes.informers)})
        return found


def make_identity(environment: Mapping[str, str]) -> str:
    """Return who we are in the lease. With POD_UID set a restarted container is its own successor and need not wait for the lease."""
    return f"{socket.gethostname()}_{environment.get('POD_UID') or secrets.token_hex(8)}"


def _store_reader(settings: OperatorSettings, wake: Callable[[str], None]) -> StoreReader:
    if not settings.manifest_stores:
        return NoStores()
    try:
        from rtj_operator.manifests.s3 import S3Reader  # boto3 is needed by those alone who let the operator read stores
    except ModuleNotFoundError as error:
        raise SettingsError(f"{variable_name('manifest_stores')}: needs rtj[operator,s3]: {error}") from error
    return S3Reader(settings.manifest_stores, wake, utc_now)


async def build(settings: OperatorSettings, crash: CrashPoints, identity: str) -> Operator:
    """Build the operator; no request is sent yet. Raises ConfigurationError, TlsError and SettingsError."""
    configuration = await load_configuration(settings.kubeconfig or None)
    metrics = Metrics(CollectorRegistry(), version("rtj"))
    client = KubeClient(configuration, metrics, user_agent=f"{keys.FIELD_MANAGER}/{version('rtj')}")
    queue, beats, ledger, refusals, node_refusals = WorkQueue(), BeatBook(utc_now()), Ledger(), Refusals(), NodeRefusals()

    def worker_pod(job: Job, worker: int) -> dict[str, Any]:
        endpoint = HeartbeatEndpoint(settings.heartbeat_url, settings.heartbeat_ca_file.read_text())
        hostnames = {name: node.labels.get(keys.HOSTNAME, name) for name, node in nodes.all().items()}
        return build_pod(job, worker, job.status, endpoint, hostnames)

    def trial_pod(job: Job) -> dict[str, Any]:
        endpoint = HeartbeatEndpoint(settings.heartbeat_url, settings.heartbeat_ca_file.read_text())
        return build_pod(job, 0, job.status.evolve(attempt=max(1, job.status.attempt), gang=max(1, job.status.gang)), endpoint)

    def breaker(job: Job) -> str:
        return breaker_obstacle(job.spec, nodes.all(), utc_now(), policy_of(settings)) if job.spec is not None else job.spec_error

    def wake(job_uid: str) -> None:
        job = jobs.by_uid(job_uid)
        if job is not None:
            queue.add(job.key)

    def wake_node(node: str) -> None:
        for job_uid in pods.jobs_on(node):
            wake(job_uid)

    def forget(job: Job) -> None:
        queue.forget(job.key)
        beats.forget_job(job.uid)
        ledger.forget(job.uid)
        facts.forget(job.uid)
        refusals.forget(job.uid)
        stores.forget(job.uid)

    jobs = JobCache(forget)
    pods = PodCache(client, settings.namespaces, wake)
    nodes = NodeCache(client, wake_node)
    facts = ApiFacts(client, trial_pod)
    lease = Lease(client, settings.lease_namespace, settings.lease_name, identity, duration_seconds=settings.lease_seconds)
    stores = _store_reader(settings, wake)
    observer = Observer(jobs, pods, nodes, beats, ledger, stores, facts, refusals, node_refusals, client.outage)
    events = EventRecorder(client, identity, metrics)
    writer = NodeWriter(client, metrics.node_cordoned, nodes.wrote, breaker)
    actor = Actor(client, worker_pod, writer, facts, refusals, node_refusals, crash, lease.is_held, utc_now, pods.created)
    decider = functools.partial(decide, settings=settings)
    reconciler = Reconciler(client, queue, jobs, observer, decider, actor, events, ledger, metrics, crash, lease.is_held, utc_now)
    desk = BeatDesk(jobs, pods, beats, ledger, queue, reply)
    heartbeat = HeartbeatServer(TokenReviews(client), (ApiError, ApiUnreachable), desk, desk.answer, metrics, utc_now)
    metrics.observe_live("rtj_queue_depth", "Jobs that are due and wait for a pass.", lambda: float(queue.due_count()))
    metrics.observe_live("rtj_queue_oldest_seconds", "How long the job that is due longest has waited.", queue.oldest_wait)
    metrics.observe_live("rtj_jobs", "Jobs that exist.", lambda: float(len(jobs)))
    metrics.observe_live("rtj_jobs_unfinished", "Jobs that exist and are not finished.", lambda: float(len(jobs.live_uids())))
    metrics.observe_live("rtj_nodes_cordoned", "Nodes whose cordon is ours.", lambda: float(nodes.count_annotated(keys.CORDONED_BY)))
    metrics.observe_live("rtj_lease_held", "1 while this process may act.", lambda: float(lease.is_held()))
    return Operator(
        settings=settings,
        client=client,
        metrics=metrics,
        lease=lease,
        jobs=jobs,
        queue=queue,
        pods=pods,
        nodes=nodes,
        observer=observer,
        stores=stores,
        events=events,
        tls=ServerTls(settings.heartbeat_cert_file, settings.heartbeat_key_file),
        beats=beats,
        heartbeat=heartbeat,
        reconciler=reconciler,
        credentials=functools.partial(read_credentials, configuration, settings.kubeconfig or None),
    )
