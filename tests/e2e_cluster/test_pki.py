"""The certificates work as the API server and its clients use them: over TLS, and readable by nobody else."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.pki import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("server", "kube-apiserver", names=["localhost"], addresses=["127.0.0.1"])
    made.issue("client", "somebody", "some-group")
    return made


def test_a_server_and_a_client_of_one_authority_accept_each_other_and_the_server_learns_user_and_group(authority: Authority) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.directory / "ca.crt")
    server.load_cert_chain(authority.directory / "server.crt", authority.directory / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=authority.directory / "ca.crt")
    client.load_cert_chain(authority.directory / "client.crt", authority.directory / "client.key")
    here, there = socket.socketpair()
    seen: dict[str, str] = {}

    def serve() -> None:
        with server.wrap_socket(there, server_side=True) as connection:
            subject: Any = (connection.getpeercert() or {})["subject"]
            for ((name, value),) in subject:
                seen[str(name)] = str(value)
            connection.sendall(b"welcome")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(here, server_hostname="127.0.0.1") as connection:
        assert connection.recv(16) == b"welcome"
    thread.join(timeout=10)
    assert seen == {"commonName": "somebody", "organizationName": "some-group"}


def test_no_private_file_can_be_read_by_others(authority: Authority) -> None:
    authority.kubeconfig("admin", "https://127.0.0.1:6443", "admin")
    private = [*authority.directory.glob("*.key"), *authority.directory.glob("*.kubeconfig")]
    assert private
    assert {file.stat().st_mode & 0o777 for file in private} == {0o600}
    assert authority.directory.stat().st_mode & 0o777 == 0o700


def test_a_kubeconfig_names_its_server_and_holds_the_authority_that_vouches_for_it(authority: Authority) -> None:
    config = yaml.safe_load(authority.kubeconfig("dev", "https://127.0.0.1:6443", "system:serviceaccount:a:b").read_text())
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == (authority.directory / "ca.crt").read_bytes()
    assert config["contexts"][0]["context"]["user"] == config["users"][0]["name"] == "system:serviceaccount:a:b"


def test_a_loaded_authority_issues_what_the_created_one_is_trusted_for(authority: Authority) -> None:
    again = Authority.load(authority.directory)
    again.issue("later", "later")
    context = ssl.create_default_context(cafile=authority.directory / "ca.crt")
    context.load_cert_chain(authority.directory / "later.crt", authority.directory / "later.key")
    assert again.certificate == authority.certificate


def test_loading_an_authority_that_was_never_made_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ca\.crt"):
        Authority.load(tmp_path)
