"""Operations on credentials, sessions, recovery codes, operators, tokens and agents.

A passkey and the digests of recovery codes are boxes under the person's account key, found by a
keyed digest. So leaving makes them unreadable, and the table alone names nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, update

from rescind.errors import ConsentError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.credentials import (
    AGENT_CODE,
    CREDENTIALS,
    PASSKEY,
    RECOVERY,
    find_by_lookup,
    find_credential,
    find_token,
    remove,
    write,
)
from rescind.ledger.errors import CodeNotKnown, NotThere
from rescind.ledger.lending import join

LONGEST = timedelta(days=30)
"""A session ends after this time at the latest, in use or not."""
INVITED = "invited-"
"""An invitation is a token of this role and the role it gives; it opens no other door."""


# ------------------------------------------------------------------ sessions


@dataclass(frozen=True)
class NewSession:
    """A session that begins. `digest` is of its secret, which only the cookie holds."""

    digest: bytes
    role: str
    person: bytes | None = None
    operator: bytes | None = None
    confirmed: bool = True
    replaces: bytes | None = None
    """Digest of the session that ends with it: a secret is never used on."""

    def carry_out(self, batch: Batch) -> Answer:
        if self.replaces is not None:
            batch.tx.execute(delete(tables.session).where(tables.session.c.digest == self.replaces))
        row = {
            "digest": self.digest,
            "person": self.person,
            "operator": self.operator,
            "role": self.role,
            "created": batch.now,
            "seen": batch.now,
            "expires": batch.now + LONGEST,
            "confirmed_at": batch.now if self.confirmed else None,
        }
        batch.tx.execute(insert(tables.session).values(row))
        return Answer(200)


@dataclass(frozen=True)
class Seen:
    """Says that a session was used, so that it does not end as idle."""

    digest: bytes

    def carry_out(self, batch: Batch) -> Answer:
        here = tables.session.c.digest == self.digest
        batch.tx.execute(update(tables.session).where(here).values(seen=batch.now))
        return Answer(200)


@dataclass(frozen=True)
class SignOut:
    """Ends a session."""

    digest: bytes

    def carry_out(self, batch: Batch) -> Answer:
        batch.tx.execute(delete(tables.session).where(tables.session.c.digest == self.digest))
        return Answer(200)


# ------------------------------------------------------------------ people


@dataclass(frozen=True)
class Passkey:
    """What is kept of a passkey: its public half, its counter and a name."""

    id: bytes
    public_key: bytes
    counter: int
    name: str = ""

    def write(self, batch: Batch, person: bytes) -> None:
        plain = {"key": self.public_key.hex(), "counter": self.counter, "name": self.name}
        write(batch, person, PASSKEY, self.id, plain)


@dataclass(frozen=True)
class Code:
    """A recovery code as it is kept: where to find it, and its Argon2id digest."""

    lookup: bytes
    salt: bytes
    digest: bytes

    def write(self, batch: Batch, person: bytes) -> None:
        plain = {"salt": self.salt.hex(), "digest": self.digest.hex()}
        write(batch, person, RECOVERY, self.lookup, plain)


@dataclass(frozen=True)
class OpenAccount:
    """A person joins: an account, a passkey, recovery codes and a session, all or nothing."""

    passkey: Passkey
    codes: tuple[Code, ...]
    session: NewSession
    invitation: bytes = b""
    """It is spent with the account; empty: nobody was invited."""

    def carry_out(self, batch: Batch) -> Answer:
        if self.invitation:
            _spent(batch, self.invitation)
        person, _ = join(batch)
        self.passkey.write(batch, person)
        for code in self.codes:
            code.write(batch, person)
        return replace(self.session, person=person).carry_out(batch)


@dataclass(frozen=True)
class AddPasskey:
    """A person adds a passkey, for example after a recovery code was used."""

    person: bytes
    passkey: Passkey

    def carry_out(self, batch: Batch) -> Answer:
        self.passkey.write(batch, self.person)
        return Answer(201)


@dataclass(frozen=True)
class UsePasskey:
    """A person signed in or confirmed: the counter goes up and a session begins."""

    person: bytes
    passkey: Passkey
    session: NewSession

    def carry_out(self, batch: Batch) -> Answer:
        """Write both. A counter that somebody else raised meanwhile is a copied passkey."""
        found = find_credential(batch.tx, batch.keys, self.passkey.id, PASSKEY)
        if found is None or found.person != self.person:
            raise NotThere("this passkey is not known here. Use another one.")
        counter = int(found.plain["counter"])
        if counter and self.passkey.counter <= counter:
            raise ConsentError(
                "this passkey was used with a lower counter than before: it may have been copied."
            )
        remove(batch, self.passkey.id)
        self.passkey.write(batch, self.person)
        return self.session.carry_out(batch)


@dataclass(frozen=True)
class UseCode:
    """A person signs in with a recovery code, which is spent."""

    person: bytes
    lookup: bytes
    session: NewSession

    def carry_out(self, batch: Batch) -> Answer:
        if not remove(batch, self.lookup):
            raise CodeNotKnown()
        self.session.carry_out(batch)
        left = select(tables.credential.c.lookup).where(
            tables.credential.c.person == self.person, tables.credential.c.kind == RECOVERY
        )
        return Answer(200, {"codes_left": len(batch.tx.execute(left).all())})


@dataclass(frozen=True)
class NewCodes:
    """A person gets new recovery codes; all earlier ones are void."""

    person: bytes
    codes: tuple[Code, ...] = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)

    def carry_out(self, batch: Batch) -> Answer:
        rows = tables.credential
        mine = (rows.c.person == self.person) & (rows.c.kind == RECOVERY)
        batch.tx.execute(delete(rows).where(mine))
        for code in self.codes:
            code.write(batch, self.person)
        return Answer(201, {"recovery_codes": list(self.texts)})


@dataclass(frozen=True)
class Return:
    """A person whose passkey is lost adds one with a recovery code, which is spent by this alone.

    After the last code they get new ones: whoever was brought in by an operator has one.
    """

    code: UseCode
    passkey: Passkey
    codes: NewCodes

    @property
    def person(self) -> bytes:
        return self.code.person

    def carry_out(self, batch: Batch) -> Answer:
        used = self.code.carry_out(batch)
        self.passkey.write(batch, self.person)
        if used.body["codes_left"]:
            return Answer(201, {"recovery_codes": [], **used.body})
        return self.codes.carry_out(batch)


@dataclass(frozen=True)
class MakeAgentCode:
    """A person makes a code with which an agent may ask for them, once and until a time."""

    person: bytes
    code: bytes = field(repr=False)
    until: datetime

    def carry_out(self, batch: Batch) -> Answer:
        """Seal it. Earlier codes of this person end."""
        rows = tables.credential
        mine = (rows.c.person == self.person) & (rows.c.kind == AGENT_CODE)
        batch.tx.execute(delete(rows).where(mine))
        until = self.until.isoformat()
        write(batch, self.person, AGENT_CODE, self.code, {"until": until})
        return Answer(201, {"token": self.code.decode(), "expires": until})


def spend_agent_code(batch: Batch, lookup: bytes) -> bytes | None:
    """Return whose code this is and delete it; None if it is unknown, used or too old."""
    found = find_by_lookup(batch.tx, batch.keys, lookup, AGENT_CODE)
    if found is None or datetime.fromisoformat(found.plain["until"]) < batch.now:
        return None
    batch.tx.execute(delete(tables.credential).where(tables.credential.c.lookup == lookup))
    return found.person


# ------------------------------------------------------------------ operators, tokens, agents


@dataclass(frozen=True)
class MakeToken:
    """A token for scripts, or an invitation: its digest, what it opens, and until when."""

    digest: bytes
    name: str
    role: str
    scope: tuple[str, ...]
    until: datetime
    text: str = field(default="", repr=False)
    """The token itself, for whoever sends the request again; empty: it is told another way."""

    def carry_out(self, batch: Batch) -> Answer:
        row = {
            "digest": self.digest,
            "name": self.name,
            "role": self.role,
            "scope": " ".join(self.scope),
            "at": batch.now,
            "expires": self.until,
        }
        batch.tx.execute(insert(tables.token).values(row))
        return Answer(201, {"token": self.text, "expires": self.until.isoformat()})


@dataclass(frozen=True)
class RevokeToken:
    """A token or an invitation ends before its time. `name`: the first half of its digest, hex."""

    name: str

    def carry_out(self, batch: Batch) -> Answer:
        digests = batch.tx.scalars(select(tables.token.c.digest))
        found = [one for one in digests if token_name(bytes(one)) == self.name]
        if not found:
            raise NotThere("there is no such token. List them: they may have ended.")
        batch.tx.execute(delete(tables.token).where(tables.token.c.digest == found[0]))
        return Answer(200, {"revoked": self.name})


def token_name(digest: bytes) -> str:
    """Return by what a token is told apart: a part of its digest, which opens nothing."""
    return digest[:16].hex()


@dataclass(frozen=True)
class OpenOperator:
    """An invited operator registers a passkey; the invitation is spent."""

    invitation: bytes
    operator: bytes
    passkey: Passkey
    session: NewSession

    def carry_out(self, batch: Batch) -> Answer:
        invited = _spent(batch, self.invitation)
        row = {
            "id": self.operator,
            "name": invited.name,
            "role": invited.role.removeprefix(INVITED),
            "lookup": batch.keyed(CREDENTIALS, self.passkey.id),
            "public_key": self.passkey.public_key,
            "counter": self.passkey.counter,
            "at": batch.now,
        }
        batch.tx.execute(insert(tables.operator).values(row))
        return self.session.carry_out(batch)


def _spent(batch: Batch, invitation: bytes) -> Any:
    """Return an invitation that cannot be used again, or refuse."""
    invited = find_token(batch.tx, invitation, batch.now)
    if invited is None or not invited.role.startswith(INVITED):
        raise NotThere("this invitation is not known here, was used, or is too old.")
    batch.tx.execute(delete(tables.token).where(tables.token.c.digest == invitation))
    return invited


@dataclass(frozen=True)
class UseOperatorPasskey:
    """An operator signs in or confirms."""

    operator: bytes
    counter: int
    session: NewSession

    def carry_out(self, batch: Batch) -> Answer:
        here = tables.operator.c.id == self.operator
        batch.tx.execute(update(tables.operator).where(here).values(counter=self.counter))
        return self.session.carry_out(batch)


@dataclass(frozen=True)
class AddAgent:
    """The operator admits an agent by the key that its directory entry states."""

    id: str
    name: str
    public_key: str

    def carry_out(self, batch: Batch) -> Answer:
        """Write it; the same id again replaces name and key, and ends its token."""
        batch.tx.execute(delete(tables.agent).where(tables.agent.c.id == self.id))
        row = {"id": self.id, "name": self.name, "public_key": self.public_key, "at": batch.now}
        batch.tx.execute(insert(tables.agent).values(row))
        return Answer(201, {"agent-id": self.id})


@dataclass(frozen=True)
class GiveAgentToken:
    """An agent that signed for it gets a token; its earlier one ends."""

    agent: str
    digest: bytes

    def carry_out(self, batch: Batch) -> Answer:
        here = tables.agent.c.id == self.agent
        batch.tx.execute(update(tables.agent).where(here).values(token=self.digest))
        return Answer(200)
