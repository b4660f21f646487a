"""What a rank and its persister say to each other. Values of the contract's codec, so that a wrong one is refused by its field."""

from __future__ import annotations

import json
import typing
from dataclasses import dataclass, field
from typing import Any, Final

from trainer_runtime.checkpoint.commit import Writer
from trainer_runtime.checkpoint.job import Part, SaveJob
from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import ContractError, from_jsonable, render, to_jsonable


@dataclass(frozen=True)
class ExchangeAddress:
    """Where the persister of rank 0 serves the save exchange of one attempt."""

    host: str
    port: int
    """0, from rank 0 alone: any free one."""
    token: str
    """Random, known to this attempt's ranks only: whoever does not say it is not answered."""


@dataclass(frozen=True)
class Hello:
    """From a rank, first: who it is and where its saves go."""

    writer: Writer
    local_rank: int
    store: str
    run: str
    deadline_seconds: float
    s3: S3Settings = field(default_factory=S3Settings)
    local: str | None = None
    """Directory of the local tier; None: there is none."""
    exchange: ExchangeAddress | None = None
    """None in a world of one."""


@dataclass(frozen=True)
class Welcome:
    """The answer to Hello. ``exchange_port``: where the exchange is served; 0 when this persister serves none for this rank."""

    pid: int
    exchange_port: int = 0


@dataclass(frozen=True)
class Prepare:
    """From a rank, with the arena's descriptor: what the saves that follow consist of, until the next one of these."""

    part: Part
    generation_bytes: int
    generations: int


@dataclass(frozen=True)
class Save:
    """From a rank: a generation is sealed; persist it, or the next window of it. ``again``: a process before this one may have begun."""

    job: SaveJob
    again: bool = False
    repeated: tuple[str, ...] = ()
    """Names of objects that are left out of ``job``, because they are what they were in the last Save on this connection."""


@dataclass(frozen=True)
class Ping:
    """From a rank that waits for a save: are you alive?"""


@dataclass(frozen=True)
class Pong:
    """The answer to Ping."""


@dataclass(frozen=True)
class Recorded:
    """To a rank: its checkpoint was committed, or verified."""

    record: CheckpointRecord


@dataclass(frozen=True)
class Written:
    """To a rank: a window of a save that has more of them is written; its memory may be filled with the next."""

    step: int
    tries: int
    window: int


@dataclass(frozen=True)
class Ended:
    """To a rank: how a save ended. ``error`` is a message of `checkpoint.outcome`; empty when it was verified."""

    step: int
    tries: int
    record: CheckpointRecord | None = None
    error: str = ""


Message = Hello | Welcome | Prepare | Save | Ping | Pong | Recorded | Written | Ended
_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in typing.get_args(Message)}


def encode(message: Message) -> bytes:
    """Return the message as JSON. Raises ContractError for a value that is none of the contract's."""
    return render([type(message).__name__, to_jsonable(message)]).encode()


def decode(data: bytes) -> Message:
    """Return the message. Raises ContractError."""
    try:
        kind, value = json.loads(data)
        known = _KINDS[kind]
    except (ValueError, KeyError, TypeError) as error:
        raise ContractError(f"not a message of rank and persister: {data[:80]!r}") from error
    message: Message = from_jsonable(known, value)
    return message
