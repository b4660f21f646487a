"""From what was seen of each rank to the exit report: the pure part."""

from __future__ import annotations

import dataclasses
import json
import signal
from typing import Any

import pytest

from trainer_runtime.channel.messages import Ending, Raised
from trainer_runtime.contract.codec import loads
from trainer_runtime.contract.evidence import Evidence, Source, Strength
from trainer_runtime.contract.exit_report import TERMINATION_MESSAGE_LIMIT, DamagedCheckpoint, ExitReport, Outcome
from trainer_runtime.launch.exit_report import AttemptEnd, RankEnd, conclude

SECOND = 1_000_000_000
PEER_CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:7083"


def raised(rank: int, at: float, text: str, code: int | None = 1) -> RankEnd:
    return RankEnd(rank, died_at_ns=int((at + 0.5) * SECOND), exit_code=code, raised=Raised(rank, int(at * SECOND), text, step=7))


def died(rank: int, at: float, code: int) -> RankEnd:
    return RankEnd(rank, died_at_ns=int(at * SECOND), exit_code=code)


def said(rank: int, outcome: Outcome, at: float = 5.0, code: int | None = 0, message: str = "") -> RankEnd:
    ending = Ending(rank, outcome, message)
    return RankEnd(rank, died_at_ns=int(at * SECOND), exit_code=code, ending=ending, ending_at_ns=int(at * SECOND), has_joined=True)


def attempt(*ranks: RankEnd, **known: Any) -> AttemptEnd:
    end = AttemptEnd(attempt=3, worker_index=1, ranks=ranks, local_world_size=len(ranks), torchrun_code=1)
    return dataclasses.replace(end, **known)


FIRST = {
    "the earlier exception, not the lower rank": (attempt(raised(0, 9.0, "KeyError: 'x'"), raised(1, 8.0, "ValueError: bad")), 1, 1),
    "an exception before a death that it caused": (attempt(died(0, 9.0, -signal.SIGTERM), raised(1, 8.0, "ValueError: bad")), 1, 1),
    "a death before the exceptions of its peers": (attempt(raised(0, 8.01, PEER_CLOSED), died(1, 8.0, -signal.SIGSEGV)), 1, 139),
    "a death that was noted just after its victim raised": (attempt(raised(0, 7.99, PEER_CLOSED), died(1, 8.0, 13)), 1, 13),
    "a victim when its peer is not here": (attempt(raised(0, 8.0, PEER_CLOSED), died(1, 9.5, -signal.SIGTERM)), 0, 1),
    "an exception whose rank was killed in its teardown": (attempt(raised(0, 8.0, "ValueError: bad", code=-signal.SIGKILL)), 0, 1),
    "a rank that nobody saw die": (
        attempt(RankEnd(0, exit_code=2), died(1, 8.0, -signal.SIGTERM), launched_at_ns=7 * SECOND),
        0,
        2,
    ),
    "a code of its own": (attempt(died(0, 8.0, 42)), 0, 42),
}


@pytest.mark.parametrize(("end", "rank", "code"), FIRST.values(), ids=FIRST)
def test_the_first_failure_is(end: AttemptEnd, rank: int, code: int) -> None:
    report = conclude(end)
    assert report.outcome is Outcome.FAILED
    assert report.first_failure is not None
    assert (report.first_failure.rank, report.exit_code) == (rank, code)


OUTCOMES = {
    "all said done": (attempt(said(0, Outcome.DONE), said(1, Outcome.DONE), torchrun_code=0), Outcome.DONE, 0),
    "a watchdog abort in teardown after all said done": (
        attempt(said(0, Outcome.DONE, code=-signal.SIGABRT), said(1, Outcome.DONE, code=-signal.SIGTERM)),
        Outcome.DONE,
        0,
    ),
    "a script without the channel that ends with 0": (attempt(died(0, 8.0, 0), torchrun_code=0), Outcome.DONE, 0),
    "the same after SIGTERM": (attempt(died(0, 8.0, 0), torchrun_code=0, terminated_at_ns=7 * SECOND), Outcome.PREEMPTED_UNSAVED, 76),
    "the same after the directive": (attempt(died(0, 8.0, 0), torchrun_code=0, told_to_stop="directive stop"), Outcome.FAILED, 143),
    "done, then SIGTERM": (attempt(said(0, Outcome.DONE), terminated_at_ns=9 * SECOND), Outcome.DONE, 0),
    "all saved": (
        attempt(said(0, Outcome.PREEMPTED_SAVED), said(1, Outcome.PREEMPTED_SAVED), terminated_at_ns=SECOND),
        Outcome.PREEMPTED_SAVED,
        75,
    ),
    "all saved because another worker was to go": (attempt(said(0, Outcome.PREEMPTED_SAVED, code=75)), Outcome.PREEMPTED_SAVED, 75),
    "one saved for all and left, torchrun ended the other": (
        attempt(said(0, Outcome.PREEMPTED_SAVED, at=5.0, code=75), died(1, 5.2, -signal.SIGTERM)),
        Outcome.PREEMPTED_SAVED,
        75,
    ),
    "one could not save": (
        attempt(said(0, Outcome.PREEMPTED_SAVED), said(1, Outcome.PREEMPTED_UNSAVED), terminated_at_ns=SECOND),
        Outcome.PREEMPTED_UNSAVED,
        76,
    ),
    "the grace ran out": (
        attempt(died(0, 30.0, -signal.SIGTERM), terminated_at_ns=SECOND, stopped_at_ns=29 * SECOND),
        Outcome.PREEMPTED_UNSAVED,
        76,
    ),
    "a rank failed during the save": (attempt(raised(0, 8.0, "OSError: disk"), terminated_at_ns=SECOND), Outcome.PREEMPTED_UNSAVED, 76),
    "a rank failed before SIGTERM": (attempt(raised(0, 8.0, "OSError: disk"), terminated_at_ns=9 * SECOND), Outcome.FAILED, 1),
    "the directive ended healthy ranks": (
        attempt(died(0, 30.0, -signal.SIGTERM), told_to_stop="ended by the directive", stopped_at_ns=29 * SECOND),
        Outcome.FAILED,
        143,
    ),
    "refused": (attempt(said(0, Outcome.REFUSED, code=77), said(1, Outcome.REFUSED, code=77)), Outcome.REFUSED, 77),
    "store away": (attempt(said(0, Outcome.STORE_UNAVAILABLE, code=81)), Outcome.STORE_UNAVAILABLE, 81),
    "fenced, and the others fell over it": (attempt(said(0, Outcome.FENCED, code=79), raised(1, 6.0, PEER_CLOSED)), Outcome.FENCED, 79),
    "ranks so short that nobody saw them, and torchrun says that they ended well": (
        AttemptEnd(3, 1, local_world_size=2, torchrun_code=0, ranks=(died(1, 8.0, 0),)),
        Outcome.DONE,
        0,
    ),
    "a rank that nobody saw, while torchrun was killed": (
        AttemptEnd(3, 1, local_world_size=2, torchrun_code=-9, ranks=(died(1, 8.0, 0),)),
        Outcome.FAILED,
        137,
    ),
    "torchrun never started a rank": (
        AttemptEnd(3, 1, torchrun_code=1, torchrun_error="RendezvousConnectionError: no route"),
        Outcome.FAILED,
        1,
    ),
    "options that cannot be": (AttemptEnd(3, 1, torchrun_code=78, bad_options="--nnodes: differs"), Outcome.BAD_CONFIGURATION, 78),
}


@pytest.mark.parametrize(("end", "outcome", "code"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_outcome_is(end: AttemptEnd, outcome: Outcome, code: int) -> None:
    report = conclude(end)
    assert (report.outcome, report.exit_code) == (outcome, code)


AFTERWARDS = {
    "ended by itself": (attempt(said(0, Outcome.DONE), said(1, Outcome.DONE), torchrun_code=0), ""),
    "killed, its code unread": (
        attempt(said(0, Outcome.DONE, at=90.0, code=None), said(1, Outcome.DONE), overdue_at_ns=89 * SECOND),
        "ranks [0] still ran after training was done and were killed",
    ),
    "raised": (attempt(said(0, Outcome.DONE), said(1, Outcome.DONE, code=1)), "rank 1 ended with exit code 1 after training was done"),
    "aborted, and its peer with it": (
        attempt(said(0, Outcome.DONE, at=6.0, code=-signal.SIGTERM), said(1, Outcome.DONE, code=-signal.SIGABRT)),
        "rank 1 ended with SIGABRT after training was done",
    ),
}


@pytest.mark.parametrize(("end", "message"), AFTERWARDS.values(), ids=AFTERWARDS)
def test_a_report_of_done_says_how_what_came_after_it_ended(end: AttemptEnd, message: str) -> None:
    report = conclude(end)
    assert (report.outcome, report.message.partition(":")[0]) == (Outcome.DONE, message)


def test_a_report_says_which_checkpoint_is_damaged() -> None:
    damaged = DamagedCheckpoint(5, 1, "ab", "data/x", "digest")
    end = said(0, Outcome.DAMAGED, code=80, message="bytes differ")
    assert end.ending is not None
    end = dataclasses.replace(end, ending=dataclasses.replace(end.ending, checkpoint=damaged))
    report = conclude(attempt(end))
    assert (report.outcome, report.exit_code, report.checkpoint, report.message) == (Outcome.DAMAGED, 80, damaged, "bytes differ")


def test_a_failure_during_the_last_save_is_still_named() -> None:
    report = conclude(attempt(raised(0, 8.0, "OSError: disk"), terminated_at_ns=SECOND))
    assert report.first_failure is not None
    assert report.first_failure.exception == "OSError: disk"


def test_a_signal_death_is_evidence_of_its_own() -> None:
    report = conclude(attempt(died(2, 8.0, -signal.SIGABRT)))
    assert report.signal == signal.SIGABRT
    assert [(one.source, one.fault_class, one.rank) for one in report.evidence] == [(Source.EXIT, "nccl_timeout", 2)]


def test_the_strongest_evidence_comes_first_because_the_last_is_cut_first() -> None:
    evidence = [
        Evidence(at, Source.LOG, name, strength, name, attempt=3)
        for at, name, strength in [(1.0, "v", Strength.VICTIM), (2.0, "n", Strength.NODE), (3.0, "s", Strength.SUSPECT)]
    ]
    report = conclude(attempt(died(0, 8.0, 1), evidence=tuple(evidence)))
    assert [one.fault_class for one in report.evidence] == ["n", "s", "v"]


def test_a_termination_message_fits_and_can_be_read_whatever_was_said() -> None:
    evidence = tuple(Evidence(1.0, Source.LOG, "x", Strength.NODE, "\N{BEACH WITH UMBRELLA}" * 300, attempt=3) for _ in range(20))
    report = conclude(attempt(said(0, Outcome.REFUSED, code=77, message="\N{BEACH WITH UMBRELLA}" * 8000), evidence=evidence))
    message = report.termination_message()
    assert len(message) <= TERMINATION_MESSAGE_LIMIT
    assert loads(ExitReport, message).outcome is Outcome.REFUSED
    assert json.loads(message)["exit_code"] == 77
