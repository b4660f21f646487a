"""Programs are started detached, found again by their record, and never mistaken for a stranger with the same pid."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from e2e.cluster import processes
from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import ProcessId
from e2e.cluster.waiting import wait_until

STAT = "{} S 1 42 42 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 987654 1000 200"


@pytest.mark.parametrize("name", ["(sh)", "(a b)", "(odd) name)", "(tmux: server)"])
def test_a_stat_line_is_read_whatever_the_program_calls_itself(name: str) -> None:
    assert ProcessId.parse(STAT.format(f"77 {name}")) == ProcessId(77, 987654, "S")


@pytest.mark.parametrize("text", ["", "77", "77 (sh) S 1"])
def test_half_a_stat_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a line of /proc/PID/stat"):
        ProcessId.parse(text)


def test_this_process_is_alive_and_one_with_another_start_time_is_not() -> None:
    me = ProcessId.parse(Path("/proc/self/stat").read_text())
    assert processes.is_alive(me)
    assert not processes.is_alive(ProcessId(me.pid, me.start_ticks + 1))


def test_a_started_program_is_recorded_writes_its_log_and_is_ended_by_its_record(tmp_path: Path) -> None:
    record, log = tmp_path / "sleeper.proc", tmp_path / "logs" / "sleeper.log"
    processes.start(["sh", "-c", "echo $GREETING; exec sleep 600"], record, log, {"GREETING": "hello"})
    wait_until(lambda: log.read_text() == "hello\n", "the program's first words", 10)
    assert processes.is_running(record)
    processes.stop([record])
    assert not record.exists()


def test_a_program_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    record, log = tmp_path / "stubborn.proc", tmp_path / "stubborn.log"
    processes.start(["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 600; done"], record, log)
    wait_until(lambda: log.read_text() == "ready\n", "the program to ignore SIGTERM", 10)
    process = processes.read_record(record)
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    processes.stop([record], seconds=0.2)
    assert not processes.is_alive(process)
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def test_a_program_runs_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    """Its first thread is a zombie before the others have given back the program's ports."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[600]).start(); ctypes.CDLL(None).pthread_exit(None)"
    record = tmp_path / "headless.proc"
    processes.start([sys.executable, "-c", code], record, tmp_path / "headless.log")
    process = processes.read_record(record)
    assert process is not None
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: ProcessId.parse(stat.read_text()).state == "Z", "the end of the first thread", 10)
    assert processes.is_running(record)
    processes.stop([record], seconds=0.2)
    assert not processes.is_alive(process)


def test_signalling_a_record_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert not processes.send(tmp_path / "nobody.proc", signal.SIGTERM)


def test_a_program_that_is_not_installed_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no-such-program"):
        processes.start(["no-such-program"], tmp_path / "x.proc", tmp_path / "x.log")
