"""Builds the Go programs once per machine, with the ordinary `go build`, into the cache directory.

A build is keyed by its inputs and published by one rename: what is there is complete. Two callers never build the same thing at once.
Nothing built is ever committed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress
from e2e.cluster.settings import cache_directory
from e2e.cluster.tools import BUILD_FLAGS, Tool

DOWNLOAD_SECONDS = 1800
GO_SETTINGS = {"CGO_ENABLED": "0", "GOWORK": "off"}
"""No C compiler is needed, and one build cache serves all programs; a workspace around this repository must not change the result."""


@dataclass(frozen=True)
class Programs:
    """Where the programs of some tools lie."""

    directories: dict[str, Path]

    def path(self, program: str) -> Path:
        """Return the path of a program. Raises ClusterError if no built tool has it."""
        for directory in self.directories.values():
            if (directory / program).exists():
                return directory / program
        raise ClusterError(f"the program {program} is not among the built tools ({', '.join(sorted(self.directories))})")


def build(tools: Sequence[Tool]) -> Programs:
    """Return the tools' programs, building what the cache lacks: minutes for Kubernetes on a small machine, with its progress on stderr.

    Raises ClusterError if Go is missing or a build fails, with the compiler's last words.
    """
    return Programs({tool.name: _ensure_built(tool) for tool in tools})


def _ensure_built(tool: Tool) -> Path:
    target = cache_directory() / "bin" / f"{tool.name}-{tool.key(_go_version())}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with single_flight(target.parent / f".{tool.name}.lock", f"build of {tool.name}"):
        if not target.exists():
            _build_into(tool, target)
    return target


@contextmanager
def single_flight(lock: Path, what: str) -> Iterator[None]:
    """Hold `lock` for the block, and say so if somebody else has it. The kernel lets go of it when the holder ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Progress(f"waiting for another {what}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _go_version() -> str:
    if shutil.which("go") is None:
        raise ClusterError(
            "Go is missing: the cluster's programs are built from source. Install Go 1.26 or newer (https://go.dev/dl) on PATH"
        )
    return run("go", "version").strip()


def _build_into(tool: Tool, target: Path) -> None:
    with Progress(f"building {tool.name} ({', '.join(tool.packages)})") as progress:
        progress.update("downloading modules")
        listing = run(
            "go", "list", "-deps", *tool.packages.values(), directory=tool.directory, environment=GO_SETTINGS, seconds=DOWNLOAD_SECONDS
        )
        temporary = Path(tempfile.mkdtemp(prefix=f".{tool.name}-", dir=target.parent))
        try:
            _compile(tool, temporary, len(listing.splitlines()), progress)
            temporary.chmod(0o755)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _compile(tool: Tool, output: Path, total: int, progress: Progress) -> None:
    # With one program -o names the file, since a package's last word is not always the program's name.
    out = str(output / next(iter(tool.packages))) if len(tool.packages) == 1 else f"{output}/"
    command = ["go", "build", "-v", *BUILD_FLAGS, "-ldflags", tool.linker_flags(), "-o", out, *tool.packages.values()]
    compiler = subprocess.Popen(
        command,
        cwd=tool.directory,
        env={**os.environ, **GO_SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert compiler.stderr is not None
    lines: list[str] = []
    compiled = 0
    with compiler.stderr as stderr:
        for line in stderr:
            lines.append(line)
            # go build -v names each package it compiles; other lines are messages and have spaces.
            compiled += " " not in line.strip()
            progress.update(f"compiled {compiled} of at most {total} packages")
    if compiler.wait() != 0:
        raise ClusterError(f"`{' '.join(command)}` in {tool.directory} failed:\n{''.join(lines[-30:])}")
