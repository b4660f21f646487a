"""Gangs that do not come up: what the kubelet says of a container that cannot start, how long that is taken for a bad moment instead of a
bad image, and when a start has taken too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.decide.policy import Policy
from rtj_operator.decide.workers import Worker
from trainer_runtime.contract.exit_report import Outcome

CANNOT_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
ASKS_NO_REGISTRY: Final = frozenset({"ErrImageNeverPull", "InvalidImageName"})
"""Those of CANNOT_PULL that no registry's bad moment explains."""
CANNOT_CREATE: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
"""Reasons of a waiting container that the kubelet tries again."""
NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a terminated container whose command the runtime could not start."""
NO_COMMAND: Final = (126, 127)
"""A shell's exit codes for a command that is not executable or not there."""


def waits_with_error(worker: Worker) -> bool:
    """Say whether the kubelet waits because the container cannot be pulled or created as things are."""
    container = worker.pod.container if worker.pod is not None else None
    return container is not None and container.state == "waiting" and container.reason in CANNOT_PULL | CANNOT_CREATE


def kubelet_cannot_start(worker: Worker) -> bool:
    """Say whether the container never ran, in the kubelet's own words."""
    ended = worker.ended
    return waits_with_error(worker) or (ended is not None and ended.reason in NEVER_RAN)


def cannot_start(worker: Worker) -> bool:
    """Say whether the worker never got as far as training: no container, no command, or a configuration that it refuses."""
    if worker.report is not None:
        return worker.report.outcome is Outcome.BAD_CONFIGURATION
    ended = worker.ended
    return kubelet_cannot_start(worker) or (ended is not None and ended.exit_code in NO_COMMAND)


def gives_up_at(worker: Worker, workers: Sequence[Worker], policy: Policy) -> datetime | None:
    """Return when a container that cannot start becomes a failure; None for any other worker.

    A waiting one has ``pull_seconds`` from its pod's scheduling, because registries have bad moments. One that ended, or whose image no
    registry was asked for, counts at once when every other worker has started or failed too, so that "on all" and "on one" are told apart.
    """
    if worker.pod is None or not (waits_with_error(worker) or (worker.ended is not None and cannot_start(worker))):
        return None
    since = worker.scheduled_at or worker.pod.created_at
    if since is None:
        return None
    is_final = worker.ended is not None or (worker.pod.container is not None and worker.pod.container.reason in ASKS_NO_REGISTRY)
    if is_final and all(other.container_runs or other.has_ended or waits_with_error(other) for other in workers):
        return (worker.ended.finished_at if worker.ended is not None else None) or since
    return since + timedelta(seconds=policy.pull_seconds)


def starts_late_at(worker: Worker, workers: Sequence[Worker], start_seconds: int) -> datetime | None:
    """Return when a container that has not begun to run becomes a failure: ``start_seconds`` after the last worker found its node.

    A volume that cannot be attached or a pod network that is broken says nothing but "ContainerCreating", for ever. None once the
    container ran, or while a worker waits for a node.
    """
    if worker.pod is None or _is_taken_away(worker) or worker.container_runs or worker.has_ended:
        return None
    return _start_ends_at(workers, start_seconds)


def gang_starts_late_at(workers: Sequence[Worker], start_seconds: int, now: datetime, policy: Policy) -> datetime | None:
    """Return when a gang whose containers all run becomes a failure if it does not begin to train: ``start_seconds`` after the last worker
    found its node. A mount, a download or a collective that hangs in the start ends no process and fails no container.

    None while that is not what the workers say: one trains, is done, ended or is being taken away, or none has told where it is. Silence is
    no proof: who spoke last of its start and is not heard any more may train by now, so the failure waits until one is heard again.
    """
    if any(not worker.container_runs or worker.trains or worker.has_failed or _is_taken_away(worker) for worker in workers):
        return None
    heard = [worker.beat.received_at for worker in workers if worker.beat is not None and worker.is_starting]
    at = _start_ends_at(workers, start_seconds)
    if at is None or not heard:
        return None
    silence = timedelta(seconds=policy.silent_seconds)
    return at if max(heard) + silence > now else max(at, now + silence)


def starts_late_in_words(workers: Sequence[Worker], start_seconds: int) -> str:
    """Return where the workers of a gang that starts late are."""
    where = Counter(worker.beat.beat.phase.value if worker.beat is not None else "not heard of" for worker in workers)
    counted = ", ".join(f"{count} {phase}" for phase, count in sorted(where.items()))
    return f"no worker trains {start_seconds} s after all had their nodes; of {len(workers)} workers: {counted}"


def _is_taken_away(worker: Worker) -> bool:
    return worker.pod is not None and worker.pod.deleting_since is not None


def _start_ends_at(workers: Sequence[Worker], start_seconds: int) -> datetime | None:
    placed = [worker.scheduled_at for worker in workers]
    known = [at for at in placed if at is not None]
    return max(known) + timedelta(seconds=start_seconds) if known and len(known) == len(placed) else None
