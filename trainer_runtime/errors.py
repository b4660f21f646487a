"""The runtime's errors. A refusal says what differs, where, and the one word that overrides it.

RuntimeProblem
├── ConfigurationError        a keyword, variable or store that cannot be used           exit 78
├── Refused                   a strict resume differs, or a run that should be empty     exit 77
├── CheckpointDamaged         bytes that are not what the manifest says, or missing      exit 80
├── StoreUnavailable          the store cannot be reached, or is not the one we know     exit 81
│   └── CommitUndecided       a commit was sent, and nobody can say whether it counts
├── Fenced                    a newer attempt owns the run                               exit 79
├── SaveFailed                this save was abandoned; training goes on
└── ExchangeTimeout           another rank did not answer in time
"""

from __future__ import annotations

from trainer_runtime.contract.exit_report import DamagedCheckpoint


class RuntimeProblem(Exception):
    """Base of every error that the runtime raises for a reason of its own."""


class ConfigurationError(RuntimeProblem, ValueError):
    """A setting that cannot be used. The message names the keyword or variable and the allowed values."""


class Refused(RuntimeProblem):
    """The resume would not be the same run. The message holds every difference, each with the word that allows it."""


class CheckpointDamaged(RuntimeProblem):
    """A committed checkpoint whose bytes are not what its manifest says. ``checkpoint`` names it for the exit report."""

    def __init__(self, message: str, checkpoint: DamagedCheckpoint) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class StoreUnavailable(RuntimeProblem):
    """The store does not answer, cannot be written, is not shared, or is not the store that this run began in."""


class CommitUndecided(StoreUnavailable):
    """A commit was sent, no answer came, and it may yet happen. What it would commit must stay where it is."""


class Fenced(RuntimeProblem):
    """A newer attempt owns the run: this one must not write another byte."""

    def __init__(self, message: str, highest_fence: int, fence_job_uid: str | None) -> None:
        super().__init__(message)
        self.highest_fence = highest_fence
        self.fence_job_uid = fence_job_uid


class SaveFailed(RuntimeProblem):
    """One save was abandoned. What was verified before it stays."""


class ExchangeTimeout(RuntimeProblem, TimeoutError):
    """A wait for another rank ended. The message names what was waited for."""
