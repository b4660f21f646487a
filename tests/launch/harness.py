"""Runs the real rtj-run with real torchrun on small scripts; every wait has a deadline."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer_runtime.contract.assignment import Assignment
from trainer_runtime.contract.codec import dumps, loads
from trainer_runtime.contract.exit_report import TERMINATION_MESSAGE_LIMIT, ExitReport

SECONDS = 90.0
"""Deadline of one run; two imports of torch on a busy machine take a third of it."""

CHANNEL_SCRIPT = """
    import os, sys, time
    from trainer_runtime.channel.client import connect_from_environment
    from trainer_runtime.channel.messages import *
    from trainer_runtime.contract.beat import CheckpointRecord, Level, Phase
    from trainer_runtime.contract.exit_report import Outcome
    rank = int(os.environ["RANK"])
    client = connect_from_environment()
    client.send(Progress(rank, Phase.TRAIN, step=1))
"""
"""Beginning of a script that speaks the channel."""


@dataclass
class Running:
    """One rtj-run under way."""

    process: subprocess.Popen[bytes]
    folder: Path
    message_file: Path
    out: bytes = b""
    err: bytes = b""

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for its end; return the exit code."""
        try:
            self.out, self.err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"rtj-run did not end within {seconds:g} s:\n{self.err.decode()[-4000:]}") from None
        return self.process.returncode

    def wait_for_file(self, name: str) -> str:
        """Wait until a script has written ``name``; return what it holds."""
        path = self.folder / name
        until(lambda: path.exists() and path.read_text() != "", f"{name}; rtj-run's code is {self.process.poll()}")
        return path.read_text()

    @property
    def report(self) -> ExitReport:
        """The exit report in the termination message."""
        message = self.message_file.read_bytes()
        assert len(message) <= TERMINATION_MESSAGE_LIMIT
        return loads(ExitReport, message)


@dataclass
class Launcher:
    """Starts rtj-runs in one folder and ends those that are left."""

    folder: Path
    started: list[Running] = field(default_factory=list)
    scratch: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="rtj-test-"))
    """TMPDIR of the rtj-runs: short enough for a socket's path, and gone after the test even when rtj-run was killed."""

    def start(
        self,
        script: str,
        *options: str,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        assignment: Assignment | None = None,
        channel: bool = False,
        shell: str = "",
    ) -> Running:
        """Start rtj-run on ``script``, which finds ``folder`` as its working directory. ``shell``: what sh does with the command."""
        number = len(self.started)
        path = self.folder / f"train-{number}.py"
        path.write_text(textwrap.dedent(CHANNEL_SCRIPT if channel else "") + textwrap.dedent(script))
        message_file = self.folder / f"termination-{number}"
        message_file.write_text("what was there before" * 500)
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("RTJ_", "PET_"))}
        variables |= {
            "RTJ_TERMINATION_MESSAGE_FILE": str(message_file),
            "PYTHONPATH": os.getcwd(),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": self.scratch,
        }
        if assignment is not None:
            variables["RTJ_ASSIGNMENT"] = dumps(assignment)
        variables |= environ or {}
        command = [sys.executable, "-P", "-m", "trainer_runtime.launch.main", *options, str(path), *arguments]
        process = subprocess.Popen(
            ["sh", "-c", shell, "sh", *command] if shell else command,
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running = Running(process, self.folder, message_file)
        self.started.append(running)
        return running

    def end(self) -> None:
        """Kill what a failed test left, and remove what a killed rtj-run left."""
        for running in self.started:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGKILL)
                running.process.communicate()
        shutil.rmtree(self.scratch)


def until(holds: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait until ``holds()``; fail, naming ``what``, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{seconds:g} s without {what}"
        time.sleep(0.02)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    """Say whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
