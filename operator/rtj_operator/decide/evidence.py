"""What one observation holds as evidence about the present attempt: pods, exit reports, beats and Node conditions, each as one fact.

It does not weigh: `attribution` does. Facts about a pod that we stopped ourselves are marked by their time and dropped there.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from rtj_operator.decide import causes
from rtj_operator.decide.liveness import last_sign_of_life, lost_at
from rtj_operator.decide.node_conditions import bad_conditions
from rtj_operator.decide.observation import ContainerView, Observation, PodView
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.startup import CANNOT_PULL, waits_with_error
from rtj_operator.decide.workers import Worker
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.contract.exit_report import ExitReport, Outcome
from trainer_runtime.signals import fault_classes as classes
from trainer_runtime.signals.classify import classify_body
from trainer_runtime.signals.exit_codes import REASONS, classify_exit
from trainer_runtime.signals.python_errors import classify_exception

NODE_WENT_DOWN: Final = frozenset({"NodeShutdown", "Terminated", "Shutdown", "Preempting", "Preempted", "NodeLost"})
"""status.reason of a pod that its node's shutdown or a more important pod took away."""
END_OF_TIME: Final = 253_402_300_800.0
"""Unix time of the year 10000: a clock beyond it, or one that reads NaN, tells no time."""
MAX_COUNT: Final = 2**63 - 1
"""An API server stores no greater integer (format int64)."""
NOT_ADMITTED: Final = frozenset({"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity"})

_OUTCOME_CAUSES: Final = {
    Outcome.REFUSED: classes.RESUME_REFUSED,
    Outcome.BAD_CONFIGURATION: causes.BAD_CONFIGURATION,
    Outcome.FENCED: classes.FENCED,
    Outcome.DAMAGED: classes.CHECKPOINT_DAMAGED,
    Outcome.STORE_UNAVAILABLE: causes.STORE_UNAVAILABLE,
    Outcome.PREEMPTED_SAVED: classes.PREEMPTED,
    Outcome.PREEMPTED_UNSAVED: classes.PREEMPTED,
}


def collect(observation: Observation, workers: Iterable[Worker], now: datetime, policy: Policy) -> tuple[Evidence, ...]:
    """Return every fact of the present attempt, in the order of workers; the same fact twice is there once."""
    found: list[Evidence] = []
    for worker in workers:
        found += [dataclasses.replace(item, step=_count(worker.step if item.step is None else item.step)) for item in _of_reports(worker)]
        found += _of_pod(worker, observation, now)
        found += _of_node(worker, observation, now, policy)
    attempt = observation.job.status.attempt
    return tuple(dict.fromkeys(item for item in found if item.attempt == attempt))


def told_by(worker: Worker) -> list[Evidence]:
    """Return the facts in a worker's newest beat."""
    return _as_own_word(worker.beat.beat.evidence if worker.beat is not None else (), worker)


def _as_own_word(facts: Iterable[Evidence], worker: Worker) -> list[Evidence]:
    """Return a worker's facts as what they are: its own word about itself and its own node, at a time that exists."""
    heard = worker.beat.received_at if worker.beat is not None else worker.ended.finished_at if worker.ended is not None else None
    return [
        dataclasses.replace(
            item,
            at=item.at if 0.0 <= item.at < END_OF_TIME else heard.timestamp() if heard is not None else 0.0,
            worker=worker.index,
            node=worker.node_name,
            rank=_count(item.rank),
            step=_count(item.step),
        )
        for item in facts
    ]


def _count(value: int | None) -> int | None:
    """Return a number that the status can hold; None for what no rank and no step can be."""
    return value if value is not None and 0 <= value <= MAX_COUNT else None


def _of_reports(worker: Worker) -> list[Evidence]:
    """What the worker itself says: evidence in its report and its beats, the outcome, the first failure."""
    found = [*told_by(worker), *_as_own_word(worker.report.evidence if worker.report is not None else (), worker)]
    report = worker.report
    if report is None or report.outcome is Outcome.DONE:
        return found
    at = _report_time(worker, report)
    if report.outcome in _OUTCOME_CAUSES:
        found.append(_fact(worker, report.attempt, at, Source.EXIT, _OUTCOME_CAUSES[report.outcome], Strength.ENV, report.message))
    elif report.first_failure is not None:
        found.append(_first_failure(worker, report))
    elif not report.evidence:
        found.append(_of_exit(worker, report.attempt, at, report.exit_code, report.signal, report.message))
    return found


def _report_time(worker: Worker, report: ExitReport) -> float:
    if report.first_failure is not None and 0 <= report.first_failure.at_ns < END_OF_TIME * 1e9:
        return report.first_failure.at_ns / 1e9
    if worker.ended is not None and worker.ended.finished_at is not None:
        return worker.ended.finished_at.timestamp()
    return worker.beat.received_at.timestamp() if worker.beat is not None else 0.0


def _first_failure(worker: Worker, report: ExitReport) -> Evidence:
    failure = report.first_failure
    assert failure is not None
    at = _report_time(worker, report)
    number = report.signal or signal.Signals.__members__.get(failure.exception)
    if number is not None:
        item = _of_exit(worker, report.attempt, at, None, int(number), failure.exception)
    else:
        (name, _colon, words) = failure.exception.partition(": ")
        found = classify_body(failure.exception) or classify_exception(name, words)
        item = _fact(worker, report.attempt, at, Source.EXIT, found.fault_class, found.strength, failure.exception)
    return dataclasses.replace(item, rank=_count(failure.rank), step=_count(failure.step))


def _of_exit(worker: Worker, attempt: int, at: float, code: int | None, number: int | None, message: str) -> Evidence:
    meaning = classify_exit(code, number)
    text = f"exit code {code}: {message}" if code is not None else message
    return _fact(worker, attempt, at, Source.EXIT, meaning.fault_class, meaning.strength, text)


def _of_pod(worker: Worker, observation: Observation, now: datetime) -> list[Evidence]:
    """What the kubelet and the API server say about its pod."""
    attempt = observation.job.status.attempt
    if worker.pod is None:
        if not worker.was_seen or worker.is_done or observation.job.status.stopping_since is not None:
            return []
        return [_fact(worker, attempt, now.timestamp(), Source.POD, classes.PREEMPTED, Strength.ENV, "its pod was deleted")]
    found = _disruption(worker, worker.pod, observation, now)
    if worker.ended is not None and not worker.is_done:
        found += _ended(worker, worker.ended, attempt, now)
    elif worker.pod.phase == "Failed" and not found:
        found.append(_rejected(worker, worker.pod, attempt, now))
    elif waits_with_error(worker):
        found.append(_waiting(worker, attempt, now))
    return found


def _disruption(worker: Worker, pod: PodView, observation: Observation, now: datetime) -> list[Evidence]:
    attempt, status = observation.job.status.attempt, observation.job.status
    target = pod.condition("DisruptionTarget")
    if pod.reason == "Evicted":
        at = (target.at if target is not None else None) or now
        found = classify_body(pod.message)  # the node ran out, or the pod passed a limit of its own
        (fault_class, strength) = (found.fault_class, found.strength) if found is not None else (classes.EVICTED, Strength.ENV)
        return [_fact(worker, attempt, at.timestamp(), Source.POD, fault_class, strength, pod.message)]
    if target is not None and target.status == "True":
        by_taint = target.reason == "DeletionByTaintManager"
        if by_taint and (worker.node is None or not worker.node.is_ready):
            return []  # the node is lost or comes back: liveness says which
        at = target.at or pod.deleting_since or now
        return [_fact(worker, attempt, at.timestamp(), Source.POD, classes.PREEMPTED, Strength.ENV, f"{target.reason}: {target.message}")]
    if pod.reason in NODE_WENT_DOWN:
        return [_fact(worker, attempt, now.timestamp(), Source.POD, classes.PREEMPTED, Strength.ENV, f"{pod.reason}: {pod.message}")]
    ours = status.stopping_since is not None and (pod.deleting_since or now) > status.stopping_since - timedelta(seconds=1)
    if pod.deleting_since is not None and not ours:
        text = "its pod is being deleted by somebody"
        return [_fact(worker, attempt, pod.deleting_since.timestamp(), Source.POD, classes.PREEMPTED, Strength.ENV, text)]
    return []


def _ended(worker: Worker, container: ContainerView, attempt: int, now: datetime) -> list[Evidence]:
    at = (container.finished_at or now).timestamp()
    if container.exit_code == 255 and container.reason == "Unknown":
        return [_fact(worker, attempt, at, Source.POD, classes.PREEMPTED, Strength.ENV, "its node was restarted")]
    if container.reason in REASONS:
        meaning = REASONS[container.reason]
        text = f"{container.reason}, exit code {container.exit_code}: {container.message}"
        return [_fact(worker, attempt, at, Source.POD, meaning.fault_class, meaning.strength, text)]
    if worker.report is not None:
        return []
    return [_of_exit(worker, attempt, at, container.exit_code or 0, None, container.message)]


def _rejected(worker: Worker, pod: PodView, attempt: int, now: datetime) -> Evidence:
    text = f"{pod.reason}: {pod.message}"
    if pod.reason in NOT_ADMITTED:
        found = classify_body(pod.message)
        strength = found.strength if found is not None else Strength.SUSPECT
        return _fact(worker, attempt, now.timestamp(), Source.POD, classes.DEVICE_ADMISSION, strength, text)
    return _fact(worker, attempt, now.timestamp(), Source.POD, classes.UNKNOWN, Strength.UNKNOWN, text)


def _waiting(worker: Worker, attempt: int, now: datetime) -> Evidence:
    container = worker.pod.container if worker.pod is not None else None
    assert container is not None
    cause = classes.IMAGE_PULL if container.reason in CANNOT_PULL else classes.CONFIG_ERROR
    # ENV whatever the kubelet's words: whether it is the image or one node's network, only the other workers tell
    return _fact(worker, attempt, now.timestamp(), Source.POD, cause, Strength.ENV, f"{container.reason}: {container.message}")


def _of_node(worker: Worker, observation: Observation, now: datetime, policy: Policy) -> list[Evidence]:
    """What the Node object says: lost, or a condition that an agent set."""
    attempt = observation.job.status.attempt
    found: list[Evidence] = []
    lost = lost_at(worker, observation, now, policy)
    if lost is not None and lost <= now:
        life = last_sign_of_life(worker, observation.job.status.attempt_started_at) or now
        text = "its node is gone" if worker.node is None and observation.nodes else "its node is not Ready and gives no sign of life"
        found.append(_fact(worker, attempt, life.timestamp(), Source.NODE, classes.NODE_LOST, Strength.NODE, text))
    if worker.node is not None:
        for bad in bad_conditions(worker.node, policy.condition_rules):
            condition = bad.condition
            if condition.transitioned_at is not None:
                text = f"{condition.type}={condition.status} {condition.reason}: {condition.message}"
                at = condition.transitioned_at.timestamp()
                found.append(_fact(worker, attempt, at, Source.NODE, bad.fault_class, bad.strength, text))
    return found


def _fact(worker: Worker, attempt: int, at: float, source: Source, fault_class: str, strength: Strength, text: str) -> Evidence:
    return Evidence(at, source, fault_class, strength, text.strip(": "), attempt, worker=worker.index, node=worker.node_name)
