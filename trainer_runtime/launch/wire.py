"""What rtj-run gives its torchrun process and what that one reports: a plan on the command line, one JSON line per report in a pipe."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from trainer_runtime.contract.codec import ContractError, from_jsonable, to_jsonable


@dataclass(frozen=True)
class LaunchPlan:
    """How to start the ranks of one attempt."""

    options: dict[str, str]
    """torchrun's options that rtj-run sets, by name (``--nnodes``). The user's own may repeat a value, never differ."""
    forbidden: dict[str, str]
    """Options that rtj-run refuses, by name, with the reason for the user."""
    report_fd: int
    directory: str
    """Private to this attempt: the ranks' output pipes and error files."""


@dataclass(frozen=True)
class Stream:
    """One output of one rank, as a named pipe. The rank starts when rtj-run has opened it."""

    rank: int
    name: str
    """``stdout`` or ``stderr``."""
    path: str


@dataclass(frozen=True)
class Launching:
    """The ranks are about to start."""

    local_world_size: int
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class BadOptions:
    """The command line cannot be used."""

    message: str


@dataclass(frozen=True)
class TorchrunFailed:
    """torchrun itself failed, not a rank: rendezvous, host names, ports."""

    message: str


@dataclass(frozen=True)
class RankFailure:
    """How torchrun saw one rank end: code (negative for a signal) and, with an error file, what the rank wrote there."""

    rank: int
    exit_code: int
    message: str = ""


@dataclass(frozen=True)
class RanksFailed:
    """torchrun ended its ranks because at least one failed. Also lists those it ended itself."""

    failures: tuple[RankFailure, ...] = field(default_factory=tuple)


Report = Launching | BadOptions | TorchrunFailed | RanksFailed

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (Launching, BadOptions, TorchrunFailed, RanksFailed)}


def encode(report: Report) -> bytes:
    """Return the report's line."""
    return json.dumps({"kind": type(report).__name__, **to_jsonable(report)}).encode() + b"\n"


def decode(line: bytes) -> Report:
    """Read one line. Raises ContractError."""
    data = json.loads(line)
    if data.get("kind") not in _KINDS:
        raise ContractError(f"kind: {data.get('kind')!r} is not one of {sorted(_KINDS)}")
    report: Report = from_jsonable(_KINDS[data["kind"]], data)
    return report
