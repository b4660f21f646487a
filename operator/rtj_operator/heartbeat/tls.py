"""The heartbeat server's TLS context, made from files and made again when they change, without a restart and without cutting connections.

The CA is not read here: pods get it by annotation.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
"""How often the files are looked at. A mounted Secret itself changes about a minute after its object."""


class TlsError(Exception):
    """Certificate or key cannot be used. The message names the files."""


class ServerTls:
    """One server context whose certificate is replaced in place: new handshakes get the new leaf, open connections stay."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises TlsError when the files cannot be read or do not fit together."""
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = self._load()

    def reload_if_changed(self) -> bool:
        """Load the files again if their bytes changed; say whether that was done. Raises TlsError and keeps the old leaf."""
        if self._read() == self._loaded:
            return False
        self._loaded = self._load()
        return True

    async def watch(self) -> None:
        """Reload until cancelled. A pair that does not fit (seen half way through a rotation) is logged and looked at again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if self.reload_if_changed():
                    log.info("heartbeat server uses the new certificate in %s", self._certificate)
            except TlsError as error:
                log.warning("the old heartbeat certificate stays in use: %s", error)

    def _load(self) -> bytes:
        content = self._read()
        try:
            # Proven in a scratch context first: a failed load_cert_chain may leave the live one with a certificate without its key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"certificate {self._certificate} and key {self._key} cannot be used: {error}") from error
        return content

    def _read(self) -> bytes:
        try:
            return self._certificate.read_bytes() + b"\0" + self._key.read_bytes()
        except OSError as error:
            raise TlsError(f"cannot read the heartbeat server's certificate or key: {error}") from error
