"""One worker of the present attempt: its pod, its beat and its node put side by side, and the plain questions about them.

Only what belongs to the present attempt is taken in: a beat of another attempt or another pod says nothing about this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rtj_operator.decide.observation import ContainerView, NodeView, Observation, PodView, WorkerBeat
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.exit_report import ExitCode, ExitReport, Outcome

TRAINING_PHASES: Final = frozenset({Phase.COMPILE, Phase.TRAIN, Phase.SAVE, Phase.EVAL, Phase.TEARDOWN, Phase.DONE})
"""Phases that a worker reaches only after its fence, its restore and its start."""
STARTING_PHASES: Final = frozenset({Phase.HOLD, Phase.START})
"""Phases before that. What a worker says of its step in them is not the run's: it has not restored anything yet."""
OOM_KILLED: Final = "OOMKilled"
_OUTCOME_OF_CODE: Final[dict[int, Outcome]] = {
    ExitCode.PREEMPTED_SAVED: Outcome.PREEMPTED_SAVED,
    ExitCode.PREEMPTED_UNSAVED: Outcome.PREEMPTED_UNSAVED,
    ExitCode.REFUSED: Outcome.REFUSED,
    ExitCode.BAD_CONFIGURATION: Outcome.BAD_CONFIGURATION,
    ExitCode.FENCED: Outcome.FENCED,
    ExitCode.DAMAGED: Outcome.DAMAGED,
    ExitCode.STORE_UNAVAILABLE: Outcome.STORE_UNAVAILABLE,
}


@dataclass(frozen=True)
class Worker:
    """One worker index of the present gang."""

    index: int
    pod: PodView | None
    beat: WorkerBeat | None
    node: NodeView | None
    was_seen: bool
    """Whether the gang's pods were all there once: a pod that is missing now was deleted."""
    reported_done: bool
    """Whether the status already holds that this worker is done."""
    report: ExitReport | None
    """Its last word about the present attempt: from the termination message, else from a beat."""

    @property
    def node_name(self) -> str | None:
        """Name of the node its pod is bound to."""
        return self.pod.node if self.pod is not None else None

    @property
    def scheduled_at(self) -> datetime | None:
        """When its pod was bound to a node; None before, or when the cluster does not say."""
        scheduled = self.pod.condition("PodScheduled") if self.pod is not None else None
        return scheduled.at if scheduled is not None and scheduled.status == "True" else None

    @property
    def ended(self) -> ContainerView | None:
        """The trainer container, if it ended."""
        container = self.pod.container if self.pod is not None else None
        return container if container is not None and container.state == "terminated" else None

    @property
    def is_missing(self) -> bool:
        """Whether its pod was there and is not any more."""
        return self.pod is None and self.was_seen

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it can run any more."""
        return self.is_missing or (self.pod is not None and (self.pod.terminal or self.ended is not None))

    @property
    def container_runs(self) -> bool:
        """Whether its trainer container runs now."""
        container = self.pod.container if self.pod is not None else None
        return container is not None and container.state == "running" and not (self.pod is not None and self.pod.terminal)

    @property
    def is_done(self) -> bool:
        """Whether its training loop finished and the final save is verified.

        Under plain torchrun a container that ends with 0 and without a report counts, unless it was killed for memory or its pod was
        being taken away: a program may well end with 0 on SIGTERM.
        """
        if self.reported_done or (self.beat is not None and self.beat.beat.phase is Phase.DONE):
            return True
        if self.report is not None:
            return self.report.outcome is Outcome.DONE
        ended = self.ended
        return ended is not None and ended.exit_code == 0 and ended.reason != OOM_KILLED and not self._ended_while_taken_away

    @property
    def _ended_while_taken_away(self) -> bool:
        ended, pod = self.ended, self.pod
        if ended is None or pod is None:
            return False
        disruption = pod.condition("DisruptionTarget")
        asked = [pod.deleting_since, disruption.at if disruption is not None and disruption.status == "True" else None]
        return any(at is not None and (ended.finished_at is None or at <= ended.finished_at) for at in asked)

    @property
    def has_failed(self) -> bool:
        """Whether it ended, or said that its ranks ended, without being done."""
        if self.is_done:
            return False
        return self.has_ended or (self.report is not None and self.report.outcome is not Outcome.DONE)

    @property
    def trains(self) -> bool:
        """Whether its beat says that it is past its start."""
        if self.beat is None:
            return False
        return self.beat.beat.phase in TRAINING_PHASES

    @property
    def is_starting(self) -> bool:
        """Whether its beat says that it is not past its start yet."""
        return self.beat is not None and self.beat.beat.phase in STARTING_PHASES

    @property
    def step(self) -> int | None:
        """The last step it reported."""
        return self.beat.beat.step if self.beat is not None else None


def workers_of(observation: Observation) -> tuple[Worker, ...]:
    """Return every worker index of the present gang, in order. Empty without a gang or a usable spec."""
    status = observation.job.status
    if observation.job.spec is None or status.gang == 0:
        return ()
    pods = {pod.worker: pod for pod in observation.pods if pod.gang == status.gang}
    was_seen = status.seen_gang == status.gang
    done = set(status.done_workers)
    return tuple(_worker(observation, index, pods.get(index), was_seen, index in done) for index in range(observation.job.spec.workers))


def highest_known_attempt(observation: Observation) -> int:
    """Return the highest attempt that pods or beats of this job speak of, whatever the status says."""
    gangs = [pod.gang for pod in observation.pods]
    beats = [beat.beat.attempt for beat in observation.beats.values()]
    return max([0, *gangs, *beats])


def _worker(observation: Observation, index: int, pod: PodView | None, was_seen: bool, reported_done: bool) -> Worker:
    attempt = observation.job.status.attempt
    beat = observation.beats.get(index)
    if beat is not None and (beat.beat.attempt != attempt or (pod is not None and beat.beat.pod_uid != pod.uid)):
        beat = None
    node = observation.nodes.get(pod.node) if pod is not None and pod.node is not None else None
    return Worker(index, pod, beat, node, was_seen, reported_done, _report(attempt, index, pod, beat))


def _report(attempt: int, index: int, pod: PodView | None, beat: WorkerBeat | None) -> ExitReport | None:
    container = pod.container if pod is not None else None
    ended = container if container is not None and container.state == "terminated" else None
    if ended is not None and ended.report is not None and ended.report.attempt == attempt:
        return ended.report
    if beat is not None and beat.beat.failure is not None and beat.beat.failure.attempt == attempt:
        return beat.beat.failure
    if ended is not None and ended.report is None and ended.exit_code in _OUTCOME_OF_CODE:
        return ExitReport(attempt, index, _OUTCOME_OF_CODE[ended.exit_code], ended.exit_code, message=ended.message)
    return None
