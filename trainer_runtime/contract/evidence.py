"""One observed fact about a failure, whoever saw it: a rank's log line, an exit code, a node condition, a missing beat."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MAX_EVIDENCE_TEXT: Final = 300
"""Characters kept of the line that was seen; enough for the longest Xid line, and ten of them fit in a termination message."""


class Strength(str, Enum):
    """How much one fact says about who failed first."""

    NODE = "NODE"
    """Names the machine it came from."""
    SUSPECT = "SUSPECT"
    """One strike against a machine; needs company."""
    VICTIM = "VICTIM"
    """Real, but the sender is not to blame: it waited for somebody else."""
    APP = "APP"
    """The program itself: an exception, its own memory limit."""
    ENV = "ENV"
    """Image, configuration, storage, network set-up: nothing a machine change cures."""
    BENIGN = "BENIGN"
    UNKNOWN = "UNKNOWN"


class Source(str, Enum):
    """Where a fact was seen. Evidence from two different sources counts as independent."""

    LOG = "log"
    EXIT = "exit"
    POD = "pod"
    NODE = "node"
    BEAT = "beat"
    NVML = "nvml"


@dataclass(frozen=True)
class Evidence:
    """One fact. ``at`` is Unix time in seconds by the clock of whoever saw it."""

    at: float
    source: Source
    fault_class: str
    """Lower-case name from `trainer_runtime.signals`, e.g. ``gpu_ecc_uncorrectable``."""
    strength: Strength
    text: str
    attempt: int
    worker: int | None = None
    node: str | None = None
    rank: int | None = None
    gpu: str | None = None
    step: int | None = None
    """The step the rank was in, when whoever saw it knew; the same error at the same step twice is the program's own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text[:MAX_EVIDENCE_TEXT])
