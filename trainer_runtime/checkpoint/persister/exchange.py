"""The save exchange between workers: rank 0's persister serves one small map over TCP, the other persisters are its clients.

It outlives the ranks. A client remembers what it put in the present save and says it again after the server was replaced, so a persister of
rank 0 that was killed costs a few seconds and no save, and one that hangs as long as it takes to find that out.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final

from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.persister.link import CONNECT_SECONDS, DEATH_SECONDS, PING_SECONDS, SILENCE_SECONDS
from trainer_runtime.checkpoint.persister.messages import ExchangeAddress
from trainer_runtime.checkpoint.persister.wire import Closed, receive_frame, send_frame
from trainer_runtime.errors import ExchangeTimeout

CALL_SECONDS: Final = 2.0
"""Longest wait of one call; a longer one is asked for again, so that a dead server is noticed."""
IO_SECONDS: Final = 10.0
"""How long a connection or an answer beyond that may take before it counts as lost."""
RETRY_SECONDS: Final = 0.2
UNREACHABLE_SECONDS: Final = SILENCE_SECONDS + PING_SECONDS + DEATH_SECONDS + CONNECT_SECONDS
"""A server that cannot be reached for so long is not coming back: by now its rank would have found out that it hangs, killed it, and had
another one started. Whoever gives up earlier leaves that one to wait in vain for a part that is there."""

log = logging.getLogger("trainer_runtime.persister")


class ExchangeServer:
    """Serves ``values`` at an address until closed. Each connection has a thread, which ends with it."""

    def __init__(self, address: ExchangeAddress, values: LocalExchange) -> None:
        """Raises OSError when the port cannot be had."""
        self._token = address.token.encode()
        self._values = values
        self._listener = _listen(address.host, address.port)
        self.port: int = self._listener.getsockname()[1]
        self._clients: set[socket.socket] = set()
        self._calls = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, name="rtj-exchange", daemon=True).start()

    def wait_until_read(self, seconds: float) -> None:
        """Give the persisters that wait for the last word the time to read it: at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calls, timeout=seconds)

    def close(self) -> None:
        """Serve no more."""
        _end(self._listener)
        with self._changed:
            for client in self._clients:
                _end(client)

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=[client], name="rtj-exchange-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(IO_SECONDS)
        try:
            token, _descriptor = receive_frame(client)
            if not hmac.compare_digest(token, self._token):
                return
            client.settimeout(None)
            with self._changed:
                self._clients.add(client)
            while True:
                call, _descriptor = receive_frame(client)
                self._count(1)
                try:
                    send_frame(client, json.dumps(self._answer(json.loads(call))).encode())
                finally:
                    self._count(-1)
        except (Closed, ValueError, KeyError, TypeError) as error:
            log.debug("exchange: a client left: %s", error)
        finally:
            client.close()
            with self._changed:
                self._clients.discard(client)
                self._changed.notify_all()

    def _count(self, calls: int) -> None:
        with self._changed:
            self._calls += calls
            self._changed.notify_all()

    def _answer(self, call: dict[str, Any]) -> list[str] | None:
        if "value" in call:
            self._values.put(str(call["key"]), b64decode(call["value"]))
            return None
        try:
            key, value = self._values.get_first([str(key) for key in call["keys"]], min(CALL_SECONDS, float(call["seconds"])))
        except ExchangeTimeout:
            return None
        return [key, b64encode(value).decode()]


class RemoteExchange:
    """A client of rank 0's exchange. One call at a time."""

    def __init__(self, address: ExchangeAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._mine: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Publish ``value``. When the server cannot be reached it is said with the next call that reaches it."""
        with self._lock:
            self._mine[key] = value
            try:
                self._call({"key": key, "value": b64encode(value).decode()})
            except Closed as error:
                log.debug("exchange: %s is told later: %s", key, error)

    def get(self, key: str, deadline_seconds: float) -> bytes:
        return self.get_first([key], deadline_seconds)[1]

    def get_first(self, keys: Sequence[str], deadline_seconds: float) -> tuple[str, bytes]:
        began = heard_at = time.monotonic()
        while True:
            now = time.monotonic()
            left = max(0.0, began + deadline_seconds - now)
            problem = ""
            try:
                with self._lock:
                    answer = self._call({"keys": list(keys), "seconds": left})
                heard_at = time.monotonic()
                if answer is not None:
                    return answer[0], b64decode(answer[1])
            except Closed as error:
                problem = f"; rank 0's persister cannot be reached: {error}"
                time.sleep(min(RETRY_SECONDS, left))
            if left <= 0 or now - heard_at > UNREACHABLE_SECONDS:
                raise ExchangeTimeout(f"waited {now - began:.0f} s for {keys[0]!r}{problem}")

    def find(self, key: str) -> bytes | None:
        """Return the value, or None when there is none. Raises ExchangeTimeout when nobody can be asked for UNREACHABLE_SECONDS."""
        end = time.monotonic() + UNREACHABLE_SECONDS
        while True:
            try:
                with self._lock:
                    answer = self._call({"keys": [key], "seconds": 0})
                return None if answer is None else b64decode(answer[1])
            except Closed as error:
                if time.monotonic() >= end:
                    raise ExchangeTimeout(f"rank 0's persister cannot be asked for {key!r}: {error}") from error
                time.sleep(RETRY_SECONDS)

    def forget(self, prefix: str) -> None:
        """Say no more what belongs to an older save; the server's own copy is rank 0's to drop."""
        with self._lock:
            for key in [key for key in self._mine if key.startswith(prefix)]:
                del self._mine[key]

    def close(self) -> None:
        """Leave."""
        with self._lock:
            self._lose()

    def _call(self, call: dict[str, Any]) -> list[str] | None:
        try:
            if self._connection is None:
                self._connect()
            return self._exchange(call)
        except Closed:
            self._lose()
            raise

    def _connect(self) -> None:
        try:
            self._connection = socket.create_connection((self.address.host, self.address.port), timeout=IO_SECONDS)
        except OSError as error:
            raise Closed(f"{self.address.host}:{self.address.port}: {error}") from error
        send_frame(self._connection, self.address.token.encode())
        for key, value in self._mine.items():
            self._exchange({"key": key, "value": b64encode(value).decode()})

    def _exchange(self, call: dict[str, Any]) -> list[str] | None:
        assert self._connection is not None
        send_frame(self._connection, json.dumps(call).encode())
        answer: list[str] | None = json.loads(receive_frame(self._connection)[0])
        return answer

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the interface that ``host`` names; where the name is only a way in (a Service), on all."""
    family, _kind, _protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server((address[0], port), family=family)
    except OSError:
        return socket.create_server(("", port))


def _end(connection: socket.socket) -> None:
    """Close so that a thread that waits in it comes back."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("exchange: already closed: %s", error)
    connection.close()
