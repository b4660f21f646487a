"""One rank's session with its persister: its arena, its saves one after the other, and what is said back.

The session outlives its rank: what was sealed is finished, then the other ranks are told that this one stages no more.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

from trainer_runtime.checkpoint.exchange import LocalExchange, SaveExchange
from trainer_runtime.checkpoint.job import Part
from trainer_runtime.checkpoint.keeping.local import LocalTier
from trainer_runtime.checkpoint.outcome import pack_error
from trainer_runtime.checkpoint.persist import Persister
from trainer_runtime.checkpoint.persister.exchange import ExchangeServer, RemoteExchange
from trainer_runtime.checkpoint.persister.handover import Handover
from trainer_runtime.checkpoint.persister.messages import (
    Ended,
    Hello,
    Message,
    Ping,
    Pong,
    Prepare,
    Recorded,
    Save,
    Welcome,
    decode,
    encode,
)
from trainer_runtime.checkpoint.persister.repeated import Heard
from trainer_runtime.checkpoint.persister.wire import Closed, limit_waits, peer_of, receive_frame, send_frame
from trainer_runtime.checkpoint.staging.arena import Arena
from trainer_runtime.contract.assignment import S3Settings
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.errors import RuntimeProblem, SaveFailed
from trainer_runtime.store.base import Store
from trainer_runtime.waiting import wait_readable

LINGER_SECONDS: Final = 2.0
"""How long rank 0's persister stays, after its rank's last save, for those that still wait for a word about it."""

FRAME_SECONDS: Final = 60.0
"""How long a frame may take from its first byte to its last."""
OpenStore = Callable[[str, S3Settings], Store]
log = logging.getLogger("trainer_runtime.persister")


class Session:
    """``on_record`` is called for every record besides telling the rank; ``on_hung`` once a save ended because the store hangs."""

    def __init__(
        self,
        connection: socket.socket,
        open_store: OpenStore,
        on_record: Callable[[Hello, CheckpointRecord], None],
        on_hung: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._open_store = open_store
        self._on_record = on_record
        self._on_hung = on_hung
        self._sending = threading.Lock()
        self._arena: Arena | None = None
        self._part: Part | None = None
        self._heard = Heard()
        self._job: threading.Thread | None = None
        self._handover: Handover | None = None

    def run(self) -> None:
        """Serve the rank until it leaves, then finish what it sealed. Raises nothing that a rank can cause."""
        limit_waits(self._connection, FRAME_SECONDS)
        try:
            hello = self._receive()[0]
            if not isinstance(hello, Hello):
                raise ContractError(f"the first message was {type(hello).__name__}, not Hello")
            store = self._open_store(hello.store, hello.s3)
            exchange, server = _open_exchange(hello)
        except (Closed, ContractError, RuntimeProblem, OSError) as error:
            log.warning("rtj persister: a rank was turned away: %s", error)
            self._connection.close()
            return
        persister = Persister(
            store,
            hello.run,
            hello.writer,
            exchange,
            lambda record: self._recorded(hello, record),
            hello.deadline_seconds,
            LocalTier(hello.local, hello.run) if hello.local is not None else None,
        )
        try:
            self._send(Welcome(os.getpid(), server.port if server is not None else 0))
            self._serve(persister)
        except (Closed, ContractError) as error:
            log.info("rtj persister: rank %d left: %s", hello.writer.rank, error)
        finally:
            self._finish(persister, exchange, server)

    def close(self) -> None:
        """Have the rank see that this persister is gone."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("rtj persister: already closed: %s", error)

    def _serve(self, persister: Persister) -> None:
        rank_process = os.pidfd_open(
            peer_of(self._connection)[0]
        )  # a forked data loader may hold the rank's end open after the rank's death
        try:
            while True:
                if self._connection.fileno() not in wait_readable(self._connection.fileno(), rank_process):
                    raise Closed("its process ended")
                message, descriptor = self._receive()
                if isinstance(message, Ping):
                    self._send(Pong())
                elif isinstance(message, Prepare) and descriptor is not None:
                    self._prepare(message, descriptor)
                elif isinstance(message, Save):
                    self._begin(persister, self._heard.complete(message))
                else:
                    raise ContractError(f"{type(message).__name__} is no message for a persister")
        finally:
            os.close(rank_process)

    def _prepare(self, prepare: Prepare, descriptor: int) -> None:
        try:
            self._arena = Arena(descriptor, prepare.generation_bytes, prepare.generations, touch=False)
        finally:
            os.close(descriptor)
        self._part = prepare.part

    def _begin(self, persister: Persister, save: Save) -> None:
        if save.job.window > 0 and not save.again:
            if self._handover is not None:
                self._handover.take(save.job)
            return
        if self._job is not None:
            self._job.join()  # the rank asks for one after the other, so it has said its last word already
        self._handover = Handover(save.job, self._arena, self._tell)
        self._job = threading.Thread(target=self._persist, args=[persister, save, self._handover], name="rtj-save", daemon=True)
        self._job.start()

    def _persist(self, persister: Persister, save: Save, staged: Handover) -> None:
        job, part = save.job, self._part
        try:
            if job.refusal:
                part = Part((), (), "")
            elif part is None:
                raise SaveFailed("the persister was given no memory to save from")
            record = persister.persist(job, part, staged, again=save.again)
            ended = Ended(job.about.step, job.tries, record)
        except Exception as error:  # this process must live on: whatever went wrong is this save's result
            if not isinstance(error, RuntimeProblem):
                log.exception("rtj persister: step %d", job.about.step)
            ended = Ended(job.about.step, job.tries, None, pack_error(error).decode())
        self._tell(ended)
        if persister.is_hung:
            self._on_hung()

    def _recorded(self, hello: Hello, record: CheckpointRecord) -> None:
        self._tell(Recorded(record))
        self._on_record(hello, record)

    def _finish(self, persister: Persister, exchange: SaveExchange, server: ExchangeServer | None) -> None:
        if self._handover is not None:
            self._handover.end()
        if self._job is not None:
            self._job.join()
        persister.leave()
        self._connection.close()
        if server is not None:
            server.wait_until_read(LINGER_SECONDS)
            server.close()
        elif isinstance(exchange, RemoteExchange):
            exchange.close()

    def _tell(self, message: Message) -> None:
        try:
            self._send(message)
        except Closed as error:
            log.info("rtj persister: the rank is gone and was not told %s: %s", type(message).__name__, error)

    def _send(self, message: Message) -> None:
        with self._sending:
            send_frame(self._connection, encode(message))

    def _receive(self) -> tuple[Message, int | None]:
        data, descriptor = receive_frame(self._connection)
        return decode(data), descriptor


def _open_exchange(hello: Hello) -> tuple[SaveExchange, ExchangeServer | None]:
    if hello.exchange is None:
        return LocalExchange(), None
    if hello.writer.rank != 0:
        return RemoteExchange(hello.exchange), None
    values = LocalExchange()
    return values, ExchangeServer(hello.exchange, values)
