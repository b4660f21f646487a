"""Whose the run is while another job's fence stands in it: taken over, waited for, or refused (row 18b).

Two jobs that write one run would shut each other out again and again, so a run is entered only when its owner was seen to end, or when
nothing was written in it for long enough. An owner that writes meanwhile is alive, wherever it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from rtj_operator.api.v1alpha1 import ForeignFence, RunStatus
from rtj_operator.decide.observation import Observation, WorkerBeat
from rtj_operator.decide.policy import Policy
from trainer_runtime.contract.beat import Beat

UNKNOWN_OWNER: Final = "unknown"
"""Stands for the job of a fence that was made outside a cluster."""


class Claim(Enum):
    """What becomes of a run with another job's fence."""

    TAKE = "take"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Jobs:
    """What this operator knows of other jobs, by uid."""

    live: frozenset[str]
    ending: frozenset[str]
    ended: frozenset[str]

    @staticmethod
    def of(observation: Observation) -> Jobs:
        """Return what one observation holds of them."""
        return Jobs(observation.live_job_uids, observation.ending_job_uids, observation.ended_job_uids)


@dataclass(frozen=True)
class Judgement:
    """The outcome, and what of the fence the status remembers."""

    claim: Claim
    fence: ForeignFence
    why: str = ""
    """Why the run is refused."""


def fence_owner(beat: Beat) -> str | None:
    """Return the job uid on the highest fence that a holding worker sees; None without a fence, ``unknown`` for a fence without one."""
    return (beat.fence_job_uid or UNKNOWN_OWNER) if beat.highest_fence is not None else None


def seen_by(held: WorkerBeat) -> ForeignFence | None:
    """Return the highest fence as a holding worker sees it; None when there is none."""
    beat, owner = held.beat, fence_owner(held.beat)
    if beat.highest_fence is None or owner is None:
        return None
    quiet = beat.quiet_seconds
    changed_at = held.received_at - timedelta(seconds=quiet) if quiet is not None else None
    return ForeignFence(job_uid=owner, fence=beat.highest_fence, changed_at=changed_at)


def judge(run: RunStatus, seen: ForeignFence, quiet_seconds: float | None, jobs: Jobs, policy: Policy) -> Judgement:
    """Judge another job's fence. ``quiet_seconds``: for how long the worker that sees it knows the run unchanged; None: unknown."""
    known, owner = run.foreign_fence, seen.job_uid
    if any(start.fenced for start in run.starts):
        return Judgement(Claim.REFUSE, seen, "it came after this job's own fence")
    if run.taken_over_from not in (None, owner):
        return Judgement(Claim.REFUSE, seen, f"it came after this job took the run over from job uid {run.taken_over_from}")
    if owner in jobs.live:
        return Judgement(Claim.REFUSE, seen, "that job is alive")
    if owner in jobs.ended:
        return Judgement(Claim.TAKE, _remembered(known, seen))
    if owner in jobs.ending:
        return Judgement(Claim.WAIT, seen.evolve(changed_at=None))  # its last words are written yet
    if known is not None and was_written(known, seen, policy):
        return Judgement(Claim.REFUSE, seen, f"the run was written to while this job waited for it (fence {known.fence} then)")
    is_quiet = quiet_seconds is not None and quiet_seconds >= policy.run_quiet_seconds
    claim = Claim.TAKE if is_quiet or run.taken_over_from == owner else Claim.WAIT
    return Judgement(claim, _remembered(known, seen))


def was_written(known: ForeignFence, seen: ForeignFence, policy: Policy) -> bool:
    """Say whether the run changed since it was first looked at: a higher fence, or a change that is later than all clocks can explain."""
    if seen.fence > known.fence:
        return True
    if known.changed_at is None or seen.changed_at is None:
        return False
    return seen.changed_at > known.changed_at + timedelta(seconds=policy.run_tolerance_seconds)


def is_waiting(run: RunStatus) -> bool:
    """Say whether the job waits for another job's run."""
    is_own = any(start.fenced for start in run.starts)
    return run.foreign_fence is not None and run.taken_over_from != run.foreign_fence.job_uid and not is_own


def waits_in_words(run: RunStatus, run_name: str, jobs: Jobs, policy: Policy) -> str:
    """Return what the job waits for. Only while `is_waiting`."""
    seen = run.foreign_fence
    assert seen is not None
    text = f"fence {seen.fence} of job uid {seen.job_uid} stands in run {run_name}"
    if seen.job_uid in jobs.ending:
        return f"{text}; that job is gone, and the run is taken over when its last pod has ended"
    last = f", last written {seen.changed_at:%Y-%m-%dT%H:%M:%SZ}" if seen.changed_at is not None else ""
    return (
        f"{text}, and that job was not seen to end here; the run is taken over when nothing was written in it for "
        f"{policy.run_quiet_seconds:.0f} s{last}"
    )


def _remembered(known: ForeignFence | None, seen: ForeignFence) -> ForeignFence:
    """Keep the first time of a fence: later looks are compared with it, and what is repeated must not change the status."""
    if known is None or known.job_uid != seen.job_uid:
        return seen
    return known.evolve(fence=max(known.fence, seen.fence), changed_at=known.changed_at or seen.changed_at)
