"""A worker that an older attempt left over must not join the rendezvous of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.launch.harness import SECONDS, Launcher, free_port
from trainer_runtime.launch.ranks import HOOK_DIRECTORY

JOIN = """
    import datetime, os, sys, torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ.get("JOIN_SECONDS", "60"))))
    value = torch.tensor([float(os.environ["VALUE"])])
    dist.all_reduce(value)
    print("joined, sum", value.item(), flush=True)
"""


def join(folder: Path, port: int, rank: int, fence: str, value: float, seconds: float) -> subprocess.Popen[str]:
    """Start a rank of two as a rank of rtj-run sees it, with the fence of its attempt."""
    script = folder / "join.py"
    script.write_text(textwrap.dedent(JOIN))
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("RTJ_", "PET_"))}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    environ |= {"RTJ_FENCE": fence, "RTJ_CHANNEL": "/nowhere/channel", "VALUE": str(value), "JOIN_SECONDS": str(seconds)}
    environ["PYTHONPATH"] = os.pathsep.join([HOOK_DIRECTORY, os.getcwd()])
    return subprocess.Popen(
        [sys.executable, str(script)], env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_stale_worker_cannot_join_and_the_right_one_can(tmp_path: Path) -> None:
    port = free_port()
    master = join(tmp_path, port, 0, "rtj/job-2/2", 1, seconds=60)
    stale = join(tmp_path, port, 1, "rtj/job-1/1", 100, seconds=6)
    try:
        stale_out, _none = stale.communicate(timeout=SECONDS)
        assert stale.returncode != 0
        assert "joined" not in stale_out
        assert master.poll() is None, master.communicate()[0]
        right = join(tmp_path, port, 1, "rtj/job-2/2", 10, seconds=60)
        right_out, _none = right.communicate(timeout=SECONDS)
        master_out, _none = master.communicate(timeout=SECONDS)
    finally:
        for process in (master, stale):
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert "joined, sum 11.0" in right_out
    assert "joined, sum 11.0" in master_out


def test_the_ranks_of_rtj_run_are_fenced_without_any_change_to_the_script(launcher: Launcher) -> None:
    run = launcher.start(
        """
        import os, torch.distributed as dist
        dist.init_process_group("gloo")
        raw = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        fence = os.environ["RTJ_FENCE"]
        print("fenced keys", sum(fence in key for key in raw.list_keys()), flush=True)
        dist.destroy_process_group()
        """
    )
    assert run.wait() == 0
    assert b"fenced keys" in run.out
    assert b"fenced keys 0\n" not in run.out


def test_a_process_that_is_no_rank_is_left_alone() -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RTJ_")}
    environ["PYTHONPATH"] = os.pathsep.join([HOOK_DIRECTORY, os.getcwd()])
    code = "import sys; sys.exit(any('_Finder' in type(finder).__name__ for finder in sys.meta_path))"
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False, timeout=SECONDS).returncode == 0
