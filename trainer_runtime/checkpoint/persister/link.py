"""A rank's end of the connection to its persister. A thread of its own keeps the connection up; the training thread only sends.

When the persister ends in the middle of a save the link finds the next one, gives it the memory again and has the save done again, if it is
still there: of a save in windows only the first is, until it is written. It knows nothing of tensors or of what a save means.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trainer_runtime.checkpoint.job import Part, SaveJob
from trainer_runtime.checkpoint.outcome import unpack
from trainer_runtime.checkpoint.persister.messages import (
    Ended,
    Hello,
    Message,
    Ping,
    Pong,
    Prepare,
    Recorded,
    Welcome,
    Written,
    decode,
    encode,
)
from trainer_runtime.checkpoint.persister.repeated import Said
from trainer_runtime.checkpoint.persister.wire import Closed, limit_waits, peer_of, receive_frame, send_frame
from trainer_runtime.contract.beat import CheckpointRecord
from trainer_runtime.contract.codec import ContractError
from trainer_runtime.errors import RuntimeProblem, SaveFailed
from trainer_runtime.waiting import wait_readable

CONNECT_SECONDS: Final = 30.0
"""How long a persister may take to come up; it imports no torch, so it takes a fraction of a second."""
RETRY_SECONDS: Final = 0.1
PING_SECONDS: Final = 5.0
"""How often a rank that waits for a save asks whether the persister lives."""
SILENCE_SECONDS: Final = 60.0
"""A persister that says nothing for so long is killed, and the save is done again by the next one."""
DEATH_SECONDS: Final = 5.0
"""How long a killed persister may take to end."""
MAX_DEATHS: Final = 3
"""A save during which the persister ended so often is given up: something about it ends the persister."""

log = logging.getLogger("trainer_runtime")


class Link:
    """One rank's persister, whichever process it is at present."""

    def __init__(
        self,
        dial: Callable[[float], socket.socket],
        hello: Hello,
        on_record: Callable[[CheckpointRecord], None],
        on_ended: Callable[[int, CheckpointRecord | None, Exception | None], None],
    ) -> None:
        """``dial``: connect to the persister of this worker within so many seconds, starting one if that is this rank's to do; may raise
        OSError. ``on_record``, ``on_ended`` (step, record, error) are called in the link's thread. Raises SaveFailed when none comes up."""
        self._dial = dial
        self._hello = hello
        self._on_record = on_record
        self._on_ended = on_ended
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._said = Said()
        self._prepare: tuple[Prepare, int] | None = None
        self._job: SaveJob | None = None
        self._deaths = 0
        self._closed = False
        try:
            self._connection = self._connect()
        except (OSError, Closed, ContractError) as error:
            raise SaveFailed(f"the process that writes checkpoints did not come up within {CONNECT_SECONDS:.0f} s: {error}") from error
        self._thread = threading.Thread(target=self._work, name="rtj-persister-link", daemon=True)
        self._thread.start()

    @property
    def exchange_port(self) -> int:
        """Where rank 0's persister serves the save exchange."""
        return self._hello.exchange.port if self._hello.exchange is not None else 0

    @property
    def connection(self) -> socket.socket | None:
        """The socket to the present persister."""
        with self._changed:
            return self._connection

    @property
    def pid(self) -> int | None:
        """Process id of the persister, None while there is none."""
        with self._changed:
            return None if self._connection is None else peer_of(self._connection)[0]

    def prepare(self, part: Part, generation_bytes: int, generations: int, descriptor: int) -> None:
        """Say what the next saves consist of, and lend the arena's memory file. The caller makes sure that no save is in flight."""
        message = Prepare(part, generation_bytes, generations)
        with self._changed:
            if self._prepare is not None:
                os.close(self._prepare[1])
            self._prepare = (message, os.dup(descriptor))
            self._send(message, self._prepare[1])

    def save(self, job: SaveJob) -> None:
        """Have a sealed generation persisted; ``on_ended`` tells how that ended. Never waits for more than the socket takes. A job that no
        message can hold goes as one that is refused."""
        with self._changed:
            if job.window == 0:
                self._deaths = 0
            elif self._job is None or self._job.refusal:  # ended, or about to
                return
            self._job = job
            try:
                self._send(self._said.shorten(job), None)
            except ContractError as error:
                self._job = replace(job, objects=(), refusal=f"the values that are no tensors cannot be written: {error}")
                self._send(self._said.shorten(self._job), None)
            self._changed.notify_all()

    def await_room(self, job: SaveJob, deadline_seconds: float) -> bool:
        """Wait until the window before that of ``job`` is written, so that its memory may be filled again. False: the save has ended, or is
        about to. Raises SaveFailed when neither comes within ``deadline_seconds``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_ended() or self._has_room(job), timeout=deadline_seconds):
                raise SaveFailed(f"training may not stand still any longer, and window {job.window} of this rank's part is not written")
            return not self._has_ended()

    def close(self) -> None:
        """Leave. A save in flight is finished by the persister, and nobody is told of it here."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._connection is not None:
                _shut(self._connection)
        self._thread.join()
        if self._prepare is not None:
            os.close(self._prepare[1])
            self._prepare = None

    def _has_ended(self) -> bool:
        return self._closed or self._job is None or bool(self._job.refusal)

    def _has_room(self, job: SaveJob) -> bool:
        return self._job is not None and self._job.window == job.window

    def _send(self, message: Message, descriptor: int | None) -> None:
        """Send if there is a connection; if there is none, or it breaks, the next one begins with what matters."""
        if self._connection is None:
            return
        try:
            send_frame(self._connection, encode(message), descriptor)
        except Closed as error:
            log.debug("persister: %s is said to the next one: %s", type(message).__name__, error)
            _shut(self._connection)

    def _connect(self) -> socket.socket:
        connection = self._dial(CONNECT_SECONDS)
        try:
            limit_waits(connection, SILENCE_SECONDS)
            send_frame(connection, encode(self._hello))
            welcome = decode(receive_frame(connection)[0])
            if not isinstance(welcome, Welcome):
                raise ContractError(f"the persister answered Hello with {type(welcome).__name__}")
        except BaseException:
            connection.close()
            raise
        if self._hello.exchange is not None and welcome.exchange_port:
            # the next persister must serve where the other workers' look for it
            self._hello = replace(self._hello, exchange=replace(self._hello.exchange, port=welcome.exchange_port))
        return connection

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    self._drop()
                    return
                connection = self._connection
            try:
                if connection is None:
                    self._reconnect()
                else:
                    self._listen(connection)
            except Exception as error:  # this thread must live on, for nothing else ends a save: whatever it was, the connection is lost
                self._lost(error)

    def _listen(self, connection: socket.socket) -> None:
        heard_at = time.monotonic()
        while True:
            ready = wait_readable(connection.fileno(), seconds=PING_SECONDS)
            if ready:
                heard_at = time.monotonic()
                self._hear(decode(receive_frame(connection)[0]))
            elif time.monotonic() - heard_at > SILENCE_SECONDS:
                raise Closed(f"it said nothing for {SILENCE_SECONDS:.0f} s")
            with self._changed:
                if self._job is None:
                    heard_at = time.monotonic()
                elif not ready:
                    self._send(Ping(), None)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Recorded):
            self._on_record(message.record)
        elif isinstance(message, Written):
            with self._changed:
                job = self._in_flight(message)
                if job is not None and job.window == message.window and not job.refusal:
                    self._job = replace(job, window=job.window + 1)  # from here on its memory is the rank's
                    self._changed.notify_all()
        elif isinstance(message, Ended):
            with self._changed:
                if self._in_flight(message) is None:
                    return
                self._job = None
                self._changed.notify_all()
            self._on_ended(message.step, message.record, _error_in(message))
        elif not isinstance(message, Pong):
            raise ContractError(f"{type(message).__name__} is no message for a rank")

    def _in_flight(self, message: Written | Ended) -> SaveJob | None:
        """Return the save in flight if that is what the message is about."""
        job = self._job
        return job if job is not None and (job.about.step, job.tries) == (message.step, message.tries) else None

    def _lost(self, error: Exception) -> None:
        with self._changed:
            connection, is_needed = self._connection, self._job is not None and not self._closed
        if connection is not None and is_needed:
            _end_process(connection)
        with self._changed:
            self._drop()
            if self._closed:
                return
            self._deaths += 1
            deaths, is_over = self._deaths, self._job is not None and self._deaths > MAX_DEATHS
        log.warning("the process that writes checkpoints is gone (%s); another one takes over", error)
        if is_over:  # after MAX_DEATHS it was only asked to say that the save is given up
            self._give_up(f"the process that writes checkpoints was lost {deaths} times during this save: {error}")

    def _reconnect(self) -> None:
        """Find the next persister and bring it up to date. Without one, or after too many, the save in flight has failed."""
        end = time.monotonic() + CONNECT_SECONDS
        connection = None
        while connection is None:
            try:
                connection = self._connect()
            except Exception as error:  # as in `_work`; whatever it is, it has CONNECT_SECONDS to pass
                if self._closed or time.monotonic() >= end:
                    self._give_up(f"the process that writes checkpoints did not come back within {CONNECT_SECONDS:.0f} s: {error}")
                    return
                time.sleep(RETRY_SECONDS)
        with self._changed:
            self._connection, self._said = connection, Said()
            if self._prepare is not None:
                self._send(*self._prepare)
            if self._job is not None:
                reason = ""
                if self._deaths >= MAX_DEATHS:
                    reason = f"the process that writes checkpoints ended {self._deaths} times during this save"
                elif self._job.window > 0:
                    reason = "the process that writes checkpoints ended, and the memory of what it had written holds other data by now"
                self._job = replace(self._job, refusal=self._job.refusal or reason)
                self._send(self._said.shorten(self._job, again=True), None)
                self._changed.notify_all()

    def _give_up(self, reason: str) -> None:
        with self._changed:
            job, self._job = self._job, None
            self._changed.notify_all()
        if job is not None:
            self._on_ended(job.about.step, None, SaveFailed(reason))
        with self._changed:  # nothing to do for a persister before the next save
            self._changed.wait_for(lambda: self._job is not None or self._closed)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _end_process(connection: socket.socket) -> None:
    """Kill the persister that is to be replaced and see it gone: two of them must not write the same files. It may be gone already, and one
    that the kernel holds in a write cannot begin another."""
    pid, _uid = peer_of(connection)
    if pid == os.getpid():  # a test's server
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:  # none of our descriptors is free, and reading back proves what two of them may have written
        log.warning("the process that writes checkpoints cannot be ended: %s", error)
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        wait_readable(process, seconds=DEATH_SECONDS)
    except ProcessLookupError as error:
        log.debug("persister: %s", error)
    finally:
        os.close(process)


def _error_in(message: Ended) -> Exception | None:
    if not message.error:
        return None
    try:
        unpack(message.error.encode())
    except RuntimeProblem as error:
        return error
    return SaveFailed(f"step {message.step}: the persister gave no reason")


def _shut(connection: socket.socket) -> None:
    """Have both sides' reads come back."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("persister: already gone: %s", error)
