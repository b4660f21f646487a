"""The server's certificate: loaded from files, replaced in place, and never replaced by one that does not work."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from e2e.cluster.pki import Authority
from rtj_operator.heartbeat.tls import ServerTls, TlsError


def issue(folder: Path, name: str) -> tuple[Path, Path]:
    authority = Authority.load(folder) if (folder / "ca.crt").exists() else Authority.create(folder)
    authority.issue(name, name, addresses=["127.0.0.1"])
    return folder / f"{name}.crt", folder / f"{name}.key"


async def served_certificate(tls: ServerTls, ca: Path) -> bytes:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context(cafile=ca))
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    server.close()
    return bytes(certificate)


async def test_a_new_leaf_in_the_files_is_served_without_a_new_context(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path, "one")
    tls = ServerTls(certificate, key)
    before = await served_certificate(tls, tmp_path / "ca.crt")
    assert not tls.reload_if_changed()
    second = issue(tmp_path, "two")
    shutil.copy(second[0], certificate)
    shutil.copy(second[1], key)
    assert tls.reload_if_changed()
    assert await served_certificate(tls, tmp_path / "ca.crt") != before


async def test_a_pair_that_does_not_fit_is_refused_and_the_old_leaf_stays(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path, "one")
    tls = ServerTls(certificate, key)
    before = await served_certificate(tls, tmp_path / "ca.crt")
    shutil.copy(issue(tmp_path, "two")[0], certificate)
    with pytest.raises(TlsError, match="one.crt"):
        tls.reload_if_changed()
    assert await served_certificate(tls, tmp_path / "ca.crt") == before


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="nothing.crt"):
        ServerTls(tmp_path / "nothing.crt", tmp_path / "nothing.key")
