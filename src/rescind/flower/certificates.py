"""Keys and certificates for a deployment, made by one command.

    kit/ca.key                 signs certificates; keep it offline, no process needs it
    kit/server/                ca.pem, server.pem, server.key, operator.pub, silo-0.pub ...
    kit/operator/              ca.pem, operator.key: submits runs, on the server's machine
    kit/silo-0/ ...            ca.pem, node.key, silos.pub: copy them to the silo's machine

The server's certificate names its hosts. A silo is identified by its key (ECDSA on P-384, as
Flower's node authentication requires), the operator by an Ed25519 key (`operator_key.py`). Silos
know each other by silos.pub (secure sums).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rescind.errors import ConfigError
from rescind.privacy.keys import public_text

DAYS = 365
"""Validity of certificates. A longer deployment needs a new kit every year."""
SKEW = timedelta(hours=48)
"""Certificates start this long before now, so that a machine with a slow clock can connect."""


def make_kit(folder: Path, silos: int, hosts: Sequence[str], days: int = DAYS) -> Path:
    """Write the keys and certificates for a server with these host names, and for its silos."""
    if silos < 1:
        raise ConfigError(f"the number of silos must be at least 1; got {silos}.")
    if not hosts or not all(hosts):
        raise ConfigError("no host was given. Give at least one --host name of the server.")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty. With a new kit, silos that have the old one cannot connect. "
            f"Choose another folder, or remove this one."
        )
    now = datetime.now(UTC)
    span = now - SKEW, now + timedelta(days=days)
    ca_key = ec.generate_private_key(ec.SECP384R1())
    ca = _authority(ca_key, span)
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = _certificate(server_key, hosts, ca, ca_key, span)
    _write_secret(folder / "ca.key", ca_key, PrivateFormat.PKCS8)
    _write_public(folder / "server" / "ca.pem", ca.public_bytes(Encoding.PEM))
    _write_public(folder / "server" / "server.pem", server.public_bytes(Encoding.PEM))
    _write_secret(folder / "server" / "server.key", server_key, PrivateFormat.PKCS8)
    operator = Ed25519PrivateKey.generate()
    _write_public(folder / "operator" / "ca.pem", ca.public_bytes(Encoding.PEM))
    _write_secret(folder / "operator" / "operator.key", operator, PrivateFormat.PKCS8)
    _write_public(folder / "server" / "operator.pub", f"{public_text(operator)}\n".encode())
    public = b""
    for silo in range(silos):
        key = ec.generate_private_key(ec.SECP384R1())
        mine = folder / f"silo-{silo}"
        _write_public(mine / "ca.pem", ca.public_bytes(Encoding.PEM))
        _write_secret(mine / "node.key", key, PrivateFormat.OpenSSH)
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        line += f" silo-{silo}\n".encode()
        _write_public(folder / "server" / f"silo-{silo}.pub", line)
        public += line
    for silo in range(silos):
        _write_public(folder / f"silo-{silo}" / "silos.pub", public)
    return folder


def _authority(
    key: ec.EllipticCurvePrivateKey, span: tuple[datetime, datetime]
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rescind federation")])
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _builder(name, name, key.public_key(), span)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(own, critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )


def _certificate(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    span: tuple[datetime, datetime],
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(name, ca.subject, key.public_key(), span)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .sign(ca_key, hashes.SHA384())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    span: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_public(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_secret(
    path: Path, key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey, form: PrivateFormat
) -> None:
    """Write a private key to a file that only its owner can read from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
