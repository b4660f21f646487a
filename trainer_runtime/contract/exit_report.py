"""What a worker says when it ends: exit codes, outcomes and the report in the container's termination message.

Kubernetes keeps the *tail* of a longer termination message, which would break the JSON, so the report is cut to fit before it is written.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from trainer_runtime.contract.codec import CONTRACT_VERSION, dumps
from trainer_runtime.contract.evidence import Evidence

TERMINATION_MESSAGE_LIMIT: Final = 4096
"""Bytes; the kubelet's limit per container (with terminationMessagePolicy File)."""
_SHORTER: Final = (300, 100, 30)
"""Characters left of each text while the report does not fit; one that is not ASCII takes up to 12 bytes."""


class ExitCode(IntEnum):
    """Exit codes of rtj-run. Every other code is the first failed rank's own (128 + signal)."""

    DONE = 0
    PREEMPTED_SAVED = 75
    PREEMPTED_UNSAVED = 76
    REFUSED = 77
    BAD_CONFIGURATION = 78
    FENCED = 79
    DAMAGED = 80
    STORE_UNAVAILABLE = 81


class Outcome(str, Enum):
    """How a worker's attempt ended."""

    DONE = "done"
    PREEMPTED_SAVED = "preempted_saved"
    PREEMPTED_UNSAVED = "preempted_unsaved"
    REFUSED = "refused"
    DAMAGED = "damaged"
    STORE_UNAVAILABLE = "store_unavailable"
    FENCED = "fenced"
    BAD_CONFIGURATION = "bad_configuration"
    FAILED = "failed"


@dataclass(frozen=True)
class FirstFailure:
    """The first local rank that failed by itself; what followed from our own stop is left out."""

    rank: int
    at_ns: int
    """Unix time in nanoseconds."""
    exception: str
    """Type and message, cut to 300 characters; the signal's name for a rank that was killed."""
    step: int | None = None


@dataclass(frozen=True)
class DamagedCheckpoint:
    """The checkpoint that could not be used, and why. ``file`` is relative to its directory."""

    step: int
    attempt: int
    manifest_sha256: str
    file: str
    reason: str


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """The newest checkpoint of the report's own attempt that this worker knows to be verified in the job's store."""

    step: int
    uri: str
    manifest_sha256: str
    tagged: bool = False
    """Its manifest has tags: it is permanent, and no deletion of it is granted."""


@dataclass(frozen=True)
class ExitReport:
    """One worker's last word about one attempt."""

    attempt: int
    worker_index: int
    outcome: Outcome
    exit_code: int
    signal: int | None = None
    checkpoint: DamagedCheckpoint | None = None
    first_failure: FirstFailure | None = None
    evidence: tuple[Evidence, ...] = ()
    verified: VerifiedCheckpoint | None = None
    highest_fence: int | None = None
    """The highest fence seen in the run's directory; set with outcome ``fenced``."""
    fence_job_uid: str | None = None
    """Whose that fence is."""
    message: str = ""
    """For people: the difference report of a refusal, the inventory of a run that should have been empty."""
    version: str = CONTRACT_VERSION

    def termination_message(self) -> bytes:
        """Return the report's JSON in at most TERMINATION_MESSAGE_LIMIT bytes: the message is cut to 1,500 characters first, then
        evidence goes from the end, then the message, then the other texts for people are cut, and last ``verified`` goes."""
        report = self
        text = dumps(report).encode()
        if len(text) > TERMINATION_MESSAGE_LIMIT and len(report.message) > 1500:
            report = dataclasses.replace(report, message=report.message[:1500])
            text = dumps(report).encode()
        while len(text) > TERMINATION_MESSAGE_LIMIT and report.evidence:
            report = dataclasses.replace(report, evidence=report.evidence[:-1])
            text = dumps(report).encode()
        while len(text) > TERMINATION_MESSAGE_LIMIT and report.message:
            report = dataclasses.replace(report, message=report.message[: len(report.message) // 2])
            text = dumps(report).encode()
        for characters in _SHORTER:
            if len(text) > TERMINATION_MESSAGE_LIMIT:
                report = _shorten(report, characters)
                text = dumps(report).encode()
        if len(text) > TERMINATION_MESSAGE_LIMIT:
            text = dumps(dataclasses.replace(report, verified=None)).encode()
        return text


def _shorten(report: ExitReport, characters: int) -> ExitReport:
    checkpoint, failure = report.checkpoint, report.first_failure
    if checkpoint is not None:
        checkpoint = dataclasses.replace(checkpoint, file=checkpoint.file[:characters], reason=checkpoint.reason[:characters])
    if failure is not None:
        failure = dataclasses.replace(failure, exception=failure.exception[:characters])
    return dataclasses.replace(report, checkpoint=checkpoint, first_failure=failure)
