"""A passkey in software: makes what a browser sends, with real keys and signatures."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Authenticator:
    """One device of one person. `origin` is what its browser believes to be on."""

    origin: str = "http://localhost:8000"
    verifies: bool = True
    """Whether it checks who holds it (PIN, finger, face)."""
    counts: bool = True
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    id: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    counter: int = 0

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        """Answer `navigator.credentials.create`."""
        client = self._client("webauthn.create", options["challenge"])
        numbers = self.key.public_key().public_numbers()
        public = cbor2.dumps(
            {
                1: 2,
                3: -7,
                -1: 1,
                -2: numbers.x.to_bytes(32, "big"),
                -3: numbers.y.to_bytes(32, "big"),
            }
        )
        attested = bytes(16) + len(self.id).to_bytes(2, "big") + self.id + public
        data = self._data(options["rp"]["id"], ATTESTED) + attested
        statement = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        return self._credential(
            {"clientDataJSON": _text(client), "attestationObject": _text(statement)}
        )

    def get(self, options: dict[str, Any]) -> dict[str, Any]:
        """Answer `navigator.credentials.get`."""
        client = self._client("webauthn.get", options["challenge"])
        data = self._data(options["rpId"], 0)
        signed = data + hashlib.sha256(client).digest()
        signature = self.key.sign(signed, ec.ECDSA(hashes.SHA256()))
        return self._credential(
            {
                "clientDataJSON": _text(client),
                "authenticatorData": _text(data),
                "signature": _text(signature),
            }
        )

    def _client(self, kind: str, challenge: str) -> bytes:
        return json.dumps(
            {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        ).encode()

    def _data(self, rp_id: str, more: int) -> bytes:
        self.counter += self.counts
        flags = PRESENT | more | (VERIFIED if self.verifies else 0)
        return (
            hashlib.sha256(rp_id.encode()).digest()
            + bytes([flags])
            + self.counter.to_bytes(4, "big")
        )

    def _credential(self, response: dict[str, str]) -> dict[str, Any]:
        return {
            "id": _text(self.id),
            "rawId": _text(self.id),
            "type": "public-key",
            "response": response,
        }
