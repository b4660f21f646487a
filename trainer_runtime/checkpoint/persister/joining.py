"""How a rank comes to its persister: rtj-run started one, or local rank 0 does; and how all ranks come to one save exchange.

What has to be known by several ranks is told once, through the exchange of the start. From then on the persisters speak among themselves.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trainer_runtime.channel.server import make_private_directory
from trainer_runtime.checkpoint.exchange import Exchange
from trainer_runtime.checkpoint.job import Part, SaveJob
from trainer_runtime.checkpoint.outcome import pack_value, unpack
from trainer_runtime.checkpoint.persister.link import Link
from trainer_runtime.checkpoint.persister.messages import ExchangeAddress, Hello
from trainer_runtime.checkpoint.persister.server import dial
from trainer_runtime.checkpoint.persister.start import Handle
from trainer_runtime.contract import environment
from trainer_runtime.contract.beat import CheckpointRecord

JOIN_SECONDS: Final = 60.0
"""How long a rank waits to be told where the persister or the exchange is."""
END_SECONDS: Final = 5.0
"""How long local rank 0 waits at the end for its persister, which waits for the last words of this worker's other ranks."""
_DIAL_SECONDS: Final = 0.1

OnEnded = Callable[[int, CheckpointRecord | None, Exception | None], None]


class OwnPersister:
    """A persister that this process started, at a socket in a directory of its own."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Raises OSError when it cannot be started, ConfigurationError when there is no place for its socket."""
        self._directory = make_private_directory()
        self.path = os.path.join(self._directory, "persister")
        self._handle = Handle(self.path, environ)

    def dial(self, seconds: float) -> socket.socket:
        """Connect, starting another one if it ended. Raises OSError."""
        end = time.monotonic() + seconds
        while True:
            self._handle.tend()
            try:
                return dial(self.path, min(_DIAL_SECONDS, seconds))
            except OSError:
                if time.monotonic() >= end:
                    raise

    def close(self) -> None:
        """Let it finish what is sealed and end. It is not waited for longer than END_SECONDS, and then goes on without us."""
        self._handle.finish()
        end = time.monotonic() + END_SECONDS
        while not self._handle.has_ended() and time.monotonic() < end:
            time.sleep(0.01)
        if self._handle.has_ended():
            shutil.rmtree(self._directory, ignore_errors=True)


@dataclass(frozen=True)
class Joined:
    """A rank's link to its persister, and the process behind it where this rank started that. ``directory``: the persister's."""

    link: Link
    own: OwnPersister | None
    directory: str

    def prepare(self, part: Part, generation_bytes: int, generations: int, descriptor: int) -> None:
        """As `Link.prepare`."""
        self.link.prepare(part, generation_bytes, generations, descriptor)

    def save(self, job: SaveJob) -> None:
        """As `Link.save`."""
        self.link.save(job)

    def await_room(self, job: SaveJob, deadline_seconds: float) -> bool:
        """As `Link.await_room`."""
        return self.link.await_room(job, deadline_seconds)

    def close(self) -> None:
        """Leave, and end the process if it is ours."""
        self.link.close()
        if self.own is not None:
            self.own.close()


def join(
    hello: Hello,
    exchange: Exchange,
    master: str | None,
    on_record: Callable[[CheckpointRecord], None],
    on_ended: OnEnded,
    environ: Mapping[str, str] = os.environ,
) -> Joined:
    """Connect this rank. ``exchange``: of the start; ``master``: the host on which rank 0 runs, None in a world of one.

    Raises SaveFailed when no persister comes up, ExchangeTimeout when another rank does not say where it is, OSError.
    """
    writer = hello.writer
    path = environ.get(environment.PERSISTER, "")
    key = f"persister/{writer.rank - hello.local_rank}"
    own = None
    if not path and hello.local_rank == 0:
        own = OwnPersister(environ)
        path = own.path
        exchange.put(key, pack_value(path))
    elif not path:
        path = str(unpack(exchange.get(key, JOIN_SECONDS)))
    reach = own.dial if own is not None else lambda seconds: dial(path, seconds)
    if writer.world_size > 1 and writer.rank == 0:
        hello = replace(hello, exchange=ExchangeAddress(master or "", 0, secrets.token_hex(16)))
    elif writer.world_size > 1:
        host, port, token = unpack(exchange.get("persister/exchange", JOIN_SECONDS))
        hello = replace(hello, exchange=ExchangeAddress(host, port, token))
    link = Link(reach, hello, on_record, on_ended)
    if hello.exchange is not None and writer.rank == 0:
        exchange.put("persister/exchange", pack_value([hello.exchange.host, link.exchange_port, hello.exchange.token]))
    return Joined(link, own, os.path.dirname(path))
