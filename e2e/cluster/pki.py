"""Certificates, kubeconfigs and the service-account keys of one test cluster. Made in memory by `cryptography`: no openssl, about 0.2 s.

Valid for 30 days: a test cluster that is older is a mistake.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
CLOCK_SKEW = datetime.timedelta(hours=1)
ADMIN_GROUP = "system:masters"
NODE_GROUP = "system:nodes"


@dataclass(frozen=True)
class Authority:
    """The cluster's certificate authority, and the directory where it keeps what it issues (mode 0700)."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @staticmethod
    def create(directory: Path) -> Authority:
        """Make a new authority and the service-account key pair. Whatever an earlier one issued in this directory is worthless then."""
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject("rtj-test-cluster", None)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(name, name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(usage, critical=True)
        authority = Authority(directory, builder.sign(key, hashes.SHA256()), key)
        _write_private(directory / "ca.key", _pem(key))
        (directory / "ca.crt").write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        _write_private(directory / "service-accounts.key", _pem(accounts))
        public = accounts.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        (directory / "service-accounts.pub").write_bytes(public)
        return authority

    @staticmethod
    def load(directory: Path) -> Authority:
        """Read back an authority that `create` made. Raises FileNotFoundError if there is none."""
        certificate = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return Authority(directory, certificate, key)

    def issue(self, file: str, user: str, group: str | None = None, names: Sequence[str] = (), addresses: Sequence[str] = ()) -> None:
        """Write FILE.crt and FILE.key, good as a client (user, group) and as a server (DNS names and addresses)."""
        certificate, key = self._sign(user, group, names, addresses)
        _write_private(self.directory / f"{file}.key", key)
        (self.directory / f"{file}.crt").write_bytes(certificate)

    def kubeconfig(self, file: str, server: str, user: str, group: str | None = None) -> Path:
        """Write FILE.kubeconfig for a user of the API server at `server`, and return its path."""
        certificate, key = self._sign(user, group, (), ())
        authority = self.certificate.public_bytes(serialization.Encoding.PEM)
        text = f"""apiVersion: v1
kind: Config
clusters:
- name: rtj
  cluster: {{server: "{server}", certificate-authority-data: {_base64(authority)}}}
users:
- name: {user}
  user: {{client-certificate-data: {_base64(certificate)}, client-key-data: {_base64(key)}}}
contexts:
- name: rtj
  context: {{cluster: rtj, user: "{user}"}}
current-context: rtj
"""
        path = self.directory / f"{file}.kubeconfig"
        _write_private(path, text.encode())
        return path

    def _sign(self, user: str, group: str | None, names: Sequence[str], addresses: Sequence[str]) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _builder(_subject(user, group), self.certificate.subject, key.public_key()).add_extension(usage, critical=False)
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def _subject(user: str, group: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - CLOCK_SKEW).not_valid_after(now + VALID)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _write_private(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
