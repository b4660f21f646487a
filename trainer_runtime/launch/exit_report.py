"""What one attempt of this worker ended of: pure, from what was seen of each rank to the exit report and the exit code.

Time decides who failed first, by the nanosecond at which a rank raised or died. What follows from our own or torchrun's ending of the ranks
is collateral and left out. It does not say whose fault it was across workers: `rtj_operator.decide.attribution` does.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final

from trainer_runtime.channel.messages import Ending, Raised
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.contract.exit_report import ExitCode, ExitReport, FirstFailure, Outcome, VerifiedCheckpoint
from trainer_runtime.signals.classify import classify_body
from trainer_runtime.signals.exit_codes import SIGNAL_BASE, classify_exit
from trainer_runtime.signals.log_line import take_apart

MAX_EXCEPTION_TEXT: Final = 300

VICTIM_NS: Final = 1_000_000_000
"""How much later the true first failure may have been noted than those that complain of it."""

OWN_REASONS: Final = {
    Outcome.REFUSED: ExitCode.REFUSED,
    Outcome.DAMAGED: ExitCode.DAMAGED,
    Outcome.STORE_UNAVAILABLE: ExitCode.STORE_UNAVAILABLE,
    Outcome.FENCED: ExitCode.FENCED,
    Outcome.BAD_CONFIGURATION: ExitCode.BAD_CONFIGURATION,
}
"""Ends that a rank chose by itself and that concern the whole attempt."""
GOOD_ENDS: Final = frozenset({Outcome.DONE, Outcome.PREEMPTED_SAVED})
"""After one of these a rank's exit code says nothing any more: its last save is verified."""
_ORDER: Final = (Strength.NODE, Strength.SUSPECT, Strength.VICTIM, Strength.APP, Strength.ENV, Strength.UNKNOWN, Strength.BENIGN)


@dataclass(frozen=True)
class RankEnd:
    """All that is known of how one rank ended."""

    rank: int
    died_at_ns: int | None = None
    exit_code: int | None = None
    """Negative for a signal; None when nobody could read it."""
    raised: Raised | None = None
    ending: Ending | None = None
    ending_at_ns: int | None = None
    error: str = ""
    """What torchelastic's error file says."""
    has_joined: bool = False
    """Whether it connected to the channel."""


@dataclass(frozen=True)
class AttemptEnd:
    """All that is known of how the attempt of this worker ended."""

    attempt: int
    worker_index: int
    ranks: tuple[RankEnd, ...] = ()
    local_world_size: int | None = None
    torchrun_code: int | None = None
    bad_options: str = ""
    torchrun_error: str = ""
    launched_at_ns: int | None = None
    stopped_at_ns: int | None = None
    """When rtj-run began to end the ranks; what came later is collateral."""
    terminated_at_ns: int | None = None
    """When SIGTERM came, if it did."""
    overdue_at_ns: int | None = None
    """When rtj-run killed what still ran although all ranks had said that they are done, if it did."""
    told_to_stop: str = ""
    """Why the operator's directive ended it, if it did."""
    node: str | None = None
    evidence: tuple[Evidence, ...] = ()
    verified: VerifiedCheckpoint | None = None
    steps: dict[int, int] = field(default_factory=dict)
    """Newest step by rank."""


@dataclass(frozen=True)
class _Failure:
    end: RankEnd
    at_ns: int
    exit_code: int


def conclude(end: AttemptEnd) -> ExitReport:
    """Return the report of this attempt."""
    if end.bad_options:
        return _report(end, Outcome.BAD_CONFIGURATION, ExitCode.BAD_CONFIGURATION, message=end.bad_options)
    failure = find_first_failure(end)
    own = _find_own_reason(end)
    if own is not None and not (failure is not None and failure.at_ns < (own.ending_at_ns or 0)):
        assert own.ending is not None
        return _report(end, own.ending.outcome, OWN_REASONS[own.ending.outcome], ending=own.ending, message=own.ending.message)
    if failure is not None and not (end.terminated_at_ns is not None and failure.at_ns >= end.terminated_at_ns):
        return _report(end, Outcome.FAILED, _shell_code(failure.exit_code), failure=failure)
    outcomes = {rank.ending.outcome for rank in end.ranks if rank.ending is not None}
    if is_all_well(end):
        if Outcome.PREEMPTED_SAVED in outcomes:
            return _report(end, Outcome.PREEMPTED_SAVED, ExitCode.PREEMPTED_SAVED)
        # A script that says nothing and ends with 0 when it is told to go may have been anywhere in its training.
        if outcomes or not (end.terminated_at_ns is not None or end.told_to_stop):
            return _report(end, Outcome.DONE, ExitCode.DONE, message=_describe_done(end))
    if end.terminated_at_ns is not None or Outcome.PREEMPTED_UNSAVED in outcomes:
        message = next((rank.ending.message for rank in end.ranks if rank.ending is not None and rank.ending.message), "")
        return _report(end, Outcome.PREEMPTED_UNSAVED, ExitCode.PREEMPTED_UNSAVED, failure=failure, message=message)
    if end.told_to_stop:
        return _report(end, Outcome.FAILED, SIGNAL_BASE + signal.SIGTERM, message=end.told_to_stop)
    message = end.torchrun_error or f"torchrun ended with code {end.torchrun_code}, and no rank says why"
    return _report(end, Outcome.FAILED, _shell_code(end.torchrun_code or 1), message=message)


def is_all_well(end: AttemptEnd) -> bool:
    """Say whether every local rank ended well. One that was ended because another one left is well if that one had saved for all.

    A rank that was over before anybody saw it ended well if torchrun says so, whose code is 0 only after 0 of each rank.
    """
    if end.local_world_size is None or (len(end.ranks) < end.local_world_size and end.torchrun_code != 0):
        return False
    is_saved = any(rank.ending is not None and rank.ending.outcome is Outcome.PREEMPTED_SAVED for rank in end.ranks)
    return all(ended_well(rank) or (is_saved and _is_collateral(rank, end)) for rank in end.ranks)


def ended_well(rank: RankEnd) -> bool:
    """Say whether one rank ended well: it said so, or it said nothing and its exit code is 0."""
    if rank.ending is not None:
        return rank.ending.outcome in GOOD_ENDS
    return rank.raised is None and rank.exit_code == 0


def has_failed(rank: RankEnd) -> bool:
    """Say whether a rank failed, as far as is known now."""
    if rank.ending is not None and rank.ending.outcome is not Outcome.FAILED:
        return False
    return rank.raised is not None or rank.exit_code not in (None, 0) or rank.ending is not None


def _is_collateral(rank: RankEnd, end: AttemptEnd) -> bool:
    """Say whether torchrun ended this rank because another one had left with a code."""
    if rank.ending is not None or rank.raised is not None or rank.exit_code not in (-signal.SIGTERM, -signal.SIGKILL):
        return False
    died_at = rank.died_at_ns or 0
    return any(other.exit_code not in (None, 0) and (other.died_at_ns or 0) < died_at for other in end.ranks if other is not rank)


def find_first_failure(end: AttemptEnd) -> _Failure | None:
    """Return the rank that failed first, with its time and code; None when none failed before we ended them."""
    failures = []
    for rank in end.ranks:
        if not has_failed(rank) or _is_collateral(rank, end):
            continue
        # A rank that nobody saw die ended within the first moments: before all that were seen.
        at_ns = rank.raised.at_ns if rank.raised is not None else rank.died_at_ns or rank.ending_at_ns or end.launched_at_ns or 0
        if end.stopped_at_ns is not None and at_ns >= end.stopped_at_ns:
            continue
        code = rank.exit_code
        is_collateral_code = rank.raised is not None and code in (-signal.SIGTERM, -signal.SIGKILL)
        failures.append(_Failure(rank, at_ns, 1 if is_collateral_code or not code else code))
    failures.sort(key=lambda failure: (failure.at_ns, failure.end.rank))
    if not failures:
        return None
    # A death is seen a little later than it happens, and its victims may raise in between: they name their peer as the cause.
    close = [failure for failure in failures if failure.at_ns <= failures[0].at_ns + VICTIM_NS]
    return next((failure for failure in close if not _blames_a_peer(failure)), failures[0])


def _blames_a_peer(failure: _Failure) -> bool:
    if failure.end.raised is not None:
        said = classify_body(take_apart(failure.end.raised.exception.partition("\n")[0]).body)
        return said is not None and said.strength is Strength.VICTIM
    return classify_exit(failure.exit_code).strength is Strength.VICTIM


def _find_own_reason(end: AttemptEnd) -> RankEnd | None:
    chosen = [rank for rank in end.ranks if rank.ending is not None and rank.ending.outcome in OWN_REASONS]
    return min(chosen, key=lambda rank: (rank.ending_at_ns or 0, rank.rank), default=None)


def _report(
    end: AttemptEnd,
    outcome: Outcome,
    exit_code: int,
    *,
    failure: _Failure | None = None,
    ending: Ending | None = None,
    message: str = "",
) -> ExitReport:
    evidence = end.evidence
    if failure is not None:
        evidence = (*evidence, *_exit_evidence(end, failure))
    return ExitReport(
        attempt=end.attempt,
        worker_index=end.worker_index,
        outcome=outcome,
        exit_code=int(exit_code),
        signal=-failure.exit_code if failure is not None and failure.exit_code < 0 else None,
        checkpoint=ending.checkpoint if ending is not None else None,
        first_failure=_first_failure(end, failure) if failure is not None else None,
        evidence=tuple(sorted(evidence, key=lambda one: (_ORDER.index(one.strength), one.at))),
        verified=end.verified,
        highest_fence=ending.highest_fence if ending is not None else None,
        fence_job_uid=ending.fence_job_uid if ending is not None else None,
        message=message,
    )


def _first_failure(end: AttemptEnd, failure: _Failure) -> FirstFailure:
    rank = failure.end
    step = rank.raised.step if rank.raised is not None and rank.raised.step is not None else end.steps.get(rank.rank)
    return FirstFailure(rank.rank, failure.at_ns, _describe(failure)[:MAX_EXCEPTION_TEXT], step)


def _describe(failure: _Failure) -> str:
    if failure.end.raised is not None:
        return failure.end.raised.exception
    if failure.end.ending is not None and failure.end.ending.message:
        return failure.end.ending.message
    return failure.end.error if failure.end.error and failure.exit_code >= 0 else _describe_code(failure.exit_code)


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"


def _exit_evidence(end: AttemptEnd, failure: _Failure) -> tuple[Evidence, ...]:
    meaning = classify_exit(failure.exit_code)
    if meaning.strength in (Strength.UNKNOWN, Strength.BENIGN):
        return ()
    return (
        Evidence(
            at=failure.at_ns / 1e9,
            source=Source.EXIT,
            fault_class=meaning.fault_class,
            strength=meaning.strength,
            text=f"rank {failure.end.rank} ended: {_describe(failure)}",
            attempt=end.attempt,
            worker=end.worker_index,
            node=end.node,
            rank=failure.end.rank,
        ),
    )


def _shell_code(code: int) -> int:
    return SIGNAL_BASE - code if code < 0 else code


def _describe_done(end: AttemptEnd) -> str:
    return "; ".join(part for part in (_describe_silence(end), _describe_afterwards(end)) if part)


def _describe_silence(end: AttemptEnd) -> str:
    silent = [rank.rank for rank in end.ranks if rank.has_joined and rank.ending is None]
    return f"ranks {silent} ended with exit code 0 without saying that their last save is verified" if silent else ""


def _describe_afterwards(end: AttemptEnd) -> str:
    """Say that what a script does after its run is closed did not end well: its success is the training's, and would hide that."""
    done = [rank for rank in end.ranks if rank.ending is not None and rank.ending.outcome is Outcome.DONE]
    killed = [rank.rank for rank in done if end.overdue_at_ns is not None and (rank.died_at_ns or end.overdue_at_ns) >= end.overdue_at_ns]
    failed = [rank for rank in done if rank.exit_code not in (None, 0)]
    if killed:
        what = f"ranks {killed} still ran after training was done and were killed"
    elif failed:
        first = min(failed, key=lambda rank: (rank.died_at_ns or 0, rank.rank))
        what = f"rank {first.rank} ended with {_describe_code(first.exit_code or 0)} after training was done"
    else:
        return ""
    return f"{what}: what the script does after its run is closed may be missing"
