"""Silence: when a node is lost, when the heartbeat channel is broken, and when silence says nothing at all.

Hangs (beats arrive, the step stands still) are not judged here: their limits come with the beats of a later version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rtj_operator.decide.observation import Observation, SendersView
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.workers import Worker

FIRST_BEAT_SECONDS = 120.0
"""How long a container may run before its first beat: plain torchrun sends none until the script has imported torch and attached."""


@dataclass(frozen=True)
class Silence:
    """What is known of one worker's silence."""

    worker: int
    since: datetime


def verdicts_resume_at(senders: SendersView, now: datetime, policy: Policy) -> datetime | None:
    """Return until when silence means nothing (operator start, API outage), or None when it means something again."""
    grace = timedelta(seconds=policy.start_grace_seconds)
    starts = [senders.listening_since + grace]
    if senders.api_outage_until is not None:
        starts.append(senders.api_outage_until + grace)
    latest = max(starts)
    return latest if latest > now else None


def is_mass_silence(senders: SendersView, policy: Policy) -> bool:
    """Say whether so many senders went silent together that the channel is at fault. Few senders never are a mass."""
    return senders.known >= policy.mass_silence_floor and senders.silent > policy.mass_silence_share * senders.known


def last_sign_of_life(worker: Worker, attempt_started_at: datetime | None) -> datetime | None:
    """Return the newest of: its beat, its node's lease or condition heartbeats, its pod's binding, its container's start.

    Without any, when its attempt started. The binding counts because pods and nodes are watched apart: a pod may be seen on a new node
    before the node itself is.
    """
    container = worker.pod.container if worker.pod is not None else None
    signs = [
        worker.beat.received_at if worker.beat is not None else None,
        worker.node.alive_at if worker.node is not None else None,
        worker.scheduled_at,
        container.started_at if container is not None else None,
    ]
    return max((sign for sign in signs if sign is not None), default=attempt_started_at)


def lost_at(worker: Worker, observation: Observation, now: datetime, policy: Policy) -> datetime | None:
    """Return when this worker's node is lost or will be if nothing changes; None while nothing speaks for it.

    Lost is: ``lostNodeSeconds`` since the last sign of life, and the Node is not Ready or gone.
    Without the right to read nodes, the pod's own Ready=False or its deletion by the taint manager stands in for the Node.
    """
    spec = observation.job.spec
    if spec is None or worker.pod is None or worker.pod.terminal or worker.pod.node is None or not _is_unreachable(worker, observation):
        return None
    life = last_sign_of_life(worker, observation.job.status.attempt_started_at)
    if life is None:
        return None
    at = life + timedelta(seconds=spec.recovery.lost_node_seconds)
    resume_at = verdicts_resume_at(observation.senders, now, policy)
    if is_mass_silence(observation.senders, policy):
        resume_at = max(filter(None, (resume_at, now + timedelta(seconds=policy.silent_seconds))))
    return at if resume_at is None else max(at, resume_at)


def _is_unreachable(worker: Worker, observation: Observation) -> bool:
    if observation.nodes:
        return worker.node is None or not worker.node.is_ready
    assert worker.pod is not None
    ready, disruption = worker.pod.condition("Ready"), worker.pod.condition("DisruptionTarget")
    evicted = disruption is not None and disruption.status == "True" and disruption.reason == "DeletionByTaintManager"
    return evicted or (worker.container_runs and ready is not None and ready.status != "True")


def silent_workers(workers: Iterable[Worker], senders: SendersView, policy: Policy, now: datetime) -> tuple[Silence, ...]:
    """Return the workers whose container runs on a Ready node (or one that cannot be read) and whose beats stopped or never came."""
    return tuple(Silence(worker.index, at) for worker in workers if (at := silent_at(worker, senders, policy)) is not None and at <= now)


def silent_at(worker: Worker, senders: SendersView, policy: Policy) -> datetime | None:
    """Return when this worker counts as silent if no beat comes; None while nothing is expected of it."""
    if not worker.container_runs or worker.is_done or (worker.node is not None and not worker.node.is_ready):
        return None
    if worker.beat is not None:
        return max(worker.beat.received_at, senders.listening_since) + timedelta(seconds=policy.silent_seconds)
    container = worker.pod.container if worker.pod is not None else None
    started = container.started_at if container is not None else None
    return max(started or senders.listening_since, senders.listening_since) + timedelta(seconds=FIRST_BEAT_SECONDS)
