"""One HTTPS request per beat over a connection that is kept: a handshake every five seconds from each worker would be the operator's load.

Standard library only. The certificate is checked against the CA file of the pod alone; the token is read anew each time, because the
kubelet rotates it in place.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from typing import Final
from urllib.parse import urlsplit

from trainer_runtime.contract.beat import BEAT_PATH, Reply
from trainer_runtime.contract.codec import ContractError, loads
from trainer_runtime.errors import ConfigurationError

REQUEST_SECONDS: Final = 5.0
"""Deadline of one request, from connect to the last byte of the reply; one beat period."""
MAX_REPLY_BYTES: Final = 256 * 1024


class PostFailed(Exception):
    """The beat was not accepted. The message says why; ``retry_after`` is what the server asked for, in seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def take_apart(url: str) -> tuple[str, int, str]:
    """Return host, port and path of the beats at ``url``. Raises ConfigurationError unless it is ``https://host[:port]``."""
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError as error:
        raise ConfigurationError(f"RTJ_HEARTBEAT_URL: {url!r} is not https://host[:port]: {error}") from error
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigurationError(f"RTJ_HEARTBEAT_URL: {url!r} is not https://host[:port]")
    return parts.hostname, port, parts.path.rstrip("/") + BEAT_PATH


class Poster:
    """Posts beats to ``url``, an ``https://`` address without the path of the beats. Raises ConfigurationError for any other."""

    def __init__(self, url: str, token_file: str, ca_file: str, request_seconds: float = REQUEST_SECONDS) -> None:
        self._host, self._port, self._path = take_apart(url)
        self._token_file = token_file
        self._ca_file = ca_file
        self._seconds = request_seconds
        self._connection: http.client.HTTPSConnection | None = None

    def post(self, body: bytes) -> Reply:
        """Send one beat and return the reply. Raises PostFailed."""
        is_kept = self._connection is not None
        try:
            return self._post_once(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # A server may close a kept connection at any time; only a fresh one says something about the server.
            if not (is_kept and isinstance(error, (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest))):
                raise PostFailed(f"{self._host}:{self._port}: {_describe(error)}") from error
        try:
            return self._post_once(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PostFailed(f"{self._host}:{self._port}: {_describe(error)}") from error

    def close(self) -> None:
        """Drop the connection; the next post opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post_once(self, body: bytes) -> Reply:
        token = self._read_token()
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._seconds, context=self._tls())
            connection.connect()
            self._connection = connection
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with _Deadline(connection.sock, self._seconds):
            connection.request("POST", self._path, body=body, headers=headers)
            response = connection.getresponse()
            data = response.read(MAX_REPLY_BYTES + 1)
        if len(data) > MAX_REPLY_BYTES or not response.isclosed():
            self.close()
            raise PostFailed(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        if response.will_close:
            self.close()
        if response.status != 200:
            raise PostFailed(_refusal(response, data), _retry_after(response))
        try:
            return loads(Reply, data)
        except ContractError as error:
            raise PostFailed(f"the reply cannot be read: {error}") from error

    def _read_token(self) -> str:
        try:
            with open(self._token_file, encoding="ascii") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PostFailed(f"RTJ_HEARTBEAT_TOKEN_FILE: {error}") from error

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ssl.SSLError) as error:
            raise PostFailed(f"RTJ_HEARTBEAT_CA_FILE: {self._ca_file} holds no certificate: {error}") from error


class _Deadline:
    """Cuts a connection when its time is over. The socket's own time-out is per operation: a server that drips bytes never meets it."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._seconds = seconds
        self._is_over = threading.Event()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._timer.cancel()
        if self._is_over.is_set():
            raise TimeoutError(f"no complete reply within {self._seconds:g} s") from error

    def _cut(self) -> None:
        self._is_over.set()
        try:
            # The base class's method: SSLSocket.shutdown would turn the rest of the stream into plain text.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # the request ended in the same moment


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _refusal(response: http.client.HTTPResponse, data: bytes) -> str:
    return f"{response.status} {response.reason}: {data[:300].decode('utf-8', 'replace')}"


def _retry_after(response: http.client.HTTPResponse) -> float | None:
    value = response.getheader("Retry-After", "")
    return float(value) if value.isdigit() else None
