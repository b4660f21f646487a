"""Long-running programs of the cluster: started detached, recorded before they run, ended by that record and never by name.

A record is the program's own line of /proc/self/stat. A pid alone may be given to a stranger after the program's end; pid and start time
together may not. The record is written by the new process itself before it becomes the program, so a starter that is killed at any
moment leaves nothing behind that `down` cannot find.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import is_reached, wait_until

RECORD_SUFFIX = ".proc"
_RECORD_THEN_EXEC = 'IFS= read -r stat < /proc/self/stat && echo "$stat" > "$0" && exec "$@"'


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same pid. `start_ticks` counts clock ticks since boot."""

    pid: int
    start_ticks: int
    state: str = "?"
    threads: int = 1

    @staticmethod
    def parse(stat: str) -> ProcessId:
        """Read a line of /proc/PID/stat. The command's name, in parentheses, may hold spaces and parentheses itself. Raises ValueError."""
        before, separator, after = stat.rpartition(")")
        fields = after.split()
        if not separator or len(fields) < 20:
            raise ValueError(f"not a line of /proc/PID/stat: {stat!r}")
        return ProcessId(int(before.split(" ", 1)[0]), int(fields[19]), fields[0], int(fields[17]))


def read_record(record: Path) -> ProcessId | None:
    """Return the process that a record names, or None if there is no complete record."""
    try:
        return ProcessId.parse(record.read_text())
    except (FileNotFoundError, ValueError):
        return None


def is_alive(process: ProcessId) -> bool:
    """Say whether this very process still runs. A zombie does not, unless it is the first of threads of which others still end: until the
    last one did, the process has its ports and files."""
    try:
        now = ProcessId.parse(Path(f"/proc/{process.pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return now.start_ticks == process.start_ticks and (now.state not in "ZX" or now.threads > 1)


def is_running(record: Path) -> bool:
    """Say whether the recorded process still runs."""
    process = read_record(record)
    return process is not None and is_alive(process)


def start(argv: Sequence[str], record: Path, log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Start a program in a session of its own with its output appended to `log`, and return once its record is there.

    The caller may end; the program goes on. Raises ClusterError if the program is missing or its record does not appear.
    """
    if shutil.which(argv[0]) is None:
        raise ClusterError(f"the program {argv[0]} is missing or not executable")
    record.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    with log.open("ab") as output:
        # setsid forks: the program is nobody's child here, so it may outlive this Python and leaves it no zombie.
        starter = ["setsid", "--fork", "/bin/sh", "-c", _RECORD_THEN_EXEC, str(record), *argv]
        subprocess.run(
            starter, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, check=True
        )
    wait_until(lambda: read_record(record) is not None, f"the record of {Path(argv[0]).name}", 10)


def send(record: Path, number: signal.Signals) -> bool:
    """Signal the recorded process; say whether it was there to be signalled."""
    process = read_record(record)
    if process is None or not is_alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def stop(records: Sequence[Path], seconds: float = 5) -> None:
    """End the recorded processes: SIGTERM to all, and SIGKILL to those that are still there after `seconds`. Forgets the records.

    Raises ClusterError if one survives SIGKILL for 10 s.
    """
    present = [record for record in records if send(record, signal.SIGTERM)]
    if not is_reached(lambda: not any(map(is_running, present)), seconds):
        kill(present)
    for record in records:
        record.unlink(missing_ok=True)


def kill(records: Sequence[Path]) -> None:
    """End the recorded processes at once (SIGKILL). Keeps the records. Raises ClusterError if one is still there after 10 s."""
    for record in records:
        send(record, signal.SIGKILL)
    for record in records:
        wait_until(functools.partial(has_ended, record), f"the end of the process in {record} after SIGKILL", 10)


def has_ended(record: Path) -> bool:
    """Say whether the recorded process runs no more."""
    return not is_running(record)


def find_naming(path: Path) -> list[tuple[int, str]]:
    """Return (pid, command line) of all processes but this one whose command line names `path`: to look, never to end them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(path) in command and int(entry.name) != os.getpid():
            found.append((int(entry.name), command))
    return found
