"""rtj-run without an operator: real torchrun, real ranks."""

from __future__ import annotations

import functools
import os
import re
import signal

import pytest

from tests.launch.harness import Launcher, is_running, until
from trainer_runtime.contract.evidence import Source, Strength
from trainer_runtime.contract.exit_report import Outcome

TWO = "--nproc-per-node=2"


def test_the_ranks_output_passes_through_unchanged(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os, sys
        rank = os.environ["RANK"]
        os.write(1, b"bytes \\xff\\x00 of " + rank.encode() + b"\\n")
        for line in range(2000):
            print(f"{rank}: line {line}")
        print(f"{rank}: to stderr", file=sys.stderr)
        os.write(1, f"{rank}: no end".encode())
        """,
        TWO,
        arguments=["--nnodes", "is the script's own"],
    )
    assert run.wait() == 0
    assert run.report.outcome is Outcome.DONE
    for rank in ("0", "1"):
        lines = re.findall(f"{rank}: line [0-9]+(?=\n)".encode(), run.out)  # one may follow what the other rank left without an end
        assert lines == [f"{rank}: line {number}".encode() for number in range(2000)]
        assert b"bytes \xff\x00 of " + rank.encode() in run.out
        assert f"{rank}: no end".encode() in run.out
        assert f"{rank}: to stderr".encode() in run.err


def test_the_rank_that_raised_is_named_and_not_those_that_fell_over_it(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import datetime, torch, torch.distributed as dist
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            raise ValueError("bad batch")
        dist.all_reduce(torch.ones(1))
        """,
        "--nproc-per-node=3",
    )
    assert run.wait() == 1
    report = run.report
    assert report.outcome is Outcome.FAILED
    assert report.first_failure is not None
    assert (report.first_failure.rank, report.first_failure.exception) == (1, "ValueError: bad batch")


def test_a_signal_death_gives_128_plus_the_signal(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os, signal, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(600)
        """,
        TWO,
    )
    assert run.wait() == 128 + signal.SIGSEGV
    report = run.report
    assert report.signal == signal.SIGSEGV
    assert report.first_failure is not None
    assert (report.first_failure.rank, report.first_failure.exception) == (1, "SIGSEGV")
    assert [(one.source, one.rank) for one in report.evidence] == [(Source.EXIT, 1)]


def test_a_broken_gpu_that_a_rank_prints_before_it_dies_is_evidence_against_the_machine(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            for _ in range(300):
                print("NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (double bit error) ECC Error", flush=True)
            os._exit(13)
        time.sleep(600)
        """,
        TWO,
        environ={"RTJ_NODE_NAME": "node-7"},
    )
    assert run.wait() == 13
    first = run.report.evidence[0]
    assert (first.fault_class, first.strength, first.rank, first.node) == ("gpu_ecc_uncorrectable", Strength.NODE, 1, "node-7")


SAVES = {
    "saved": ("PREEMPTED_SAVED", 75, Outcome.PREEMPTED_SAVED),
    "not saved": ("PREEMPTED_UNSAVED", 76, Outcome.PREEMPTED_UNSAVED),
}


@pytest.mark.parametrize(("said", "code", "outcome"), SAVES.values(), ids=SAVES)
def test_sigterm_asks_the_ranks_to_save_and_reports_whether_they_did(launcher: Launcher, said: str, code: int, outcome: Outcome) -> None:
    run = launcher.start(
        f"""
        open(f"ready-{{rank}}", "w").write("yes")
        order = client.wait(SaveAndStop, 60)
        assert 0 < order.deadline_seconds < 20
        client.send(Recorded(CheckpointRecord("run", 5, 1, "file:///s", "ab" * 32, Level.VERIFIED, tagged=True)))
        client.send(Ending(rank, Outcome.{said}, "stopped at step 5"))
        sys.exit({code})
        """,
        TWO,
        channel=True,
        environ={"RTJ_GRACE_SECONDS": "20"},
    )
    for rank in range(2):
        run.wait_for_file(f"ready-{rank}")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == code
    assert run.report.outcome is outcome
    assert run.report.verified is not None
    assert (run.report.verified.step, run.report.verified.tagged) == (5, True)


def test_sigterm_reaches_scripts_that_take_no_part_in_saving(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os, signal, sys, time
        def save(*_):
            open("saved", "w").write("by itself")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        open("ready", "w").write("yes")
        time.sleep(600)
        """,
        environ={"RTJ_GRACE_SECONDS": "20"},
    )
    run.wait_for_file("ready")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 76
    assert run.wait_for_file("saved") == "by itself"


def test_ranks_that_do_not_stop_in_time_are_ended_within_the_grace(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("ready", "w").write("yes")
        time.sleep(600)
        """,
        channel=True,
        environ={"RTJ_GRACE_SECONDS": "4"},
    )
    run.wait_for_file("ready")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 76


def test_an_option_that_differs_is_refused_by_name_with_exit_78(launcher: Launcher) -> None:
    run = launcher.start("raise SystemExit('must not run')", "--role=x", "--nnodes=2")
    assert run.wait() == 78
    assert run.report.outcome is Outcome.BAD_CONFIGURATION
    assert run.report.message == "--nnodes: '2' differs from '1', which rtj-run sets; leave the option out"


def test_an_option_that_torchrun_does_not_know_ends_with_exit_78(launcher: Launcher) -> None:
    run = launcher.start("raise SystemExit('must not run')", "--nonsense")
    assert run.wait() == 78
    assert b"--nonsense" in run.err


def test_an_assignment_that_cannot_be_read_is_named(launcher: Launcher) -> None:
    run = launcher.start("", environ={"RTJ_ASSIGNMENT": '{"version": "9.0"}'})
    assert run.wait() == 78
    assert run.report.message.startswith("RTJ_ASSIGNMENT: version: '9.0' is not supported")


def test_nothing_is_left_when_rtj_run_is_killed(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os, time
        rank = os.environ["RANK"]
        open(f"pid-{rank}", "w").write(f"{os.getpid()} {os.getppid()}")
        time.sleep(600)
        """,
        TWO,
    )
    pids = [int(pid) for rank in range(2) for pid in run.wait_for_file(f"pid-{rank}").split()]
    run.process.kill()
    run.wait()
    for pid in pids:
        until(functools.partial(has_ended, pid), f"the end of {pid}", seconds=10)


def has_ended(pid: int) -> bool:
    return not is_running(pid)


def test_nothing_that_a_rank_started_is_left_after_its_end(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import subprocess
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("pid", "w").write(str(child.pid))
        """,
    )
    assert run.wait() == 0
    assert not is_running(int(run.wait_for_file("pid")))


def test_standalone_starts_again_until_the_script_is_done(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os
        tries = int(open("tries").read()) if os.path.exists("tries") else 0
        open("tries", "w").write(str(tries + 1))
        if tries < 1:
            raise ValueError("not yet")
        """,
        "--standalone",
        "--restarts=2",
    )
    assert run.wait() == 0
    assert (run.report.attempt, run.report.outcome) == (2, Outcome.DONE)


def test_standalone_gives_up_after_the_restarts_it_has(launcher: Launcher) -> None:
    run = launcher.start("raise ValueError('never')", "--standalone", "--restarts", "1")
    assert run.wait() == 1
    assert run.report.attempt == 2


def test_a_file_of_the_users_with_the_name_of_a_standard_module_breaks_nothing(launcher: Launcher) -> None:
    (launcher.folder / "json.py").write_text("raise RuntimeError('the wrong json')\n")
    run = launcher.start("print('ran')")
    assert run.wait() == 0
    assert b"ran" in run.out


def test_the_images_own_sitecustomize_still_runs(launcher: Launcher) -> None:
    own = launcher.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    run = launcher.start(
        "import os; print('own sitecustomize', os.environ['OWN'])", environ={"PYTHONPATH": f"{own}{os.pathsep}{os.getcwd()}"}
    )
    assert run.wait() == 0
    assert b"own sitecustomize ran" in run.out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_runs_with_standard_streams_closed(launcher: Launcher, closed: str) -> None:
    run = launcher.start("print('said by the rank')", shell=f'exec "$@" {closed}')
    assert run.wait() == 0
    assert run.report.outcome is Outcome.DONE
    assert (b"said by the rank" in run.out) is (">&-" not in closed.split())
