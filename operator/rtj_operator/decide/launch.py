"""The next attempt: whether the job may have one, and what it is. Attempt, gang and resume point are in status before a pod exists."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rtj_operator.api.reasons import ConditionReason
from rtj_operator.api.v1alpha1 import AttemptStart, ConditionStatus, Ending, JobSpec, JobStatus, Launch, ResumedFrom
from rtj_operator.build.assignment import attempt_settings
from rtj_operator.build.names import selector_text
from rtj_operator.decide import ledger
from rtj_operator.decide.draft import Draft
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.plan import CreatePod, CreateService, DeletePod
from rtj_operator.decide.resume_choice import choose_resume
from rtj_operator.decide.stopping import is_live, running_pods
from rtj_operator.decide.workers import Worker


@dataclass(frozen=True)
class Validity:
    """Condition Valid: whether the spec can be used now. Only True launches."""

    status: ConditionStatus
    reason: str
    message: str = ""


def validity(observation: Observation, status: JobStatus) -> Validity:
    """Judge the spec, the API server's word about the template, and who owns the run."""
    error = observation.spec_error or observation.job.spec_error
    check = observation.template_check
    if error:
        return Validity(ConditionStatus.FALSE, ConditionReason.INVALID_SPEC, error)
    if check is not None and check.outcome == "invalid":
        return Validity(ConditionStatus.FALSE, ConditionReason.INVALID_TEMPLATE, f"spec.template: {check.message}")
    owner = observation.run_owner
    if owner is not None and status.gang == 0:
        text = f"run {observation.job.run} is used by {owner.namespace}/{owner.name}; this job goes on when that one ends"
        return Validity(ConditionStatus.FALSE, ConditionReason.RUN_OWNED, text)
    if status.template_checked_generation is not None or (check is not None and check.outcome == "valid"):
        return Validity(ConditionStatus.TRUE, ConditionReason.ACCEPTED)
    if check is not None and check.outcome == "refused":
        return Validity(ConditionStatus.UNKNOWN, ConditionReason.POD_CREATE_FORBIDDEN, check.message)
    return Validity(ConditionStatus.UNKNOWN, ConditionReason.NOT_CHECKED, check.message if check is not None else "")


def with_template_check(status: JobStatus, observation: Observation) -> JobStatus:
    """Remember the generation whose template the API server accepted."""
    check, generation = observation.template_check, observation.job.generation
    if check is None or check.outcome != "valid" or status.template_checked_generation == generation:
        return status
    return status.evolve(template_checked_generation=generation)


def awaits_resume_point(observation: Observation, now: datetime) -> bool:
    """Say whether the next attempt may be launched now, so that its resume point is about to be chosen."""
    job = observation.job
    status, after = job.status, job.status.next_launch_after
    if job.spec is None or job.spec.suspend or job.is_finished or is_live(status) or running_pods(observation.pods):
        return False
    return (after is None or after <= now) and validity(observation, status).status is ConditionStatus.TRUE


def launch_attempt(draft: Draft, observation: Observation, spec: JobSpec, now: datetime) -> Draft:
    """Record the next attempt and create its gang; or end the job when it has checkpoints and none can be used."""
    status, job = draft.status, observation.job
    choice = choose_resume(status, spec.checkpoint.start_fresh, job.uid, spec.checkpoint.resume_from)
    if choice.problem:
        ending = Ending(succeeded=False, reason=ConditionReason.NO_USABLE_CHECKPOINT, message=choice.problem)
        return draft.change(ending=ending)
    attempt = max(status.attempt, status.run.fence or 0) + 1
    point = choice.point
    start = AttemptStart(attempt=attempt, step=point.step if point is not None and not point.foreign else None)
    source = spec.checkpoint.resume_from
    ignored_source = source.uri if source is not None and point is not None and not point.foreign else status.run.ignored_source
    draft = draft.change(
        attempt=attempt,
        gang=attempt,
        launch=Launch.GANG,
        attempt_started_at=now,
        resume_point=point,
        starts_fresh=choice.starts_fresh,
        attempt_settings=attempt_settings(spec),
        resumed_from=ResumedFrom(step=point.step, attempt=point.attempt) if point is not None else status.resumed_from,
        stopping_since=None,
        stop_reason=None,
        next_launch_after=None,
        done_workers=(),
        done_since=None,
        run=status.run.evolve(starts=ledger.with_start(status.run.starts, start), ignored_source=ignored_source),
        start_time=status.start_time or now,
        active_since=status.active_since or now,
        selector=selector_text(job.uid),
    )
    draft = draft.act(*(DeletePod(pod.name, pod.uid, 0) for pod in observation.pods if pod.terminal))
    return _create(draft, observation, range(spec.workers))


def keep_gang(draft: Draft, observation: Observation, workers: tuple[Worker, ...], stop_grace_seconds: int) -> Draft:
    """Create what is missing of a gang that was never whole, and end pods of other gangs."""
    status = draft.status
    strays = [pod for pod in observation.pods if pod.gang != status.gang]
    for pod in running_pods(strays):
        if pod.deleting_since is None:
            draft = draft.act(DeletePod(pod.name, pod.uid, stop_grace_seconds))
    draft = draft.act(*(DeletePod(pod.name, pod.uid, 0) for pod in strays if pod.terminal))
    missing = [worker.index for worker in workers if worker.pod is None and not worker.was_seen]
    return _create(draft, observation, missing) if missing or not observation.service_exists else draft


def _create(draft: Draft, observation: Observation, workers: range | list[int]) -> Draft:
    status = draft.status
    if not observation.service_exists:
        draft = draft.act(CreateService())
    return draft.act(*(CreatePod(worker, status.gang, status.attempt) for worker in workers))
