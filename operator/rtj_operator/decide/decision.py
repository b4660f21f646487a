"""`decide`: one observation in, one plan out. Everything the operator ever does about a job begins here.

It reads as the life of a job: learn what is new, then either watch the attempt that runs, or stop the one that must, or launch the next.
More than one of these may happen in one pass; the status that results is written once.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta

from rtj_operator.api.reasons import ConditionReason, EventReason
from rtj_operator.api.v1alpha1 import ConditionStatus, Ending, JobSpec, JobStatus, StopReason
from rtj_operator.decide import budgets, incident, launch, lifecycle, liveness, node_policy, stopping, watch
from rtj_operator.decide.draft import Draft
from rtj_operator.decide.events import transitions
from rtj_operator.decide.learn import hold_beat, learn
from rtj_operator.decide.observation import Observation
from rtj_operator.decide.plan import DeleteJob, DeletePod, Plan
from rtj_operator.decide.policy import Policy, policy_of
from rtj_operator.decide.rulings import owned_in_words
from rtj_operator.decide.run_claim import Claim, Jobs, judge, seen_by
from rtj_operator.decide.workers import Worker, workers_of
from rtj_operator.settings import OperatorSettings


def decide(observation: Observation, now: datetime, settings: OperatorSettings) -> Plan:
    """Return the next status, the actions that follow its write, the events, and when to look again.

    Deterministic, and at rest: deciding again on the written status without news changes nothing.
    """
    return decide_with(observation, now, policy_of(settings))


def decide_with(observation: Observation, now: datetime, policy: Policy) -> Plan:
    """`decide` with the policy spelled out."""
    job = observation.job
    if job.deletion_timestamp is not None or observation.caches_synced_at is None:
        return Plan(job.status)
    if job.is_finished:
        draft = _with_node_actions(_finished(Draft(job.status), observation, now, policy), observation, now, policy)
    elif job.spec is None or observation.spec_error:
        draft = Draft(job.status)
    else:
        draft = _advance(observation, job.spec, now, policy)
        if draft.status.phase.is_terminal:
            draft = draft.wake(_removal_at(job.spec, draft.status))
    return _plan(draft, observation, now, policy)


def _advance(observation: Observation, spec: JobSpec, now: datetime, policy: Policy) -> Draft:
    workers = workers_of(observation)
    status = learn(observation.job.status, observation, workers, now, policy)
    draft = Draft(launch.with_template_check(status, observation))
    if stopping.is_live(draft.status):
        draft = _watch(draft, observation, spec, workers, now, policy)
    elif draft.status.stop_reason in (StopReason.INCIDENT, StopReason.SUSPEND):
        draft = _follow(draft, observation, spec, workers, now, policy)
    if draft.status.stopping_since is not None:
        draft = _stop(draft, observation, spec, now, policy)
    elif not stopping.is_live(draft.status):
        draft = _begin(draft, observation, spec, now, policy)
    return _with_node_actions(draft, observation, now, policy)


def _watch(draft: Draft, observation: Observation, spec: JobSpec, workers: tuple[Worker, ...], now: datetime, policy: Policy) -> Draft:
    """The attempt runs: let it, or begin to stop it for the first reason that holds."""
    status = draft.status
    if _is_complete(status, workers):
        return _end(draft, now, Ending(succeeded=True, reason=ConditionReason.DONE, message="every worker is done"))
    if spec.suspend:
        return draft.change(stopping_since=now, stop_reason=StopReason.SUSPEND)
    deadline = lifecycle.deadline(status, spec)
    if deadline is not None and deadline <= now:
        return _end(draft, now, _deadline_exceeded(spec))
    times = watch.failure_times(observation, status, workers, now, policy)
    if any(at <= now for at in times):
        case = watch.case_of(observation, status, workers, now, policy)
        return draft.with_status(incident.record(status, case, observation, now, policy))
    (draft, claim) = _with_claim(draft, observation, workers, now, policy)
    if claim is Claim.REFUSE:
        return draft
    if claim is Claim.WAIT:
        draft = draft.wake(now + timedelta(seconds=policy.run_look_seconds))
    elif (superseding := watch.find_superseding(observation, draft.status, workers, now, policy)) is not None:
        return _supersede(draft, superseding, now, policy)
    draft = launch.keep_gang(draft, observation, workers, policy.stop_grace_seconds)
    silent_at = [liveness.silent_at(worker, observation.senders, policy) for worker in workers]
    return draft.wake(
        deadline,
        *times,
        *silent_at,
        watch.partly_scheduled_at(status, workers, policy),
        watch.unschedulable_at(status, workers, observation, policy),
        liveness.verdicts_resume_at(observation.senders, now, policy),
    )


def _follow(draft: Draft, observation: Observation, spec: JobSpec, workers: tuple[Worker, ...], now: datetime, policy: Policy) -> Draft:
    """The attempt is being stopped: better evidence may come in, workers may be done after all, time may run out."""
    status = draft.status
    if status.stop_reason is StopReason.SUSPEND:
        if _is_complete(status, workers):
            return _end(draft, now, Ending(succeeded=True, reason=ConditionReason.DONE, message="every worker is done"))
        return draft
    deadline = lifecycle.deadline(status, spec)
    if status.ending is None and deadline is not None and deadline <= now:
        return _end(draft, now, _deadline_exceeded(spec))
    case = watch.case_of(observation, status, workers, now, policy)
    return draft.with_status(incident.revised(status, case, observation, now, policy)).wake(deadline)


def _stop(draft: Draft, observation: Observation, spec: JobSpec, now: datetime, policy: Policy) -> Draft:
    """End the pods; when nothing runs any more, go to what comes next."""
    draft = stopping.stop_pods(draft, observation, spec, now, policy)
    if stopping.running_pods(observation.pods):
        return draft
    if draft.status.ending is not None:
        return draft.with_status(lifecycle.finished(draft.status, now))
    if draft.status.stop_reason is StopReason.SUSPEND or spec.suspend:
        return _suspend(draft, observation, now)
    return _launch_when_allowed(draft, observation, spec, now, policy)


def _begin(draft: Draft, observation: Observation, spec: JobSpec, now: datetime, policy: Policy) -> Draft:
    """No attempt is recorded: pods that are there all the same belong to a status that was lost, and end first."""
    draft = stopping.stop_pods(draft, observation, spec, now, policy)
    if spec.suspend:
        return draft.act(*(DeletePod(pod.name, pod.uid, 0) for pod in observation.pods if pod.terminal))
    if stopping.running_pods(observation.pods):
        return draft
    return _launch_when_allowed(draft, observation, spec, now, policy)


def _launch_when_allowed(draft: Draft, observation: Observation, spec: JobSpec, now: datetime, policy: Policy) -> Draft:
    after = draft.status.next_launch_after
    if after is not None and after > now:
        return draft.wake(after)
    if launch.validity(observation, draft.status).status is not ConditionStatus.TRUE:
        return draft.wake(now + timedelta(seconds=policy.retry_seconds))
    if observation.store.is_awaited:
        return draft.wake(now + timedelta(seconds=policy.retry_seconds))
    draft = launch.launch_attempt(draft, observation, spec, now)
    return draft.with_status(lifecycle.finished(draft.status, now)) if draft.status.ending is not None else draft


def _suspend(draft: Draft, observation: Observation, now: datetime) -> Draft:
    """Nothing runs: remove what is left, and call it suspended when no pod is."""
    if observation.pods:
        return draft.act(*(DeletePod(pod.name, pod.uid, 0) for pod in observation.pods))
    return draft.with_status(lifecycle.suspended(draft.status, now))


def _end(draft: Draft, now: datetime, ending: Ending) -> Draft:
    return draft.change(ending=ending, stop_reason=StopReason.END, stopping_since=draft.status.stopping_since or now)


def _supersede(draft: Draft, superseding: watch.Superseding, now: datetime, policy: Policy) -> Draft:
    """Stop the attempt without an incident: nothing failed, so nothing is charged."""
    retries = draft.status.retry_count + 1 if superseding.waits else draft.status.retry_count
    wait = budgets.backoff(retries, policy.backoff_seconds, policy.backoff_limit_seconds) if superseding.waits else timedelta(0)
    message = f"attempt {draft.status.attempt} is replaced ({superseding.cause}): {superseding.why}"
    if superseding.lifted is not None:
        message += f"; node {superseding.lifted} is not avoided any more"
    return draft.change(
        stopping_since=now,
        stop_reason=StopReason.SUPERSEDED,
        retry_count=retries,
        excluded_nodes=tuple(entry for entry in draft.status.excluded_nodes if entry.node != superseding.lifted),
        next_launch_after=now + wait + _jitter(draft.status, wait) if wait else None,
    ).tell(EventReason.RESTARTING, message)


def _jitter(status: JobStatus, wait: timedelta) -> timedelta:
    """Up to a quarter of the wait, the same for the same job and attempt: two half-scheduled jobs must not come back together."""
    return wait * (zlib.crc32(f"{status.selector}/{status.attempt}".encode()) / 2**32 / 4)


def _with_claim(
    draft: Draft, observation: Observation, workers: tuple[Worker, ...], now: datetime, policy: Policy
) -> tuple[Draft, Claim | None]:
    """Judge another job's fence that worker 0 sees before it makes its own (row 18b); None when there is none. Refused: the job ends."""
    held, run = hold_beat(workers), draft.status.run
    seen = seen_by(held) if held is not None else None
    if held is None or seen is None or seen.job_uid == observation.job.uid:
        return draft, None
    judged = judge(run, seen, held.beat.quiet_seconds, Jobs.of(observation), policy)
    if judged.claim is Claim.REFUSE:
        message = owned_in_words(judged.fence, observation.job.run, judged.why)
        ending = Ending(succeeded=False, reason=ConditionReason.RUN_OWNED_BY_ANOTHER_JOB, message=message)
        return _end(draft, now, ending), judged.claim
    taken_over_from = seen.job_uid if judged.claim is Claim.TAKE else run.taken_over_from
    return draft.change(run=run.evolve(foreign_fence=judged.fence, taken_over_from=taken_over_from)), judged.claim


def _is_complete(status: JobStatus, workers: tuple[Worker, ...]) -> bool:
    """Every worker is done, or worker 0 is and the others ended."""
    if not workers:
        return False
    return all(worker.is_done or (0 in status.done_workers and worker.has_ended) for worker in workers)


def _deadline_exceeded(spec: JobSpec) -> Ending:
    message = f"spec.activeDeadlineSeconds: {spec.active_deadline_seconds} s of running time are over"
    return Ending(succeeded=False, reason=ConditionReason.DEADLINE_EXCEEDED, message=message)


def _finished(draft: Draft, observation: Observation, now: datetime, policy: Policy) -> Draft:
    """Terminal is final: only what still runs by accident is ended, and the job removed when its time is over."""
    for pod in stopping.running_pods(observation.pods):
        draft = draft.act(DeletePod(pod.name, pod.uid, policy.stop_grace_seconds))
    at = _removal_at(observation.job.spec, draft.status)
    if at is None:
        return draft
    return draft.act(DeleteJob(observation.job.uid)) if at <= now else draft.wake(at)


def _removal_at(spec: JobSpec | None, status: JobStatus) -> datetime | None:
    """Return when a finished job is to be removed; None: never by us."""
    if spec is None or spec.ttl_seconds_after_finished is None or status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=spec.ttl_seconds_after_finished)


def _with_node_actions(draft: Draft, observation: Observation, now: datetime, policy: Policy) -> Draft:
    failure, spec = draft.status.last_failure, observation.job.spec
    if failure is not None:
        trusted = node_policy.is_trusted(failure.evidence, failure.worker, observation.job.namespace, policy)
        draft = draft.act(*node_policy.node_actions(observation, failure, incident.wish_of(failure), trusted, now, policy))
    # last, because they are every job's: a Node that refuses to be written must keep none from what is its own
    return draft.act(*node_policy.releases(spec, observation, now, policy)) if spec is not None else draft


def _plan(draft: Draft, observation: Observation, now: datetime, policy: Policy) -> Plan:
    before = observation.job.status
    status = lifecycle.described(draft.status, observation, now, policy)
    return Plan(
        status=status,
        actions=draft.actions,
        events=(*transitions(before, status), *draft.events),
        look_again_at=draft.next_wake(now),
        progress_only=status != before and status == before.evolve(progress=status.progress),
    )
