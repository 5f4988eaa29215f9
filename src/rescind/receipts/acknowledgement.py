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
    answer: Acknowledgement,
    given: Sequence[str] = (),
    key: bytes | None = None,
    log: Key | None = None,
) -> list[Claim]:
    """Return the checks of a receipt against an acknowledgement.

    given: original ids of the records that it should be about; needed if it names none
    key: of the receipt    log: the key of the service's log
    """
    items = tuple(dict.fromkeys(given)) if answer.items is None else answer.items
    opened = answer.opens(items)
    checks = [*_opened(answer, items, opened), *_compared(answer, given), *_then(answer, log)]
    return [
        lambda receipt: _place(answer, receipt),
        *(lambda _, one=one: one for one in checks),
        lambda receipt: _stated(opened, key, receipt),
    ]


def _place(answer: Acknowledgement, receipt: Receipt) -> Check:
    """Compare the entry of the log, by its number, and the kind."""
    stated = (receipt.claims.get(ENTRY), receipt.asked.kind)
    if stated != (str(answer.leaf), ASKED[answer.kind]):
        says = (
            f"it is about {stated[1]}, index {stated[0]} of the log; the acknowledgement about "
            f"'{answer.kind}', index {answer.leaf}"
        )
        return Check(False, says)
    place = f"entry {answer.leaf + 1:,} of the log (index {answer.leaf:,})"
    return Check(True, f"it answers the '{answer.kind}' that the acknowledgement has in {place}")


def _opened(answer: Acknowledgement, items: Sequence[str], opened: bytes | None) -> list[Check]:
    """Say what the entry of the acknowledgement is about, which only its opening shows."""
    if opened is not None:
        return [Check(True, f"the acknowledgement is about exactly {_named(items)}")]
    if answer.items is None and not items:
        says = "which records it is about was not checked: give each with --item"
        return [Check(True, says, note=True)]
    return [
        Check(False, "the acknowledgement is not about exactly these records, or it was changed")
    ]


def _compared(answer: Acknowledgement, given: Sequence[str]) -> list[Check]:
    """Compare the records that somebody expects with those that the acknowledgement names."""
    if answer.items is None or not given or {*given} == {*answer.items}:
        return []
    apart = sorted({*given} ^ {*answer.items})
    says = f"it is not about exactly the given records (--item): {_named(apart)} only in one"
    return [Check(False, says)]


def _then(answer: Acknowledgement, log: Key | None) -> list[Check]:
    """Check that the log signed so many entries when the service answered, this one included."""
    if answer.checkpoint is None or log is None:
        return []
    try:
        point, _ = vouched(answer.checkpoint, log)
    except DataError as error:
        return [Check(False, f"the checkpoint in the acknowledgement does not hold: {error}")]
    says = f"the log {point.origin} signed that it had {point.size:,} entries with the answer"
    return [Check(point.size > answer.leaf, says)]


def _stated(opened: bytes | None, key: bytes | None, receipt: Receipt) -> Check:
    """Compare what the entry is about with what the signed receipt states under its key."""
    if key is None or opened is None:
        says = (
            "only the number of the entry ties the acknowledgement to the receipt. To compare the "
            "records, give the key of the receipt (--event-key)"
        )
        return Check(True, says, note=True)
    fits = hmac.compare_digest(sealed(opened.decode(), key).encode(), receipt.asked.digest.encode())
    is_ = "is" if fits else "is not"
    says = f"the signed receipt {is_} about exactly what the acknowledgement is about"
    return Check(fits, says)


def _named(items: Sequence[str]) -> str:
    if not items:
        return "no record: nothing was lent"
    shown = ", ".join(f"'{one}'" for one in items[:MOST_NAMES])
    more = len(items) - MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
