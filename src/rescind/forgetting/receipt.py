"""Signed receipts of forgetting: what was requested, done, measured and kept.

A receipt is `receipt.json` in one canonical form (UTF-8, sorted keys, one space of indentation, no
NaN, one newline at the end), so that any changed byte is detected. Its signature (Ed25519) is over
the same text without the line `"signature"`; `previous` is the SHA-256 of the receipt before.

A receipt does not reveal records. Digests that depend on them are keyed with 32 random bytes that
only the requester gets: a plain digest of one of 23 million (user, item) pairs, or of a world with
one unknown pair, could be found by trying all pairs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from rescind.audits.finding import Finding, overall
from rescind.errors import ConfigError, DataError, suggest
from rescind.forgetting import keys
from rescind.storage.provenance import versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from rescind.core.records import Event

FORMAT = 1
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""UTC to the second; such texts sort by time."""
LARGEST = 1 << 20
"""Largest file in bytes that is read. A receipt has a few thousand."""

LEVELS = {
    "L0": "hidden and no longer used",
    "L1": "the bytes are erased",
    "L2": "the influence is removed approximately, or exactly as only the method claims; the "
    "verdict says what an audit saw of it",
    "L3": "the influence is removed exactly: the model is one that never had the records",
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


@dataclass(frozen=True)
class Asked:
    """The request, without its records."""

    kind: str
    """Unshare, Erase or Withdraw."""
    records: int
    people: int
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
    """Not sealed, so that users of a model can check that it is this one."""
    rounds: int
    client_rounds: int
    """Participating clients, summed over rounds."""
    online: Mapping[str, int]
    """Number of clients that had to be online, by role ("requester", "others")."""
    seconds: float
    data: str = ""
    """Digest of a public dataset. Not sealed, so leave it empty for private data."""


@dataclass(frozen=True)
class Kept:
    """Something that is kept."""

    name: str
    bytes: int
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
    """Evidence of exactness that can be checked with the data; `sealed:` also needs the key."""
    code: Mapping[str, str]
    """Versions and the commit."""
    previous: str
    """SHA-256 of the receipt before, "" for the first."""
    time: str
    """UTC, as 2026-01-31T12:00:00Z."""
    public_key: str
    signature: str = ""
    format: int = FORMAT


@dataclass(frozen=True)
class Issued:
    """A receipt and the secret key for the requester only."""

    receipt: Receipt
    key: bytes = field(repr=False)


def issue(
    event: Event,
    done: Done,
    kept: Sequence[Kept],
    findings: Sequence[Finding],
    *,
    records: int | None = None,
    not_covered: Sequence[str] = (),
    claims: Mapping[str, str] | None = None,
    sealed_claims: Mapping[str, str] | None = None,
    previous: bytes | None = None,
    signer: Ed25519PrivateKey | None = None,
) -> Issued:
    """Seal, date and sign the receipt of a forgetting.

    records: how many the event removed; needed if the event lists none (Withdraw)
    sealed_claims: claims that depend on the records, such as digests of the earlier state
    previous: the bytes of the receipt before        signer: default: this user's key
    """
    signer, key = signer or keys.signing_key(), keys.new_secret()
    hidden = {name: sealed(text, key) for name, text in (sealed_claims or {}).items()}
    unsigned = Receipt(
        asked=_asked(event, records, key),
        done=replace(
            done,
            world_before=sealed(done.world_before, key),
            world_after=sealed(done.world_after, key),
            model_before=sealed(done.model_before, key),
            seconds=float(done.seconds),
        ),
        kept=tuple(kept),
        findings=tuple(findings),
        verdict=overall(findings),
        not_covered=(*NOT_COVERED, *(s for s in not_covered if s not in NOT_COVERED)),
        claims={**(claims or {}), **hidden},
        code=versions(),
        previous="" if previous is None else digest(previous),
        time=datetime.now(UTC).strftime(TIME_FORMAT),
        public_key=keys.public_text(signer),
    )
    signature = keys.PREFIX + signer.sign(signed_bytes(unsigned)).hex()
    # Parsed from its bytes, so that the caller gets what every reader gets.
    return Issued(parse(canonical(replace(unsigned, signature=signature))), key)


def _asked(event: Event, count: int | None, key: bytes) -> Asked:
    kind, records = type(event).__name__, getattr(event, "records", None)
    if count is None and records is None:
        raise ConfigError(f"a {kind} lists no records. The receipt needs their number: records=.")
    people = 1 if records is None else len(records.client.unique())
    removed = len(records) if count is None and records is not None else count
    return Asked(kind, int(removed or 0), people, event.digest(key))


def sealed(text: str, key: bytes) -> str:
    """Return a digest under the requester's key, so that guesses need the key."""
    if len(key) != keys.SECRET_BYTES:
        raise ConfigError(f"a seal needs a key of {keys.SECRET_BYTES} bytes, got {len(key)}.")
    hashed = hashlib.blake2b(text.encode(), key=key, digest_size=32, person=b"rescind seal")
    return "sealed:" + hashed.hexdigest()


def digest(data: bytes) -> str:
    """Return the digest of a receipt's bytes, which the next receipt states."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def write(issued: Issued, path: Path) -> Path:
    """Write the receipt, and the key next to it (`.key`, mode 600); return the key's path.

    Give the key to the requester and delete it here: with it, guesses can be tested.
    """
    from rescind.core.files import write_atomically

    secret = path.with_suffix(".key")
    keys.write_secret(secret, issued.key)
    write_atomically(path, canonical(issued.receipt))
    return secret


def canonical(receipt: Receipt) -> bytes:
    """Return the canonical bytes of a receipt."""
    return _text(_plain(receipt))


def signed_bytes(receipt: Receipt) -> bytes:
    """Return the bytes that are signed: the receipt without its signature."""
    table = _plain(receipt)
    del table["signature"]
    return _text(table)


def _text(table: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(table, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1)
        return f"{text}\n".encode()
    except (TypeError, ValueError) as error:  # NaN, lone surrogates, tensors
        raise DataError(f"a receipt cannot hold this: {error}. Give numbers and text.") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Finding):
        return value.facts()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(inside) for name, inside in value.items()}
    return [_plain(inside) for inside in value] if isinstance(value, list | tuple) else value


def parse(data: bytes) -> Receipt:
    """Parse the canonical bytes of a receipt, or raise `DataError`. Does not verify it."""
    if len(data) > LARGEST:
        raise DataError(
            f"{len(data)} bytes are too many for a receipt: at most {LARGEST} are read."
        )
    try:
        table = json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is not JSON in UTF-8 ({error}).") from None
    if not isinstance(table, dict) or not {"asked", "done", "format"} <= table.keys():
        raise DataError("it is JSON, but not a receipt of rescind.")
    if table["format"] != FORMAT:
        raise DataError(f"its format is {table['format']!r}; this version reads {FORMAT}.")
    try:
        receipt: Receipt = _typed(table, Receipt, "the receipt")
        same = canonical(receipt) == data
    except RecursionError:
        raise DataError("it is nested too deeply.") from None
    if not same:
        raise DataError("its bytes are not in canonical form: it was changed or rewritten.")
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


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _typed(value: Any, kind: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _table(value, kind, where)
    if type(None) in inner:
        return None if value is None else _typed(value, inner[0], where)
    if origin is tuple and isinstance(value, list):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(_typed(one, k, f"{where}[{n}]") for n, (one, k) in pairs)
    if origin is Mapping and isinstance(value, dict):
        return {name: _typed(one, inner[1], f"{where}.{name}") for name, one in value.items()}
    if isinstance(kind, type) and type(value) is kind:
        return value
    expected = getattr(kind, "__name__", kind)
    raise DataError(f"{where} is {str(value)[:40]!r}, expected {expected}.")


def _table(value: Any, kind: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
        given = sorted(value) if isinstance(value, dict) else str(value)[:40]
        raise DataError(f"{where} has {given}, expected {sorted(hints)}.")
    return kind(**{n: _typed(value[n], hint, f"{where}.{n}") for n, hint in hints.items()})


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    unsigned = ("curves", "samples") if kind is Finding else ()
    return {name: hint for name, hint in get_type_hints(kind).items() if name not in unsigned}
