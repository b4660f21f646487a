"""Launches the script for a try-out: the same command, with an environment in which it cannot touch the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_runtime.checkpoint.keeping.inventory import Committed, read_committed
from trainer_runtime.cli.doctor.diagnosis import Launch, Seen
from trainer_runtime.contract import environment
from trainer_runtime.contract.beat import Level
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import STEPS, is_run_name
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.settings import Replay
from trainer_runtime.store.base import Store

GRACE_SECONDS: Final = 3600.0
"""How long a try-out may take to save its last step: nobody is waiting to kill it."""
OUTPUT_LINES: Final = 30
"""Lines of a launch that failed that are shown."""
_OTHERS: Final = (
    environment.ASSIGNMENT,
    environment.HEARTBEAT_URL,
    environment.CHANNEL,
    environment.PERSISTER,
    environment.FENCE,
    environment.TORCHRUN_PID,
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
"""What belongs to another launch."""


@dataclass(frozen=True)
class Script:
    """What is launched, and by how many processes on this machine."""

    command: tuple[str, ...]
    """Path of the script and its arguments."""
    ranks: int
    timeout_seconds: float

    def run(self, replay: Replay) -> None:
        """Launch it once and wait. How it ended is seen in what it saved, not in its exit code, which torchrun changes.

        Raises ConfigurationError with the end of its output when it left no notes or took too long.
        """
        launcher = [sys.executable]
        if self.ranks > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}", "--max-restarts=0"]
        try:
            ended = subprocess.run(
                [*launcher, *self.command],
                env=_environment(os.environ, replay),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigurationError(f"the try-out up to step {replay.until} did not end within {self.timeout_seconds:.0f} s") from error
        if not list(Path(replay.notes).glob("*.jsonl")):
            output = "\n".join(f"  | {line}" for line in ended.stdout.splitlines()[-OUTPUT_LINES:])
            raise ConfigurationError(
                f"the try-out up to step {replay.until} ended with code {ended.returncode} before it was attached:\n{output}"
            )


def read_notes(directories: Sequence[Path]) -> Launch:
    """Return what the ranks noted, over one or more launches; a step that was made twice counts as the later one."""
    seen: dict[int, dict[int, Seen]] = {}
    for directory in directories:
        for path in sorted(directory.glob("*.jsonl")):
            steps = seen.setdefault(int(path.stem), {})
            for line in path.read_text().splitlines():
                noted = json.loads(line)
                steps[noted["step"]] = Seen(noted["batch"], noted["rng_before"], noted["rng_after"], noted["loss"])
    return seen


def find_last(store: Store, run: str) -> Committed | None:
    """Return the newest verified checkpoint of a try-out. ``run``: its name, unless the script uses another one; then the only one."""
    runs = [name for name in store.list("") if is_run_name(name) and store.list(f"{name}/{STEPS}")]
    name = run if run in runs else (runs[0] if len(runs) == 1 else None)
    if name is None:
        return None
    proven = [found for found in read_committed(store, name) if found.on_lineage and found.level is Level.VERIFIED]
    return proven[-1] if proven else None


def _environment(environ: Mapping[str, str], replay: Replay) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in _OTHERS and not name.startswith("TORCHELASTIC")}
    return {**kept, environment.REPLAY: dumps(replay), environment.GRACE_SECONDS: str(GRACE_SECONDS)}
