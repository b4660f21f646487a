"""Runs other programs to their end and turns a failure into one readable error. Programs that stay are started by `processes`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError

REMOVE_SECONDS = 300


def run(
    *argv: str,
    stdin: str | None = None,
    seconds: float = 120,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program and return its standard output. `environment` is added to the caller's.

    Raises ClusterError with the program's own words if it fails, is missing, or takes longer than `seconds`.
    """
    result = _execute(argv, stdin, seconds, directory, environment)
    if result.returncode != 0:
        words = (result.stderr or result.stdout).strip()
        raise ClusterError(f"`{' '.join(argv)}` ended with {result.returncode}: {words}")
    return result.stdout


def remove_tree(path: Path) -> None:
    """Remove a directory and all beneath, if it is there, without crossing into another file system. Several times faster than shutil's."""
    run("rm", "--recursive", "--force", "--one-file-system", str(path), seconds=REMOVE_SECONDS)


def succeeds(*argv: str, seconds: float = 120) -> bool:
    """Run a program whose failure is an answer, not an error; say whether it exited with 0."""
    return _execute(argv, None, seconds, None, None).returncode == 0


def _execute(
    argv: Sequence[str], stdin: str | None, seconds: float, directory: Path | None, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **(environment or {})}
    try:
        # With no input of its own a program gets an empty one; it must never wait for, or eat, the caller's.
        return subprocess.run(
            argv, input=stdin or "", capture_output=True, text=True, check=False, timeout=seconds, cwd=directory, env=whole
        )
    except FileNotFoundError:
        raise ClusterError(f"the program {argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"`{' '.join(argv)}` did not end within {seconds:g} s") from None
