"""One attempt in this process, with shorter limits than a person would wait for: ranks that do not end by themselves."""

from __future__ import annotations

import os
import queue
import textwrap
import time
from pathlib import Path

import pytest

from trainer_runtime.contract.exit_report import ExitReport, Outcome
from trainer_runtime.launch import stop
from trainer_runtime.launch.attempt import Attempt, Events, Orders, Terminated

BEGIN = """
import os, signal, sys, threading, time
from trainer_runtime.channel.client import connect_from_environment
from trainer_runtime.channel.messages import *
from trainer_runtime.contract.exit_report import Outcome
client = connect_from_environment()
rank = int(os.environ["RANK"])
"""


def run(folder: Path, script: str, events: Events | None = None, grace: float = 30.0) -> ExitReport:
    path = folder / "train.py"
    path.write_text(BEGIN + textwrap.dedent(script))
    orders = Orders(1, 0, f"test-{os.getpid()}", None, None, grace)
    environ = {**os.environ, "PYTHONPATH": os.getcwd(), "FOLDER": str(folder)}
    return Attempt(orders, events or queue.SimpleQueue(), None).run(["--nproc-per-node=2", str(path)], environ)


def test_a_rank_that_raised_and_hangs_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "RAISED_SECONDS", 0.5)
    report = run(
        tmp_path,
        """
        if rank == 1:
            threading.Thread(target=time.sleep, args=[600]).start()
            client.send(Raised(rank, time.time_ns(), "ValueError: bad batch", step=4))
            raise ValueError("bad batch")
        time.sleep(600)
        """,
    )
    assert report.first_failure is not None
    assert (report.first_failure.rank, report.first_failure.exception, report.first_failure.step) == (1, "ValueError: bad batch", 4)
    assert report.exit_code == 1


def test_a_teardown_that_hangs_after_done_is_done_and_the_kill_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stop, "TEARDOWN_SECONDS", 0.5)
    report = run(tmp_path, "client.send(Ending(rank, Outcome.DONE)); time.sleep(600)")
    assert (report.outcome, report.exit_code) == (Outcome.DONE, 0)
    assert report.message.startswith("ranks [0, 1] still ran after training was done and were killed")
    assert "is killed" in caplog.text


def test_work_after_done_is_given_longer_than_ranks_that_are_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "LEAVING_SECONDS", 0.0)
    report = run(tmp_path, "client.send(Ending(rank, Outcome.DONE)); time.sleep(2); open(os.environ['FOLDER'] + f'/export-{rank}', 'w')")
    assert (report.outcome, report.message) == (Outcome.DONE, "")
    assert sorted(path.name for path in tmp_path.glob("export-*")) == ["export-0", "export-1"]


def test_a_watchdog_abort_in_the_teardown_of_a_done_rank_is_done(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        """
        client.send(Ending(rank, Outcome.DONE))
        open(os.environ["FOLDER"] + f"/done-{rank}", "w").close()
        while not all(os.path.exists(os.environ["FOLDER"] + f"/done-{other}") for other in range(2)):
            time.sleep(0.01)
        os.abort()
        """,
    )
    assert (report.outcome, report.exit_code) == (Outcome.DONE, 0)


def test_sigterm_before_any_rank_joined_ends_them(tmp_path: Path) -> None:
    events: Events = queue.SimpleQueue()
    events.put(Terminated(time.time_ns()))
    report = run(tmp_path, "time.sleep(600)", events, grace=4.0)
    assert (report.outcome, report.exit_code) == (Outcome.PREEMPTED_UNSAVED, 76)


def test_ranks_without_an_operator_do_not_hold(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        """
        if rank == 0:
            client.send(Holding((), None, None))
            assert client.wait(Proceed, 20) == Proceed(None)
        client.send(Ending(rank, Outcome.DONE))
        """,
    )
    assert report.outcome is Outcome.DONE
