"""Ceremonies with passkeys (WebAuthn): a challenge is made, signed once, and gone.

Challenges are in memory only. After a restart the page begins the ceremony again.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webauthn import (
    base64url_to_bytes,
    generate_authentication_options,
    generate_registration_options,
    verify_authentication_response,
    verify_registration_response,
)
from webauthn.helpers import options_to_json_dict
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from rescind.ledger.accounts import Passkey
from rescind.service.policy import Settings
from rescind.service.problems import Problem

SECONDS = 300.0
MOST = 10_000
"""Ceremonies kept at once. Then the oldest goes of whichever network has most of them."""
REGISTER, SIGN_IN = "register", "sign-in"
NAME = "rescind"


@dataclass(frozen=True)
class Ceremony:
    """A challenge that waits for its signature."""

    kind: str
    challenge: bytes
    until: float
    network: str
    person: bytes = b""
    invitation: bytes = b""
    code: bytes = b""
    """By what a recovery code is found that was typed and is spent when the passkey is there."""


class Ceremonies:
    """Challenges that were handed out and not used yet."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open: dict[str, Ceremony] = {}
        self._by: Counter[str] = Counter()

    def begin_registration(
        self, network: str, person: bytes = b"", invitation: bytes = b"", code: bytes = b""
    ) -> tuple[str, dict[str, Any]]:
        options = generate_registration_options(
            rp_id=self.settings.rp_id,
            rp_name=NAME,
            user_name=NAME,
            user_id=secrets.token_bytes(16),  # says nothing: accounts are found by the passkey
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
        )
        until = time.time() + SECONDS
        one = Ceremony(REGISTER, options.challenge, until, network, person, invitation, code)
        return self._keep(one), options_to_json_dict(options)

    def begin_sign_in(self, network: str) -> tuple[str, dict[str, Any]]:
        options = generate_authentication_options(
            rp_id=self.settings.rp_id, user_verification=UserVerificationRequirement.REQUIRED
        )
        one = Ceremony(SIGN_IN, options.challenge, time.time() + SECONDS, network)
        return self._keep(one), options_to_json_dict(options)

    def take(self, name: str, kind: str) -> Ceremony:
        """Return a ceremony and forget it: a challenge is answered once."""
        one = self._drop(name) if name in self._open else None
        if one is None or one.kind != kind or one.until < time.time():
            raise Problem(
                422,
                "This ceremony is not known here, was used, or is older than 5 minutes.",
                "Begin again: POST /v1/session/begin or /v1/account/begin.",
                kind="ceremony",
            )
        return one

    def registered(self, ceremony: Ceremony, credential: Mapping[str, Any], name: str) -> Passkey:
        """Return the passkey that a browser made, or refuse it."""
        try:
            found = verify_registration_response(
                credential=dict(credential),
                expected_challenge=ceremony.challenge,
                expected_rp_id=self.settings.rp_id,
                expected_origin=self.settings.origin,
                require_user_verification=True,
            )
        except Exception:  # the library raises many kinds on bytes that are not a passkey
            raise _refused() from None
        return Passkey(found.credential_id, found.credential_public_key, found.sign_count, name)

    def signed(self, ceremony: Ceremony, credential: Mapping[str, Any], known: Passkey) -> Passkey:
        """Return the passkey with its new counter, or refuse the signature."""
        try:
            found = verify_authentication_response(
                credential=dict(credential),
                expected_challenge=ceremony.challenge,
                expected_rp_id=self.settings.rp_id,
                expected_origin=self.settings.origin,
                credential_public_key=known.public_key,
                credential_current_sign_count=known.counter,
                require_user_verification=True,
            )
        except Exception:
            raise _refused() from None
        return Passkey(known.id, known.public_key, found.new_sign_count, known.name)

    def _keep(self, one: Ceremony) -> str:
        name, now = secrets.token_urlsafe(24), time.time()
        while self._open and (first := next(iter(self._open))) and self._open[first].until < now:
            self._drop(first)
        if len(self._open) >= MOST:
            most = max(self._by, key=self._by.__getitem__)
            self._drop(next(name for name, old in self._open.items() if old.network == most))
        self._open[name] = one
        self._by[one.network] += 1
        return name

    def _drop(self, name: str) -> Ceremony:
        one = self._open.pop(name)
        self._by[one.network] -= 1
        if not self._by[one.network]:
            del self._by[one.network]
        return one


def credential_id(credential: Mapping[str, Any]) -> bytes:
    try:
        return base64url_to_bytes(str(credential["id"]))
    except (KeyError, ValueError):
        raise _refused() from None


def _refused() -> Problem:
    return Problem(
        422,
        "This passkey's answer does not verify: another challenge, another site, or no check of "
        "who holds the device.",
        "Begin again, and use a passkey with a PIN, a finger or a face.",
        kind="passkey",
    )
