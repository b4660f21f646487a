"""The persister as a server on a Unix socket: a session for each rank of this worker. What a session does is in `session`."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from trainer_runtime.checkpoint.persister.messages import Hello
from trainer_runtime.checkpoint.persister.session import OpenStore, Session
from trainer_runtime.checkpoint.persister.wire import peer_of
from trainer_runtime.contract.beat import CheckpointRecord

log = logging.getLogger("trainer_runtime.persister")


class Server:
    """Listens at ``path``, which it replaces, from its construction on. Raises OSError when it cannot."""

    def __init__(
        self,
        path: str,
        open_store: OpenStore,
        on_record: Callable[[Hello, CheckpointRecord], None],
        on_hung: Callable[[], None],
    ) -> None:
        self._path = path
        self._open_store = open_store
        self._on_record = on_record
        self._on_hung = on_hung
        self._sessions: set[Session] = set()
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        draft = f"{path}.{os.getpid()}"
        self._listener.bind(draft)
        self._listener.listen()
        os.replace(draft, path)  # a rank that dials finds the one before or this one, never nothing
        threading.Thread(target=self._accept, name="rtj-persister", daemon=True).start()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no rank is served and nothing is left to do; return whether that came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sessions, timeout=seconds)

    def close(self) -> None:
        """Serve no more: every rank sees at once that this persister is gone. What a session is doing is not waited for."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("rtj persister: already closed: %s", error)
        self._listener.close()
        with self._changed:
            for session in self._sessions:
                session.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:  # closed
                return
            if peer_of(connection)[1] != os.getuid():
                connection.close()
                continue
            session = Session(connection, self._open_store, self._on_record, self._on_hung)
            with self._changed:
                self._sessions.add(session)
            threading.Thread(target=self._run, args=[session], name="rtj-session", daemon=True).start()

    def _run(self, session: Session) -> None:
        try:
            session.run()
        except Exception:  # one rank's session must not end those of the others
            log.exception("rtj persister: a session ended")
        finally:
            with self._changed:
                self._sessions.discard(session)
                self._changed.notify_all()


def dial(path: str, seconds: float) -> socket.socket:
    """Connect to the persister at ``path``, waiting up to ``seconds`` for it to come up. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() >= end:
                raise
            time.sleep(_DIAL_PAUSE_SECONDS)


_DIAL_PAUSE_SECONDS = 0.02
