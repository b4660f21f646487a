"""One failure as the decision table sees it, and what a row of the table answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rtj_operator.api.v1alpha1 import Ending, ForeignFence, Job, JobSpec, JobStatus
from rtj_operator.decide import budgets
from rtj_operator.decide.attribution import Tier, Verdict
from rtj_operator.decide.policy import Policy
from rtj_operator.decide.run_claim import Jobs
from rtj_operator.decide.workers import Worker
from trainer_runtime.contract.exit_report import ExitReport


@dataclass(frozen=True)
class Case:
    """Everything a row may look at."""

    job: Job
    spec: JobSpec
    verdict: Verdict
    workers: tuple[Worker, ...]
    jobs: Jobs
    policy: Policy
    is_remembered: bool = False
    """Whether only the status still holds the deciding fact: what it means was judged while the worker that told it was there."""

    @property
    def status(self) -> JobStatus:
        """The status before this incident."""
        return self.job.status

    @property
    def cause(self) -> str:
        """The verdict's fault class."""
        return self.verdict.cause

    @property
    def tier(self) -> Tier:
        """The verdict's tier."""
        return self.verdict.tier

    @property
    def reports(self) -> tuple[ExitReport, ...]:
        """The workers' last words about this attempt, in the order of workers."""
        return tuple(worker.report for worker in self.workers if worker.report is not None)

    @property
    def setbacks(self) -> int:
        """How many earlier failures of the program, hangs and unknown ones there were since the newest checkpoint was verified."""
        present = self.status.last_failure
        is_counted = present is not None and present.attempt == self.status.attempt and present.charge in budgets.WITHOUT_PROGRESS
        return max(0, self.status.no_progress_count - is_counted)

    @property
    def happened_before(self) -> bool:
        """Whether an earlier attempt failed with the same fingerprint at the same step.

        Where no step is known, only while no new checkpoint was verified since: with progress between, the places were two.
        """
        verdict, attempt = self.verdict, self.status.attempt
        if verdict.fingerprint is None or (verdict.step is None and self.setbacks == 0):
            return False
        return any(
            (failure.fingerprint, failure.step) == (verdict.fingerprint, verdict.step) and failure.attempt < attempt
            for failure in self.status.failures
        )

    def times_before(self, cause: str) -> int:
        """Return how many of the newest earlier incidents had that cause, in a row and without progress since.

        Only for causes that are charged to the program: those are what `setbacks` counts.
        """
        earlier = [failure for failure in self.status.failures if failure.attempt < self.status.attempt]
        in_a_row = next((place for place, failure in enumerate(earlier) if failure.cause != cause), len(earlier))
        return min(in_a_row, self.setbacks)

    @property
    def has_run_before(self) -> bool:
        """Whether an earlier attempt of this job got as far as its fence: its image and configuration work."""
        return any(start.fenced and start.attempt < self.status.attempt for start in self.status.run.starts)


class NodeWish(str, Enum):
    """What a row wants done about the root's node; `node_policy` bounds it."""

    NOTHING = "nothing"
    EXCLUDE = "exclude"
    STRIKE = "strike"
    """Exclude it, and record a strike on the Node."""
    CORDON = "cordon"
    """Exclude and cordon it; a strike where somebody else cordoned it already."""


@dataclass(frozen=True)
class Quarantine:
    """A checkpoint that must not be chosen again."""

    step: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Ruling:
    """What a row decides about one case. The default is: relaunch at once, from the newest verified checkpoint."""

    action: str
    """For people: what is done about the job."""
    ending: Ending | None = None
    """Set: the job is given up."""
    waits: bool = False
    """Whether the relaunch waits with a growing backoff and is counted as a retry."""
    quarantine: Quarantine | None = None
    highest_fence: int | None = None
    """The next attempt must be above it."""
    taken_over_from: str | None = None
    """Uid of the dead job whose run this one takes over."""
    foreign_fence: ForeignFence | None = None
    """Another job's fence, to be remembered."""
