"""Check that the receipt of a service is about what one took back, from its acknowledgement.

A service (`rescind serve`) hands out no request file. Its answer has an acknowledgement instead:
the entry of the log, and what opens it (`proof.changes`). A person's page saves the same. Under
the requester's key, a receipt has a digest of the same statement, so with this key the signed
receipt itself names the records. The page checks against the log, too (`static/mine.js`), which
is not at hand offline. Needs no torch.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from typing import Any

from rescind.core.claims import ENTRY
from rescind.core.words import count_of
from rescind.errors import DataError
from rescind.privacy.keys import SECRET_BYTES
from rescind.privacy.sealing import sealed
from rescind.proof.changes import ASKED, entry_under, statement
from rescind.proof.log_folder import ENTRY as ENTRY_BYTES
from rescind.proof.notes import Key, vouched
from rescind.receipts.receipt import Receipt
from rescind.receipts.verify import Check

LARGEST = 1 << 24
"""Bytes of a file that are read: it may name all items of a large catalogue."""
EXPECTED = (
    "Expected is the whole answer of the service to your request (JSON with `acknowledgement`), or "
    "the file that its page saves (acknowledgement ↓)."
)
FEW = 6
"""Items that are tried in every order: at most 720 orders."""
MOST_NAMES = 20
"""Items in a line."""

Claim = Callable[[Receipt], Check]


@dataclass(frozen=True)
class Acknowledgement:
    """What a service answered at once: the entry of a change in its log, and what opens it."""

    kind: str
    seq: int
    time: str
    entry: bytes
    leaf: int
    opening: bytes
    items: tuple[str, ...] | None = None
    """Original ids, if it names any."""
    checkpoint: str | None = None
    """The log as it was signed when the service answered."""
    key: bytes | None = None
    """The key of the receipt, if the service made it."""

    def opens(self, items: Sequence[str]) -> bytes | None:
        """Return the statement about these items that the entry commits to, in any usual order."""
        for ordered in _orders(items):
            said = statement(self.kind, ordered, self.time, self.seq)
            if hmac.compare_digest(entry_under(self.opening, said), self.entry):
                return said
        return None


def read(data: bytes) -> Acknowledgement:
    """Read an answer of the API, or what the page saves; raise `DataError` for anything else."""
    try:
        table = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise DataError(f"it is no JSON text. {EXPECTED}") from None
    if not isinstance(table, dict):
        raise DataError(f"it is no acknowledgement of a service. {EXPECTED}")
    inside = table.get("acknowledgement", table)
    if not isinstance(inside, dict) or not {"entry", "leaf", "opening"} <= inside.keys():
        raise DataError(f"it is no acknowledgement of a service. {EXPECTED}")
    if (kind := inside.get("kind")) not in ASKED:
        raise DataError(
            f"it is about '{kind}', which gets no receipt. Give the answer to a take-back "
            f"({', '.join(ASKED)})."
        )
    point = inside.get("checkpoint")
    return Acknowledgement(
        kind,
        _number(inside, "seq"),
        _text(inside, "time"),
        _bytes(inside, "entry", ENTRY_BYTES),
        _number(inside, "leaf"),
        _bytes(inside, "opening", SECRET_BYTES),
        _items(inside.get("items", table.get("items"))),
        None if point is None else _text(inside, "checkpoint"),
        _bytes(table, "receipt_key", SECRET_BYTES) if "receipt_key" in table else None,
    )


def _wrong(name: str, what: str) -> DataError:
    return DataError(f"its `{name}` is not {what}: it was changed or cut. {EXPECTED}")


def _number(table: Mapping[str, Any], name: str) -> int:
    if type(found := table.get(name)) is not int or found < 0:
        raise _wrong(name, "a number")
    return found


def _text(table: Mapping[str, Any], name: str) -> str:
    if type(found := table.get(name)) is not str or not _is_text(found):
        raise _wrong(name, "a text")
    return found


def _bytes(table: Mapping[str, Any], name: str, count: int) -> bytes:
    found = table.get(name)
    if type(found) is not str or not re.fullmatch(f"[0-9a-f]{{{2 * count}}}", found):
        raise _wrong(name, f"{2 * count} hexadecimal digits")
    return bytes.fromhex(found)


def _items(found: Any) -> tuple[str, ...] | None:
    if found is None:
        return None
    if type(found) is not list or not all(type(one) is str and _is_text(one) for one in found):
        raise _wrong("items", "a list of original ids")
    return tuple(dict.fromkeys(found))


def _is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8: JSON may escape half a character."""
    return not re.search("[\ud800-\udfff]", text)


def _orders(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """Return orders that the entry may have: that of the catalogue, which is not at hand.

    An acknowledgement names items in this order. One that a page of before saved, or --item, may
    not: then the usual orders of catalogues are tried, and all orders of a few items.
    """
    few = permutations(items) if len(items) <= FEW else ()
    return chain([items, sorted(items), sorted(items, key=_by_number)], few)


def _by_number(item: str) -> list[str | int]:
    """Return what sorts item-9 before item-10."""
    parts = re.split("([0-9]+)", item)
    return [int(one) if n % 2 else one for n, one in enumerate(parts)]


def claims(
    told: Acknowledgement,
    given: Sequence[str] = (),
    key: bytes | None = None,
    log: Key | None = None,
) -> list[Claim]:
    """Return the checks of a receipt against an acknowledgement.

    given: original ids of the records that it should be about; needed if it names none
    key: of the receipt    log: the key of the service's log
    """
    items = tuple(dict.fromkeys(given)) if told.items is None else told.items
    said = told.opens(items)
    alone = [_opened(told, items, said), *_compared(told, given), *_then(told, log)]
    return [
        lambda receipt: _place(told, receipt),
        *(lambda _, one=one: one for one in alone),
        lambda receipt: _stated(said, key, receipt),
    ]


def _place(told: Acknowledgement, receipt: Receipt) -> Check:
    """Compare the entry of the log, by its number, and the kind."""
    if ENTRY not in receipt.claims:
        says = "it names no log entry, so it is no receipt of a service, and has no acknowledgement"
        return Check(False, says)
    if receipt.claims[ENTRY] != str(told.leaf):
        says = (
            f"it is about another change: it names index {receipt.claims[ENTRY]} of the log, and "
            f"the acknowledgement index {told.leaf}"
        )
        return Check(False, says)
    if receipt.asked.kind != ASKED[told.kind]:
        says = f"it is about {receipt.asked.kind}, and the acknowledgement about '{told.kind}'"
        return Check(False, says)
    place = f"entry {told.leaf + 1:,} of the log (index {told.leaf:,})"
    return Check(True, f"it answers the '{told.kind}' that the acknowledgement has in {place}")


def _opened(told: Acknowledgement, items: Sequence[str], said: bytes | None) -> Check:
    """Say what the entry of the acknowledgement is about, which only its opening shows."""
    if said is not None:
        these = f"these {len(items):,} records" if len(items) > 1 else "this record"
        named = f"exactly {these}: {_named(items)}" if items else "no record: nothing was lent"
        return Check(True, f"the acknowledgement is about {named}")
    if told.items is not None:
        says = (
            "the acknowledgement was changed: its opening does not open its entry with the "
            "records, the kind, the time and the number that it states"
        )
        return Check(False, says)
    if not items:
        says = (
            "which records it is about was not checked: this acknowledgement names none. Give each "
            "with --item"
        )
        return Check(True, says, note=True)
    says = "the acknowledgement is not about exactly the given records (--item), or it was changed"
    if len(items) > FEW:
        says += ". If they are the right ones, give them in the order of the service's catalogue"
    return Check(False, says)


def _compared(told: Acknowledgement, given: Sequence[str]) -> list[Check]:
    """Compare the records that somebody expects with those that the acknowledgement names."""
    if told.items is None or not given or {*given} == {*told.items}:
        return []
    more = [one for one in told.items if one not in {*given}]
    missing = [one for one in dict.fromkeys(given) if one not in {*told.items}]
    parts = [f"{_named(missing)} not in it"] if missing else []
    parts += [f"{_named(more)} not among the given ones"] if more else []
    says = (
        f"the acknowledgement is not about exactly the given records (--item): {'; '.join(parts)}"
    )
    return [Check(False, says)]


def _then(told: Acknowledgement, log: Key | None) -> list[Check]:
    """Check that the log signed so many entries when the service answered, this one included."""
    if told.checkpoint is None or log is None:
        return []
    try:
        point, _ = vouched(told.checkpoint, log)
    except DataError as error:
        says = f"the checkpoint in the acknowledgement does not hold: {error}".rstrip(".")
        return [Check(False, says)]
    if point.size <= told.leaf:
        says = f"the log had {point.size:,} entries with the answer, so none of index {told.leaf:,}"
        return [Check(False, says)]
    says = f"the log {point.origin} signed that it had {point.size:,} entries with the answer"
    return [Check(True, says)]


def _stated(said: bytes | None, key: bytes | None, receipt: Receipt) -> Check:
    """Compare what the entry is about with what the signed receipt states under its key."""
    if key is None:
        says = (
            "only the number of the entry ties the acknowledgement to the receipt: whoever changed "
            "both its records and its entry is not found. Give the key of the receipt, too "
            "(--event-key)"
        )
        return Check(True, says, note=True)
    if said is None:
        says = "that the signed receipt is about these records was not checked: see above"
        return Check(True, says, note=True)
    if hmac.compare_digest(sealed(said.decode(), key).encode(), receipt.asked.digest.encode()):
        return Check(True, "the signed receipt is about exactly what the acknowledgement is about")
    says = (
        "the signed receipt is not about what the acknowledgement is about, or the key belongs to "
        "another receipt"
    )
    return Check(False, says)


def _named(items: Sequence[str]) -> str:
    shown = ", ".join(f"'{one}'" for one in items[:MOST_NAMES])
    left = len(items) - MOST_NAMES
    return f"{shown} and {count_of(left, 'other')}" if left > 0 else shown
