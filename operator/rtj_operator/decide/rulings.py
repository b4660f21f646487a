"""The small functions behind the decision table: questions about one case, and what a row does about the job."""

from __future__ import annotations

from rtj_operator.api.reasons import ConditionReason
from rtj_operator.api.v1alpha1 import Ending, ForeignFence
from rtj_operator.decide import causes
from rtj_operator.decide.attribution import Tier
from rtj_operator.decide.case import Case, Quarantine, Ruling
from rtj_operator.decide.run_claim import UNKNOWN_OWNER, Claim, judge
from rtj_operator.decide.startup import cannot_start, kubelet_cannot_start, waits_with_error
from trainer_runtime.contract.exit_report import ExitReport, Outcome
from trainer_runtime.signals import fault_classes as classes

FROM_CHECKPOINT = "relaunch from the newest verified checkpoint"
RELAUNCHES_OF_DEVICE_FAULTS = 2


# questions


def is_own_fence(case: Case) -> bool:
    """Whether a worker was fenced, and no other job's uid stands on the fence."""
    if case.cause != classes.FENCED:
        return False
    report = _first(case, Outcome.FENCED)
    return report is None or report.fence_job_uid in (None, case.job.uid)  # a report without an owner was cut or is of an older runtime


def is_startup_error_on_all(case: Case) -> bool:
    """Whether image or configuration is wrong and no worker ever got further.

    What worked in an earlier attempt and fails in the kubelet's hands now is the registry's or the cluster's trouble, not the job's.
    """
    if case.cause not in causes.STARTUP or not all(cannot_start(worker) for worker in case.workers):
        return False
    return not (case.has_run_before and all(waits_with_error(worker) for worker in case.workers))


def is_startup_error_on_some(case: Case) -> bool:
    """Whether the kubelet cannot pull or start the root's container, while others run."""
    root = case.verdict.worker
    if case.cause == causes.NOT_STARTED:
        return root is not None and any(worker.container_runs for worker in case.workers)
    return case.cause in causes.STARTUP and root is not None and kubelet_cannot_start(case.workers[root])


def is_startup_trouble(case: Case) -> bool:
    """Whether containers do not come up and neither the job nor one machine can be blamed for it."""
    if case.cause == causes.NOT_STARTED:
        return True
    return case.cause in causes.STARTUP and any(kubelet_cannot_start(worker) for worker in case.workers)


def is_repeated_error(case: Case) -> bool:
    """Whether the program itself failed, and did so before in the same words at the same step."""
    return is_program_error(case) and case.happened_before


def is_program_error(case: Case) -> bool:
    """Whether the verdict blames the program or its configuration."""
    return case.tier in (Tier.DEATH, Tier.EXCEPTION) or case.cause in causes.STARTUP


def is_node_pressure(case: Case) -> bool:
    """Whether the kubelet evicted the pod because the node ran out."""
    return case.cause in (classes.EVICTED, classes.DISK_PRESSURE, classes.NODE_MEMORY_PRESSURE)


# what is done about the job


def relaunch(case: Case) -> Ruling:
    """Relaunch wherever there is room."""
    return Ruling(FROM_CHECKPOINT)


def relaunch_elsewhere(case: Case) -> Ruling:
    """Relaunch; the node part keeps the gang off the root's node."""
    return Ruling(f"{FROM_CHECKPOINT}, on other nodes")


def relaunch_with_backoff(case: Case) -> Ruling:
    """Relaunch after a wait that doubles with each unknown failure in a row."""
    return Ruling(f"{FROM_CHECKPOINT} after a wait", waits=True)


def wait_for_store(case: Case) -> Ruling:
    """Relaunch after a growing wait: nothing is charged, nothing is quarantined, because unreachable is not damaged."""
    return Ruling("wait for the store, then relaunch", waits=True)


def give_up_refused(case: Case) -> Ruling:
    """End the job with the difference that the strict check found."""
    report = _first(case, Outcome.REFUSED)
    message = (report.message if report is not None else "") or case.verdict.text
    return _fail(ConditionReason.RESUME_REFUSED, f"resume refused: {message}")


def quarantine(case: Case) -> Ruling:
    """Never choose that checkpoint again; the next attempt gets the next older verified one.

    Behind a source that a person named there is no older one: the run has no checkpoint of its own yet.
    """
    resumed = case.status.resume_point
    if resumed is not None and resumed.foreign:
        return _fail(ConditionReason.NO_USABLE_CHECKPOINT, f"spec.checkpoint.resumeFrom: {resumed.uri}: {case.verdict.text}")
    report = _first(case, Outcome.DAMAGED)
    damaged = report.checkpoint if report is not None else None
    if damaged is not None:
        reason = f"{damaged.file}: {damaged.reason}" if damaged.file else damaged.reason
        return Ruling("quarantine it, relaunch from the next older one", quarantine=Quarantine(damaged.step, damaged.attempt, reason))
    if resumed is None:
        return relaunch_with_backoff(case)
    named = Quarantine(resumed.step, resumed.attempt, case.verdict.text or "a worker could not use it")
    return Ruling("quarantine it, relaunch from the next older one", quarantine=named)


def go_above_fence(case: Case) -> Ruling:
    """Relaunch with an attempt above the highest fence; worker 0 then reports what the store holds."""
    report = _first(case, Outcome.FENCED)
    return Ruling("relaunch with an attempt above the fence", highest_fence=report.highest_fence if report is not None else None)


def take_over_or_fail(case: Case) -> Ruling:
    """Take over the run of a job that is gone, once and before this job wrote anything; wait while that is not known; otherwise end.

    How long the run has been quiet only a holding worker says, so after its end there is nothing but to look again by another attempt.
    """
    report = _first(case, Outcome.FENCED)
    owner = (report.fence_job_uid if report is not None else None) or UNKNOWN_OWNER
    highest = report.highest_fence if report is not None else None
    run = case.status.run
    judged = judge(run, ForeignFence(job_uid=owner, fence=highest or 0), None, case.jobs, case.policy)
    remembered = judged.fence if highest is not None else None
    if judged.claim is Claim.REFUSE:
        return _fail(ConditionReason.RUN_OWNED_BY_ANOTHER_JOB, owned_in_words(judged.fence, case.job.run, judged.why))
    if judged.claim is Claim.WAIT:
        text = f"look again whether job uid {owner} still writes in run {case.job.run}"
        return Ruling(text, waits=True, highest_fence=highest, foreign_fence=remembered)
    return Ruling(
        f"take over the run of job uid {owner}, which is gone",
        waits=run.taken_over_from == owner,  # it was ours to take before: what kept the worker from it may take time
        highest_fence=highest,
        taken_over_from=owner,
        foreign_fence=remembered,
    )


def owned_in_words(fence: ForeignFence, run: str, why: str) -> str:
    """Return why a run is another job's."""
    return f"fence {fence.fence} of job uid {fence.job_uid} stands in run {run}: {why}"


def give_up_startup(case: Case) -> Ruling:
    """End the job: image or configuration is wrong wherever it runs."""
    return _fail(ConditionReason.BAD_CONFIGURATION, f"no worker can start: {case.verdict.text}")


def give_up_user_error(case: Case) -> Ruling:
    """End the job: another try would end the same way."""
    at = f" at step {case.verdict.step}" if case.verdict.step is not None else ""
    if case.cause in causes.MEMORY:
        return _fail(ConditionReason.OUT_OF_MEMORY, f"{_memory_hint(case)} (twice{at}): {case.verdict.text}")
    return _fail(ConditionReason.USER_ERROR, f"the same error twice{at}: {case.verdict.text}")


def once_more_memory(case: Case) -> Ruling:
    """Relaunch once from the checkpoint (memory may have been fragmented), then end with a hint."""
    if case.times_before(case.cause) >= 1:
        return _fail(ConditionReason.OUT_OF_MEMORY, f"{_memory_hint(case)}: {case.verdict.text}")
    return Ruling(f"{FROM_CHECKPOINT}, once")


def twice_more(case: Case) -> Ruling:
    """Relaunch at most twice in a row, then end."""
    if case.times_before(case.cause) >= RELAUNCHES_OF_DEVICE_FAULTS:
        return _fail(
            ConditionReason.USER_ERROR, f"the program broke the device {RELAUNCHES_OF_DEVICE_FAULTS + 1} times: {case.verdict.text}"
        )
    return relaunch(case)


def _fail(reason: str, message: str) -> Ruling:
    return Ruling("give up", ending=Ending(succeeded=False, reason=reason, message=message))


def _memory_hint(case: Case) -> str:
    if case.cause == classes.HOST_OOM:
        return "out of memory: raise resources.limits.memory of the trainer container, or load less at once"
    return "out of GPU memory: a smaller batch, or more GPUs per model"


def _first(case: Case, outcome: Outcome) -> ExitReport | None:
    return next((report for report in case.reports if report.outcome is outcome), None)
