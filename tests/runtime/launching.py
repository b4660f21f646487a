"""Starts real training processes for the tests of this folder: plain Python or torchrun, with nothing of the caller's RTJ_ environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainer_runtime.contract.environment import RESERVED_NAMES, RESERVED_PREFIXES

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCH_SECONDS = 400


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without what torchrun and rtj own, one thread per process, and ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*RESERVED_PREFIXES, "TORCHELASTIC"))}
    for name in RESERVED_NAMES:
        kept.pop(name, None)
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **more}


def run_script(script: Path, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in one process and return how it ended."""
    return _run([sys.executable, str(script), *arguments], cwd, environment)


def run_ranks(ranks: int, script: Path, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script under stock torchrun with ``ranks`` processes and return how torchrun ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"]
    return _run([*command, str(script), *arguments], cwd, environment)


def _run(command: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (cwd / "store").mkdir(exist_ok=True)  # the one that most scripts name; nobody makes it for them
    return subprocess.run(
        command, cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True, timeout=LAUNCH_SECONDS, check=False
    )
