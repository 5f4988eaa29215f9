"""A silo as a home and a holder: who left it, what a request means to it, what it deletes.

Its folder has a ledger of its own, in which people and items go by the keys of their original ids
(`names.py`). The server's ledger knows the request; this one knows only who left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rescind.core.holdings import Holdings
from rescind.data.blocklist import Blocklist
from rescind.data.erasing import rows_of
from rescind.data.importing import load_imported
from rescind.flower.silo.names import ITEM, NOT_HERE, USER, Numbering, key_of
from rescind.home import Copy, Ledger, Refused, Request
from rescind.home.request import ERASED, ROWS_ONLY, Records
from rescind.requests.answer import judged_one
from rescind.requests.table_holder import Table
from rescind.storage.packing import Facts

DATASET = "silo"
"""The name of a silo's data in its ledger: a folder has one."""


def read_list(folder: Path) -> Blocklist:
    """Read who left a silo and what was erased there, by keys."""
    return Blocklist.of_dataset(DATASET, folder)


def add_to_list(folder: Path, listed: Blocklist) -> None:
    """Add to the list of a silo."""
    listed.add_to(DATASET, folder)


@dataclass(frozen=True)
class Asked:
    """A request as the server sends it: one person and items, by original ids."""

    kind: str
    user: str
    items: tuple[str, ...] = ()
    """Empty: everything."""

    @classmethod
    def of(cls, facts: Facts) -> Asked:
        """Read the facts of a letter."""
        return cls(str(facts["kind"]), str(facts["user"]), tuple(facts["items"]))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the items."""
        return tuple(key_of(ITEM, item) for item in self.items)

    def about(self, dataset: str, records: Records) -> Request:
        """Return the request about a dataset."""
        now = datetime.now(UTC)
        return Request("", dataset, self.kind, records, now, now)


class Rows:
    """Rows that an imported table on this machine stores of somebody."""

    def __init__(self, name: str, asked: Asked) -> None:
        self._request = asked.about(name, {asked.user: asked.items or None})
        self.items = list[str]()
        self.named = list[str]()
        self.count = 0
        if name:
            table = load_imported(name)
            rows, named = rows_of(table, [asked.user]), rows_of(table, [asked.user], asked.items)
            self.items, self.named = (sorted({*one.items[one.item]}) for one in (rows, named))
            self.count = len(named)

    def delete(self) -> None:
        """Delete those that are named."""
        if self.named:
            Table(Copy("", self._request.dataset, "table", "")).purge(self._request)


def meaning(
    folder: Path, asked: Asked, numbering: Numbering, holdings: Holdings | None, stored: Rows
) -> Facts:
    """Return what a request means to the silo that has the person, and which items were learnt.

    holdings: of the run; None before it is trained
    """
    number, learnt, member = numbering.user(asked.user), set[str](), False
    present = bool(stored.items)
    if holdings is not None and 0 <= number < holdings.clients:
        mine = holdings.records.client == number
        present |= bool(mine.any())
        if asked.kind == "unshare":
            mine &= holdings.lent
        learnt = {numbering.items[i] for i in holdings.records.item[mine].tolist()}
        member = holdings.graph is not None and bool(holdings.members[number])
    found: Facts = {"outcome": ERASED, "code": "", "missing": NOT_HERE}
    found["numbers"] = [numbering.item(item) for item in asked.items]
    found["learnt"] = [int(holdings is None or member or key in learnt) for key in asked.keys]
    if holdings is None or member:
        return found
    of_rows = () if asked.kind == "unshare" else stored.items
    has = frozenset(learnt).union(key_of(ITEM, item) for item in of_rows)
    user = key_of(USER, asked.user)
    request = asked.about(DATASET, {user: asked.keys or None})
    try:
        with Ledger.open(folder) as ledger:
            judged = judged_one(ledger, request, user, has, present)
    except Refused as refused:
        missing = [n for n, key in enumerate(asked.keys) if key not in has]
        return {**found, "code": refused.code, "missing": next(iter(missing), NOT_HERE)}
    named = learnt.intersection(asked.keys) if asked.items else learnt
    outcome = ROWS_ONLY if judged.outcome == ERASED and not named else judged.outcome
    return {**found, "outcome": outcome}


def depart(folder: Path, asked: Asked, stored: Iterable[str]) -> None:
    """Put a person who leaves, and the rows that are named or stored, on the list of a silo."""
    user = key_of(USER, asked.user)
    items = asked.keys or tuple(key_of(ITEM, item) for item in stored)
    listed = Blocklist().with_erased([user] * len(items), items)
    add_to_list(folder, listed.with_withdrawn(user) if asked.kind == "leave" else listed)


def still_held(holdings: Holdings, numbering: Numbering, asked: Asked) -> int:
    """Return how many records of a request a saved state still has."""
    mine = holdings.records.client == numbering.user(asked.user)
    held = [numbering.items[item] for item in holdings.records.item[mine].tolist()]
    return sum(not asked.items or key in asked.keys for key in held)
