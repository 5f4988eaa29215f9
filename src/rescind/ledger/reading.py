"""Questions to the ledger. They never wait for the writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row, func, select

from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.batch import Items
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.errors import NotThere
from rescind.ledger.kept_part import KEPT, LOANS, NO_PART, KeptPart, Sealed
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.store import Store

OPEN = ("open", "in_progress")
"""States of requests that still have to be fulfilled or refused."""
MOST = 100_000


@dataclass(frozen=True)
class Export:
    """What the ledger has about one person."""

    account: dict[str, Any]
    items: tuple[dict[str, str], ...]
    kept: tuple[dict[str, str], ...]
    """The same of what their browser keeps and has sent to the sum."""
    requests: tuple[Any, ...]
    history: tuple[Any, ...]


class Reading:
    """Queries for handlers, from any thread. Rows are SQLAlchemy's; loans are opened."""

    def __init__(
        self,
        store: Store,
        keys: KeySlots,
        catalogue: Catalogue,
        dates: Mapping[str, tuple[datetime, datetime]],
    ) -> None:
        """dates: when requests were erased and summed, where it is not written yet"""
        self._store, self._keys, self._catalogue, self._dates = store, keys, catalogue, dates

    def person(self, person: bytes) -> Row:
        row = self._one(select(tables.person).where(tables.person.c.id == person))
        if row is None or row.state == "left":
            raise NotThere("there is no such account. Sign in again, or make a new one.")
        return row

    def loans(self, person: bytes) -> Items:
        return self.versioned_loans(person)[1]

    def versioned_loans(self, person: bytes) -> tuple[int, Items]:
        row, box = self._opened(person, LOANS)
        return row.version, LOANS.items(box)

    def kept_part(self, person: bytes) -> KeptPart:
        """Return what a person's browser keeps and has sent to the sum."""
        _, box = self._opened(person, KEPT)
        return KeptPart.of(box) if box else NO_PART

    def _opened(self, person: bytes, part: Sealed) -> tuple[Row, bytes]:
        """Return the row of a person and what is in a box of it, b"" if there is none."""
        for _ in range(8):
            row = self.person(person)
            with suppress(DataError):  # changed between reading the row and opening it
                return row, part.opened(self._keys, row)
        raise DataError("this box could not be opened. Read it again.")

    def export(self, person: bytes) -> Export:
        return Export(
            self.me(person),
            self._named(self.loans(person)),
            self._named(self.kept_part(person).items),
            tuple(self.requests(person)),
            tuple(self.events(person, most=MOST)),
        )

    def _named(self, items: Items) -> tuple[dict[str, str], ...]:
        ids, titles = self._catalogue.ids, self._catalogue.titles
        return tuple({"id": ids[n], "title": titles[n]} for n in items.tolist())

    def me(self, person: bytes) -> dict[str, Any]:
        row = self.person(person)
        requests = self.requests(person)
        return {
            "lent": row.lent,
            "kept": row.kept_count or 0,
            "version": row.version,
            "created": row.created,
            "requests": len(requests),
            "open": sum(one.status in OPEN for one in requests),
        }

    def requests(self, person: bytes) -> list[SimpleNamespace]:
        table = tables.request
        newest = table.c.received_at.desc()
        return self._requests(select(table).where(table.c.person == person).order_by(newest))

    def request(self, name: str) -> SimpleNamespace:
        return self._request(tables.request.c.id == name)

    def linked_request(self, digest: bytes) -> SimpleNamespace:
        """Return the request that a link leads to. digest: SHA-256 of the link's token"""
        return self._request(tables.request.c.link == digest)

    def open_requests(self) -> list[SimpleNamespace]:
        return self.requests_due(waiting=True)

    def requests_due(
        self, waiting: bool, first: int = 0, most: int | None = None
    ) -> list[SimpleNamespace]:
        """Return requests by when they are due. waiting: only those that are not ended"""
        table = tables.request
        chosen = select(table).order_by(table.c.expected_by).offset(first).limit(most)
        return self._requests(chosen.where(table.c.status.in_(OPEN)) if waiting else chosen)

    def events(self, person: bytes | None = None, after: int = 0, most: int = 100) -> list[Row]:
        """Return the history after a seq: of a person, or of everybody."""
        table = tables.event
        chosen = select(table).where(table.c.seq > after).order_by(table.c.seq).limit(most)
        return self._all(chosen if person is None else chosen.where(table.c.person == person))

    def entries(self, first: int, count: int) -> list[bytes]:
        table = tables.leaf
        chosen = select(table.c.entry).where(table.c.n >= first, table.c.n < first + count)
        return [bytes(row.entry) for row in self._all(chosen.order_by(table.c.n))]

    def setting(self, name: str) -> str | None:
        with self._store.reading() as connection:
            return tables.setting_of(connection, name)

    def noted(self, name: str) -> Any:
        """Return a setting that is JSON (`Keep`); None: there is none."""
        return json.loads(self.setting(name) or "null")

    def overview(self) -> dict[str, int]:
        """Return counts for the operator: never a name or an item."""
        table, request = tables.person, tables.request
        with self._store.reading() as connection:
            people, lenders, lent = connection.execute(
                select(
                    func.count(),
                    func.count(table.c.box),
                    func.coalesce(func.sum(table.c.lent), 0),
                ).where(table.c.state != "left")
            ).one()
            waiting = connection.scalar(
                select(func.count()).select_from(request).where(request.c.status.in_(OPEN))
            )
            leaves = connection.scalar(select(func.count()).select_from(tables.leaf))
        return {
            "people": people,
            "lenders": lenders,
            "lent": int(lent),
            "open": waiting or 0,
            "leaves": leaves or 0,
            "keys": len(self._keys),
            "items": len(self._catalogue),
        }

    def _request(self, which: Any) -> SimpleNamespace:
        found = self._requests(select(tables.request).where(which))
        if not found:
            raise NotThere("there is no such request.")
        return found[0]

    def _requests(self, query: Any) -> list[SimpleNamespace]:
        """Add dates that the writer knows already and writes in its next pause."""
        dates = dict(self._dates)  # before the query: a date is here until it is there
        rows = [SimpleNamespace(**row._mapping) for row in self._all(query)]
        for row in rows:
            if row.erased_at is None and row.id in dates:
                row.erased_at, row.summed_at = dates[row.id]
                row.level = "L1" if row.level == "L0" else row.level
        return rows

    def _one(self, query: Any) -> Row | None:
        with self._store.reading() as connection:
            return connection.execute(query).one_or_none()

    def _all(self, query: Any) -> list[Row]:
        with self._store.reading() as connection:
            return list(connection.execute(query).all())
