"""Names of the files in a run's directory. The format itself is described in docs/checkpoint-format.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

STEPS: Final = "steps"
TMP: Final = "tmp"
FENCES: Final = "fences"
FROZEN: Final = "frozen"
SNAPSHOTS: Final = "snapshots"
TRASH: Final = "trash"
ATTEMPTS: Final = "attempts"
"""On an object store, where nothing can be renamed: the ranks' files of a save, before and after its commit."""
PROBE: Final = "probe-"
"""Beginning of the name, in `tmp/`, of the file by which a start finds out whether the store is shared."""
MANIFEST: Final = "manifest.json"
VERIFIED: Final = "verified.json"
RUN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_STEP_DIRECTORY: Final = re.compile(r"(\d{10})-(\d{8})")
_FENCE: Final = re.compile(r"\d{8}")


@dataclass(frozen=True, order=True)
class StepName:
    """(step, attempt) of one checkpoint, and its directory name ``<step 10 digits>-<attempt 8 digits>``."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.step:010d}-{self.attempt:08d}"

    @staticmethod
    def parse(name: str) -> StepName | None:
        """Return what a directory name says, or None for any other name (a reader leaves those alone)."""
        match = _STEP_DIRECTORY.fullmatch(name)
        return StepName(int(match[1]), int(match[2])) if match else None


def step_path(name: StepName) -> str:
    """Return ``steps/<step>-<attempt>``, relative to the run."""
    return f"{STEPS}/{name}"


def staging_path(name: StepName) -> str:
    """Return ``tmp/<step>-<attempt>``, relative to the run: where a save is in flight."""
    return f"{TMP}/{name}"


def object_data_path(staged: str) -> str | None:
    """Return ``attempts/<attempt>/<step>[.<try>]``, relative to the run, for the name of a directory below `tmp/`: where an object store
    keeps that save's files. None for a name of another form."""
    name, dot, tries = staged.partition(".")
    step = StepName.parse(name)
    return f"{ATTEMPTS}/{step.attempt:08d}/{step.step:010d}{dot}{tries}" if step else None


def parse_object_data(attempt: str, folder: str) -> str | None:
    """Return the name below `tmp/` that ``attempts/<attempt>/<folder>`` stands for, or None for names of another form."""
    step, dot, tries = folder.partition(".")
    name = f"{step}-{attempt}"
    return f"{name}{dot}{tries}" if StepName.parse(name) else None


def fence_path(attempt: int) -> str:
    """Return ``fences/<attempt 8 digits>``, relative to the run."""
    return f"{FENCES}/{attempt:08d}"


def parse_fence(name: str) -> int | None:
    """Return the attempt a fence's file name says, or None for any other name."""
    return int(name) if _FENCE.fullmatch(name) else None


def rank_index_path(rank: int) -> str:
    """Return ``ranks/<rank 5 digits>.json``, relative to the checkpoint."""
    return f"ranks/{rank:05d}.json"


def data_path(rank: int, kind: str, number: int) -> str:
    """Return ``data/<rank>-<kind>-<number>.safetensors``, relative to the checkpoint; kind is model, optim or extra."""
    return f"data/{rank:05d}-{kind}-{number}.safetensors"


def snapshot_path(sha256: str) -> str:
    """Return ``snapshots/<sha256>``, relative to the run: a file that the run was started with."""
    return f"{SNAPSHOTS}/{sha256}"


def is_run_name(name: str) -> bool:
    """Say whether a run may be called so: ``[a-z0-9][a-z0-9._-]{0,127}`` without ``..``."""
    return RUN_NAME.fullmatch(name) is not None and ".." not in name
