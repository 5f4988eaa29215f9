"""Signed receipts of forgetting: what was requested, done, measured and kept.

A receipt is `receipt.json` in one canonical form (UTF-8, sorted keys, one space of indentation, no
NaN, one newline at the end), so that any changed byte is detected. Its signature (Ed25519) is over
the same text without the line `"signature"`; `previous` is the SHA-256 of the receipt before.

A receipt does not reveal records, nor whose they were. What a stranger could try out stands in it
under a key of 32 random bytes that only the requester gets: a plain digest of one of 23 million
(user, item) pairs could be found by trying all pairs, and a count and a model's digest name a
person to whoever has the same public data. Counts are bands for strangers (`10-99`); the exact
numbers are encrypted in `sealed` (`opened`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.audits.finding import Finding, overall
from rescind.errors import ConfigError, DataError, suggest
from rescind.privacy import keys
from rescind.privacy.sealing import BOUND, band, bound, decrypt, encrypt, run_key, sealed
from rescind.receipts import parts
from rescind.receipts.form import from_bytes, hints_of, plain, to_bytes, to_compact, typed
from rescind.storage.provenance import versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from rescind.core.labels import Labels
    from rescind.core.records import Event

FORMAT = 2
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""UTC to the second; such texts sort by time."""
RUN_KEY = "run.key"
LARGEST = 1 << 20
"""Largest file in bytes that is read. A receipt has a few thousand."""

LEVELS = {
    "L0": "hidden and no longer used",
    "L1": "the bytes are erased; it is not shown that their influence is gone from the model",
    "L2": "the influence is removed approximately: an audit found none, or all rounds that can "
    "still be repeated were trained again",
    "L3": "the influence is removed exactly: the model is one that never had what was taken back",
}
"""Levels of forgetting, the weakest first."""

NOT_COVERED = (
    "Copies and exports that people downloaded earlier.",
    "Models on other devices, until they next check in.",
    "Backups, until they expire or the erasure is applied to them.",
    "Settings (rounds, learning rates) that were chosen while the records were there.",
    "What people have already seen or learnt because of the records.",
)
"""What forgetting in a model cannot reach. Stated in every receipt."""


Count = int | str
"""A number, or its band for strangers, such as "10-99"."""
STATEMENTS = ("audit", "escalation", "exactness")
"""Findings whose note says what was done. The notes of others have numbers, so they are sealed."""
NAMES = "names"
"""The claim that covers the original ids in a request, under the requester's key."""
SECTIONS = ("asked", "done", "kept", "findings", "claims")
"""Parts with numbers that depend on the records: coarse in the open, exact in the sealed part."""


@dataclass(frozen=True)
class Asked:
    """The request, without its records."""

    kind: str
    """Unshare, Erase or Withdraw."""
    records: Count
    people: Count
    digest: str
    """The event's digest under the requester's key."""


@dataclass(frozen=True)
class Done:
    """What was done, with plain digests; `issue` seals those that depend on the records."""

    method: Mapping[str, Any]
    """The method's name and all its fields."""
    unlearning: str
    """The unlearner with changed settings, such as "FedShareUnlearn (damping = measured)"."""
    level: str
    """One of `LEVELS`."""
    world_before: str
    world_after: str
    model_before: str
    model_after: str
    """Bound to the run: whoever has the run and its key can check that it holds this model."""
    rounds: Count
    client_rounds: Count
    """Participating clients, summed over rounds."""
    online: Mapping[str, Count]
    """Number of clients that had to be online, by role ("requester", "others")."""
    seconds: float | str
    data: str = ""
    """Digest of a public dataset. Not sealed, so leave it empty for private data."""


@dataclass(frozen=True)
class Kept:
    """Something that is kept."""

    name: str
    bytes: Count
    says: str
    """One sentence: what it is, and why it may stay."""


@dataclass(frozen=True)
class Receipt:
    """A receipt, field by field as in `receipt.json`."""

    asked: Asked
    done: Done
    kept: tuple[Kept, ...]
    findings: tuple[Finding, ...]
    verdict: str
    not_covered: tuple[str, ...]
    claims: Mapping[str, str]
    """Evidence of exactness that can be checked with the data; `bound:` also needs the run's key,
    `sealed:` the requester's."""
    code: Mapping[str, str]
    """Versions and the commit; of a method in a user's own file, its name and digest."""
    previous: str
    """SHA-256 of the receipt before, "" for the first."""
    time: str
    """UTC, as 2026-01-31T12:00:00Z."""
    public_key: str
    sealed: str = ""
    """The exact numbers of `SECTIONS`, encrypted for the requester."""
    signature: str = ""
    format: int = FORMAT


@dataclass(frozen=True)
class Issued:
    """A receipt and the secret key for the requester only."""

    receipt: Receipt
    key: bytes = field(repr=False)

    @property
    def exact(self) -> Receipt:
        """Return the receipt with exact numbers, as the requester sees it."""
        return opened(self.receipt, self.key)


@dataclass(frozen=True)
class Draft:
    """What a receipt says before it is sealed, dated and signed: exact numbers, plain digests."""

    asked: Asked
    done: Done
    kept: tuple[Kept, ...]
    findings: tuple[Finding, ...]
    not_covered: tuple[str, ...]
    claims: Mapping[str, str]
    bound: Mapping[str, str]
    """Digests of what remains, for whoever has the run."""
    hidden: Mapping[str, str]
    """Claims that depend on the records, such as digests of the earlier state."""
    code: Mapping[str, str]
    time: str

    def to_text(self) -> str:
        """Return it as text, to be kept until it is signed. It names nobody."""
        return to_bytes(plain(self)).decode()

    @classmethod
    def of_text(cls, text: str) -> Draft:
        drafted: Draft = typed(from_bytes(text.encode()), cls, "the draft")
        return drafted


def issue(
    event: Event | Asked,
    done: Done,
    kept: Sequence[Kept],
    findings: Sequence[Finding],
    *,
    previous: bytes | None = None,
    signer: Ed25519PrivateKey | None = None,
    key: bytes | None = None,
    **more: Any,
) -> Issued:
    """Seal, date and sign the receipt of a forgetting.

    previous: the bytes of the receipt before        signer: default: this home's key
    key: the requester's. Default: a new one    more: as in `prepare`
    """
    key = key or keys.new_secret()
    return finish(prepare(event, done, kept, findings, key, **more), key, previous, signer)


def prepare(
    event: Event | Asked,
    done: Done,
    kept: Sequence[Kept],
    findings: Sequence[Finding],
    key: bytes,
    *,
    records: int | None = None,
    not_covered: Sequence[str] = (),
    claims: Mapping[str, str] | None = None,
    bound_claims: Mapping[str, str] | None = None,
    sealed_claims: Mapping[str, str] | None = None,
    at: datetime | None = None,
    labels: Labels | None = None,
    code: Mapping[str, str] | None = None,
) -> Draft:
    """Return what a receipt will say, while the records are there.

    event: what was asked. Who has erased the records already gives an `Asked` that was prepared
    with the requester's `key` while they were there
    records: how many the event removed; needed if the event lists none (Withdraw)
    bound_claims: digests of what remains, for whoever has the run
    sealed_claims: claims that depend on the records, such as digests of the earlier state
    at: when it was forgotten. Default: now
    labels: original ids of users and items, to cover them as well as the run's numbers
    code: files and digests of methods outside rescind, beside the versions of libraries
    """
    people = {} if isinstance(event, Asked) else covered(event, key, labels)  # prepared: one person
    return Draft(
        asked=event if isinstance(event, Asked) else _asked(event, records, key),
        done=replace(done, seconds=float(done.seconds)),
        kept=tuple(kept),
        findings=tuple(findings),
        not_covered=(*NOT_COVERED, *(s for s in not_covered if s not in NOT_COVERED)),
        claims={**people, **(claims or {})},
        bound=dict(bound_claims or {}),
        hidden=dict(sealed_claims or {}),
        code=versions() | dict(code or {}),
        time=(at or datetime.now(UTC)).strftime(TIME_FORMAT),
    )


def finish(
    draft: Draft,
    key: bytes,
    previous: bytes | None = None,
    signer: Ed25519PrivateKey | None = None,
) -> Issued:
    """Seal and sign a draft. The same draft gives other bytes each time: its box has a nonce."""
    signer, done = signer or keys.signing_key(), draft.done
    hidden = {name: sealed(text, key) for name, text in draft.hidden.items()}
    exact = Receipt(
        asked=draft.asked,
        done=replace(
            done,
            world_before=sealed(done.world_before, key),
            world_after=sealed(done.world_after, key),
            model_before=sealed(done.model_before, key),
        ),
        kept=draft.kept,
        findings=draft.findings,
        verdict=overall(draft.findings),
        not_covered=draft.not_covered,
        claims={**draft.claims, **draft.bound, **hidden},
        code=draft.code,
        previous="" if previous is None else digest(previous),
        time=draft.time,
        public_key=keys.public_text(signer),
    )
    inside = to_compact({name: plain(getattr(exact, name)) for name in SECTIONS})
    unsigned = replace(_coarse(exact, draft.bound, key), sealed=encrypt(inside, key))
    # Parsed from its bytes, so that the caller gets what every reader gets.
    return Issued(parse(canonical(sign(unsigned, signer))), key)


def sign(unsigned: Receipt, signer: Ed25519PrivateKey) -> Receipt:
    """Return the receipt with a signature: the same bits each time (Ed25519)."""
    signature = keys.PREFIX + signer.sign(signed_bytes(unsigned)).hex()
    return replace(unsigned, signature=signature)


def covered(event: Event, key: bytes, labels: Labels | None) -> dict[str, str]:
    """Return the claims by which a requester, or one of many, knows their own request."""
    if labels is None:
        return parts.claim(event, key)
    from rescind.storage.events import names_text

    return {NAMES: sealed(names_text(event, labels), key), **parts.claim(event, key, labels)}


def _asked(event: Event, count: int | None, key: bytes) -> Asked:
    kind, records = type(event).__name__, getattr(event, "records", None)
    if count is None and records is None:
        raise ConfigError(f"a {kind} lists no records. The receipt needs their number: records=.")
    people = 1 if records is None else len(records.client.unique())
    removed = len(records) if count is None and records is not None else count
    return Asked(kind, int(removed or 0), people, event.digest(key))


def _coarse(exact: Receipt, closed: Collection[str], key: bytes) -> Receipt:
    """Return what strangers see: bands, verdicts and keyed digests. closed: claims to bind"""
    asked, done, run = exact.asked, exact.done, run_key(key)
    return replace(
        exact,
        asked=replace(asked, records=_band(asked.records), people=_band(asked.people)),
        done=replace(
            done,
            model_after=bound(done.model_after, run) if done.model_after else "",
            rounds=_band(done.rounds),
            client_rounds=_band(done.client_rounds),
            online={role: _band(count) for role, count in done.online.items()},
            seconds=_band(done.seconds),
        ),
        kept=tuple(replace(one, bytes=_band(one.bytes)) for one in exact.kept),
        findings=tuple(
            Finding(f.check, f.verdict, note=f.note if f.check in STATEMENTS else "")
            for f in exact.findings
        ),
        claims={n: bound(text, run) if n in closed else text for n, text in exact.claims.items()},
    )


def _band(number: float | str) -> str:
    return number if isinstance(number, str) else band(number)


def opened(receipt: Receipt, key: bytes) -> Receipt:
    """Return a receipt with its exact numbers, or raise `DataError` if the key is another one.

    Also raises if they contradict what the receipt says in the open.
    """
    table, hints = from_bytes(decrypt(receipt.sealed, key)), hints_of(Receipt)
    if not isinstance(table, dict) or table.keys() != set(SECTIONS):
        raise DataError("its sealed part does not hold the numbers of a receipt.")
    exact = replace(receipt, **{n: typed(table[n], hints[n], n) for n in SECTIONS})
    closed = [name for name, text in receipt.claims.items() if text.startswith(BOUND)]
    if _coarse(exact, closed, key) != receipt:
        raise DataError("its sealed part contradicts what it says in the open.")
    return exact


def digest(data: bytes) -> str:
    """Return the digest of a receipt's bytes, which the next receipt states."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def write(issued: Issued, path: Path) -> Path:
    """Write the receipt, and two keys next to it (mode 600); return the path of the requester's.

    receipt.key: give it to the requester and delete it here: with it, guesses can be tested.
    run.key: stays with the run, and shows that the run holds the model of the receipt.
    """
    from rescind.core.files import write_atomically

    secret = path.with_suffix(".key")
    keys.write_secret(secret, issued.key)
    if issued.receipt.done.model_after.startswith(BOUND):
        keys.replace_secret(path.with_name(RUN_KEY), run_key(issued.key))
    write_atomically(path, canonical(issued.receipt))
    return secret


def canonical(receipt: Receipt) -> bytes:
    """Return the canonical bytes of a receipt."""
    return to_bytes(plain(receipt))


def signed_bytes(receipt: Receipt) -> bytes:
    """Return the bytes that are signed: the receipt without its signature."""
    table: dict[str, Any] = plain(receipt)
    del table["signature"]
    return to_bytes(table)


def parse(data: bytes) -> Receipt:
    """Parse the canonical bytes of a receipt, or raise `DataError`. Does not verify it."""
    if len(data) > LARGEST:
        raise DataError(f"it has more than {LARGEST:,} bytes. Give receipt.json, the signed file.")
    table = from_bytes(data)
    if not isinstance(table, dict) or not {"asked", "done", "format"} <= table.keys():
        raise DataError("it is JSON, but no receipt. Give receipt.json, the signed file.")
    if table["format"] != FORMAT:
        raise DataError(f"its format is {table['format']!r}; this version reads {FORMAT}.")
    try:
        receipt: Receipt = typed(table, Receipt, "the receipt")
        same = canonical(receipt) == data
    except RecursionError:
        raise DataError("it is nested too deeply.") from None
    if not same:
        raise DataError(
            "its bytes are not in canonical form: a program wrote it anew. Ask for the file again, "
            "and save it without opening it."
        )
    if receipt.done.level not in LEVELS:
        raise DataError(f"its level is {receipt.done.level!r}. {suggest('', LEVELS)}")
    if not _is_time(receipt.time):
        raise DataError(f"its time is {receipt.time!r}, expected UTC as 2026-01-31T12:00:00Z.")
    return receipt


def _is_time(text: str) -> bool:
    try:
        return datetime.strptime(text, TIME_FORMAT).strftime(TIME_FORMAT) == text
    except ValueError:
        return False
