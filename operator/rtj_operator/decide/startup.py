"""Containers that cannot start: what the kubelet says of them, and how long that is taken for a bad moment instead of a bad image."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.decide.policy import Policy
from rtj_operator.decide.workers import Worker
from trainer_runtime.contract.exit_report import Outcome

CANNOT_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
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

    A waiting one has ``pull_seconds`` from its pod's scheduling, because registries have bad moments. One that ended counts at once when
    every other worker has started or failed too, so that "on all" and "on one" are told apart.
    """
    if worker.pod is None or not (waits_with_error(worker) or (worker.ended is not None and cannot_start(worker))):
        return None
    scheduled = worker.pod.condition("PodScheduled")
    since = (scheduled.at if scheduled is not None else None) or worker.pod.created_at
    if since is None:
        return None
    if worker.ended is not None and all(other.container_runs or other.has_ended or waits_with_error(other) for other in workers):
        return worker.ended.finished_at or since
    return since + timedelta(seconds=policy.pull_seconds)
