"""A real HTTPS server that takes beats, with a certificate authority of its own. It stands in for the operator."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainer_runtime.contract.beat import BEAT_PATH, Beat, Directive, Reply
from trainer_runtime.contract.codec import dumps, loads

Respond = Callable[[Beat], Reply | int]


def go_on(_beat: Beat) -> Reply:
    """Answer continue to everything."""
    return Reply(Directive.CONTINUE, received_at=1.0)


def write_certificates(folder: Path, name: str = "ca") -> tuple[Path, Path]:
    """Write a CA and a leaf for 127.0.0.1; return (CA file, file of leaf and key)."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"rtj test {name}")])

    def sign(subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType, is_ca: bool) -> bytes:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1)).add_extension(extension, critical=is_ca)
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca_file, leaf_file = folder / f"{name}.crt", folder / f"{name}-leaf.pem"
    ca_file.write_bytes(sign(ca_name, ca_key, x509.BasicConstraints(ca=True, path_length=0), is_ca=True))
    leaf_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    key = leaf_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    leaf_file.write_bytes(sign(leaf_name, leaf_key, address, is_ca=False) + key)
    return ca_file, leaf_file


class BeatServer:
    """Takes beats from a sender; every wait has a deadline. ``respond`` may be replaced at any time."""

    def __init__(self, folder: Path, respond: Respond = go_on) -> None:
        self.respond = respond
        self.beats: list[Beat] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.ca_file, self._leaf_file = write_certificates(folder)
        self.token_file = folder / "token"
        self.token_file.write_text("token-1\n")
        self._changed = threading.Condition()
        self._server: http.server.ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()
        self.port = 0
        self.start()

    @property
    def environ(self) -> dict[str, str]:
        """What a pod would have."""
        return {
            "RTJ_HEARTBEAT_URL": f"https://127.0.0.1:{self.port}",
            "RTJ_HEARTBEAT_TOKEN_FILE": str(self.token_file),
            "RTJ_HEARTBEAT_CA_FILE": str(self.ca_file),
            "RTJ_JOB_UID": "job-uid",
            "RTJ_POD_UID": "pod-uid",
        }

    def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Stop listening and cut every connection, as a killed operator does."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        for connection in tuple(self._open):
            try:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                continue  # it was closed already

    def wait_for(self, holds: Callable[[list[Beat]], bool], what: str, seconds: float = 20.0) -> list[Beat]:
        """Wait until ``holds(beats)``; return the beats. Fails the test, naming ``what``, after ``seconds``."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.beats), timeout=seconds), f"{seconds:g} s without {what}: {self.beats[-3:]}"
            return list(self.beats)

    def take(self, beat: Beat, token: str) -> None:
        """Record one beat."""
        with self._changed:
            self.beats.append(beat)
            self.tokens.append(token)
            self._changed.notify_all()

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """Put TLS around one connection; the handshake comes with the first read."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._leaf_file)
        wrapped = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self.connections += 1
        self._open.add(wrapped)
        return wrapped

    def forget(self, connection: socket.socket) -> None:
        """Close one connection that ended."""
        self._open.discard(connection)
        connection.close()


def _handler(owner: BeatServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def setup(self) -> None:
            self.request = owner.wrap(self.request)
            super().setup()

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return  # the sender went away

        def finish(self) -> None:
            super().finish()
            owner.forget(self.request)

        def do_POST(self) -> None:
            beat = loads(Beat, self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == BEAT_PATH
            owner.take(beat, self.headers["Authorization"].removeprefix("Bearer "))
            answer = owner.respond(beat)
            status, body = (answer, b"{}") if isinstance(answer, int) else (200, dumps(answer).encode())
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            return

    return Handler
