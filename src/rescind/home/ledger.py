"""The ledger of a home: SQLite, one file, one writer at a time.

It holds requests, not data: of an answered request only keyed digests stay. Each write is one
transaction; two processes on one home wait for each other for five seconds.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rescind.core.files import make_folder
from rescind.core.home import LEDGER, home
from rescind.errors import DataError
from rescind.home import second_copy
from rescind.home.request import REFUSED, Copy, Refused, Request
from rescind.privacy import keys
from rescind.privacy.sealing import decrypt, encrypt

PATIENCE = 5.0
"""Seconds that a command waits for another one on the same home."""
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
VERSION = 1
TABLES = """
CREATE TABLE request (id TEXT PRIMARY KEY, dataset TEXT NOT NULL, kind TEXT NOT NULL,
    words TEXT NOT NULL, sealed TEXT, received TEXT NOT NULL, due TEXT NOT NULL,
    cases TEXT NOT NULL, source TEXT NOT NULL, audit TEXT NOT NULL, outcome TEXT NOT NULL,
    code TEXT NOT NULL, reason TEXT NOT NULL, answered TEXT, receipt TEXT NOT NULL);
CREATE TABLE person (request TEXT NOT NULL, who TEXT NOT NULL, PRIMARY KEY (who, request));
CREATE TABLE departure (dataset TEXT NOT NULL, list TEXT NOT NULL, digest TEXT NOT NULL,
    since TEXT NOT NULL, until TEXT, PRIMARY KEY (dataset, list, digest));
CREATE TABLE copy (id TEXT PRIMARY KEY, dataset TEXT NOT NULL, kind TEXT NOT NULL,
    address TEXT NOT NULL, facts TEXT NOT NULL);
CREATE TABLE step (request TEXT NOT NULL, name TEXT NOT NULL, at TEXT NOT NULL, sealed TEXT,
    PRIMARY KEY (request, name));
CREATE TABLE receipt (digest TEXT PRIMARY KEY, request TEXT NOT NULL, body BLOB NOT NULL,
    proof TEXT NOT NULL, at TEXT NOT NULL);
CREATE INDEX open_requests ON request (outcome, due);
CREATE INDEX copies ON copy (dataset, kind);
"""


def keyed_digest(key: bytes, *parts: str | int) -> str:
    """Return a digest under a secret: without it, nobody can test a guess."""
    text = json.dumps([str(p) for p in parts], ensure_ascii=False).encode()
    return hashlib.blake2b(text, key=key, digest_size=16).hexdigest()


class Ledger:
    """What a home knows. `with Ledger.open() as ledger` closes it at the end."""

    def __init__(self, file: Path, database: sqlite3.Connection) -> None:
        self.file, self._database = file, database
        self.present: list[Any] = []
        """Holders in this process, which no file stands for."""

    @classmethod
    def open(cls, folder: Path | None = None) -> Ledger:
        """Open the ledger of a home; make it if there is none."""
        file = (folder or home()) / LEDGER
        make_folder(file.parent)
        try:
            second_copy.put_back(file)
            database = sqlite3.connect(file, timeout=PATIENCE, isolation_level=None)
            file.chmod(0o600)
            ledger = cls(file, database)
            ledger._prepare()
            second_copy.check_older(file, database)
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"{file} cannot be opened ({error}). Restore the home.") from None
        return ledger

    @classmethod
    def there(cls, folder: Path | None = None) -> Ledger | None:
        """Open the ledger of a home; None if there is none: whoever only looks makes none."""
        file = (folder or home()) / LEDGER
        return cls.open(folder) if file.is_file() or second_copy.of(file).is_file() else None

    def _prepare(self) -> None:
        self._database.execute("PRAGMA secure_delete = ON")
        self._database.execute("PRAGMA synchronous = FULL")
        version = self._rows("PRAGMA user_version")[0][0]
        if version == VERSION:
            return
        if version:
            raise DataError(f"{self.file} has version {version}, not {VERSION}. Update rescind.")
        with self.writing() as run:
            if run("PRAGMA user_version").fetchone()[0] == 0:
                for statement in filter(str.strip, TABLES.split(";")):
                    run(statement)
                run(f"PRAGMA user_version = {VERSION}")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    @cached_property
    def key(self) -> bytes:
        """Return the erasure key, under which people and records are named."""
        return keys.erasure_key()

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Yield `execute` inside one transaction."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise DataError(
                f"{self.file} is in use by another rescind command ({error}). Wait, then repeat."
            ) from None
        try:
            yield self._database.execute
            self._database.execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:  # SQLite ends it itself when the disk is full
                self._database.execute("ROLLBACK")
            if getattr(error, "sqlite_errorcode", None) in FULL:
                raise DataError(
                    f"{self.file} could not be written: the disk is full ({error}). Nothing was "
                    "stored. Free some space, or set RESCIND_HOME to another folder."
                ) from error
            raise

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(statement, values).fetchall()

    # Requests

    def add(self, asked: Request) -> Request:
        """Write down a request; the same words while it is open are the same request."""
        words = self.words(asked)
        with self.writing() as run:
            same = run(
                "SELECT id FROM request WHERE words = ? AND answered IS NULL", (words,)
            ).fetchone()
            if same:
                run("UPDATE request SET outcome = '' WHERE id = ? AND outcome = 'REFUSED'", same)
                return self.request(same[0])
            made = replace(asked, id=asked.id or secrets.token_hex(8), key=keys.new_secret())
            row = (
                made.id, made.dataset, made.kind, words, self._sealed(made), _text(made.received),
                _text(made.due), made.case, made.source, made.audit,
            )  # fmt: skip
            run(f"INSERT INTO request VALUES ({','.join('?' * 10)},'','','',NULL,'')", row)
            for user in made.records:
                run("INSERT INTO person VALUES (?, ?)", (made.id, self.who(made.dataset, user)))
        return made

    def words(self, asked: Request) -> str:
        """Return a digest of what is asked, by which it is known again."""
        records = [(u, None if i is None else sorted(i)) for u, i in sorted(asked.records.items())]
        named = json.dumps(records) if records else asked.source  # a file that cannot be read
        return keyed_digest(self.key, asked.dataset, asked.kind, named)

    def who(self, dataset: str, user: str) -> str:
        """Return the digest of a person, for a dataset."""
        return keyed_digest(self.key, dataset, user)

    def _sealed(self, request: Request) -> str:
        inside = {
            "records": {u: None if i is None else [*i] for u, i in request.records.items()},
            "key": request.key.hex(),
            "options": dict(request.options),
        }
        return encrypt(json.dumps(inside).encode(), self.key)

    def _hidden(self, reason: str) -> str:
        """Return a reason as it is stored: it may name the person."""
        return encrypt(reason.encode(), self.key) if reason else ""

    def request(self, name: str) -> Request:
        """Return a request by its id; raise if there is none."""
        rows = self._rows("SELECT * FROM request WHERE id = ?", name)
        if not rows:
            raise Refused(
                "unknown-request", f"there is no request '{name}'. See: rescind request list."
            )
        return self._request(rows[0])

    def requests(self, open_only: bool = False) -> list[Request]:
        """Return all requests, those that are due first at the front."""
        chosen = "WHERE outcome IN ('', 'WAITING', 'REFUSED')" if open_only else ""
        rows = self._rows(f"SELECT * FROM request {chosen} ORDER BY due, received, rowid")
        return [self._request(row) for row in rows]

    def _request(self, row: tuple[Any, ...]) -> Request:
        name, dataset, kind, _, sealed, received, due, case, source, audit, *rest = row
        inside: dict[str, Any] = {"records": {}, "key": "", "options": {}}
        if sealed:
            inside = json.loads(decrypt(sealed, self.key))
        records = {u: None if i is None else tuple(i) for u, i in inside["records"].items()}
        outcome, code, reason, answered, receipt = rest
        reason = decrypt(reason, self.key).decode().rstrip() if reason else ""
        return Request(
            name, dataset, kind, records, _time(received), _time(due), case, source, audit,
            inside["options"], bytes.fromhex(inside["key"]), outcome, code, reason,
            _time(answered) if answered else None, receipt,
        )  # fmt: skip

    def end(
        self, request: Request, outcome: str, receipt: str = "", code: str = "", reason: str = ""
    ) -> Request:
        """Write down what a request came to. One that is answered drops its words."""
        done = outcome not in (REFUSED, "WAITING")
        with self.writing() as run:
            run(
                "UPDATE request SET outcome = ?, receipt = ?, code = ?, reason = ?, answered = ?,"
                " sealed = CASE WHEN ? THEN NULL ELSE sealed END WHERE id = ?",
                (
                    outcome,
                    receipt,
                    code,
                    self._hidden(reason),
                    _text(_now()) if done else None,
                    done,
                    request.id,
                ),
            )
            if done:
                run("UPDATE step SET sealed = NULL WHERE request = ?", (request.id,))
        second_copy.keep(self.file, self._database)
        return self.request(request.id)

    def extend(self, name: str, due: datetime, reason: str) -> Request:
        """Give an open request a later day, with the reason that the person is told."""
        with self.writing() as run:
            row = (_text(due), self._hidden(reason), name)
            run("UPDATE request SET due = ?, reason = ? WHERE id = ?", row)
        return self.request(name)

    def withdraw(self, name: str) -> None:
        """Remove a request that was not answered."""
        with self.writing() as run:
            for table, column in (("request", "id"), ("person", "request"), ("step", "request")):
                run(f"DELETE FROM {table} WHERE {column} = ?", (name,))

    def answers_about(self, dataset: str, user: str) -> list[Request]:
        """Return the answered requests of a person, the newest first."""
        rows = self._rows(
            "SELECT request.* FROM request JOIN person ON person.request = request.id"
            " WHERE who = ? AND answered IS NOT NULL ORDER BY answered DESC, request.rowid DESC",
            self.who(dataset, user),
        )
        return [self._request(row) for row in rows]

    # Steps

    def steps(self, request: Request) -> dict[str, dict[str, Any]]:
        """Return what is done of a request, by step, with the facts that later steps need."""
        return self.journal(request.id)

    def journal(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the steps that are written down under a name, of a request or of a night."""
        rows = self._rows("SELECT name, sealed FROM step WHERE request = ?", name)
        return {step: self._facts(sealed) for step, sealed in rows}

    def journals(self, beginning: str) -> list[str]:
        """Return the names of journals that begin with a word."""
        found = self._rows("SELECT DISTINCT request FROM step ORDER BY 1")
        return [name for (name,) in found if name.startswith(beginning)]

    def _facts(self, sealed: str | None) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(decrypt(sealed, self.key)) if sealed else {}
        return facts

    def done(self, request: Request, name: str, facts: Mapping[str, Any] | None = None) -> None:
        """Write down that a step is done, or a part of it: then the name has more words."""
        self.note(request.id, name, facts)

    def note(self, journal: str, name: str, facts: Mapping[str, Any] | None = None) -> None:
        """Write a step into a journal."""
        sealed = encrypt(json.dumps(facts).encode(), self.key) if facts else None
        with self.writing() as run:
            row = (journal, name, _text(_now()), sealed)
            run("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?)", row)

    # Departures

    def departures(self, dataset: str) -> dict[str, frozenset[str]]:
        """Return the digests of each list of a dataset that count now."""
        found: dict[str, set[str]] = {}
        statement = "SELECT list, digest FROM departure WHERE dataset = ? AND until IS NULL"
        for name, digest in self._rows(statement, dataset):
            found.setdefault(name, set()).add(digest)
        return {name: frozenset(digests) for name, digests in found.items()}

    def depart(self, dataset: str, lists: Mapping[str, Iterable[str]]) -> None:
        """Put digests on the lists of a dataset."""
        now = _text(_now())
        rows = [(dataset, name, one, now) for name, more in lists.items() for one in sorted(more)]
        with self.writing() as run:
            for row in rows:
                run(
                    "INSERT INTO departure VALUES (?, ?, ?, ?, NULL) ON CONFLICT DO UPDATE SET"
                    " since = CASE WHEN until IS NULL THEN since ELSE excluded.since END,"
                    " until = NULL", row,
                )  # fmt: skip

    def readmit(self, dataset: str, digest: str) -> bool:
        """End the departure of a person; return whether there was one."""
        with self.writing() as run:
            ended = run(
                "UPDATE departure SET until = ? WHERE dataset = ? AND list = 'withdrawn'"
                " AND digest = ? AND until IS NULL", (_text(_now()), dataset, digest),
            )  # fmt: skip
            return bool(ended.rowcount)

    def readmitted(self, dataset: str, digest: str) -> datetime | None:
        """Return when the departure of a person ended last; None if none did."""
        where = "dataset = ? AND list = 'withdrawn' AND digest = ?"
        rows = self._rows(f"SELECT until FROM departure WHERE {where}", dataset, digest)
        return _time(rows[0][0]) if rows and rows[0][0] else None

    def datasets(self) -> list[str]:
        """Return the datasets that somebody left."""
        return [row[0] for row in self._rows("SELECT DISTINCT dataset FROM departure ORDER BY 1")]

    def counted(self, dataset: str) -> int:
        """Return a number that grows with each departure: whoever learnt before must look again."""
        statement = "SELECT count(*) FROM departure WHERE dataset = ? AND until IS NULL"
        return int(self._rows(statement, dataset)[0][0])

    # Copies

    def register(self, copy: Copy) -> None:
        """Write down a copy, or what is new of it."""
        row = (copy.id, copy.dataset, copy.kind, copy.address, json.dumps(dict(copy.facts)))
        with self.writing() as run:
            run("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?)", row)

    def unregister(self, name: str) -> None:
        """Write down that a copy is no more."""
        with self.writing() as run:
            run("DELETE FROM copy WHERE id = ?", (name,))

    def copies(self, dataset: str) -> list[Copy]:
        """Return all known copies of a dataset, the oldest first."""
        rows = self._rows("SELECT * FROM copy WHERE dataset = ? ORDER BY rowid", dataset)
        return [self._copy(row) for row in rows]

    def copy(self, name: str) -> Copy | None:
        """Return a copy by its id; None if it is not known here."""
        rows = self._rows("SELECT * FROM copy WHERE id = ?", name)
        return self._copy(rows[0]) if rows else None

    @staticmethod
    def _copy(row: tuple[Any, ...]) -> Copy:
        name, dataset, kind, address, facts = row
        return Copy(name, dataset, kind, address, json.loads(facts))

    # Receipts

    def keep_receipt(self, request: Request, body: bytes, proof: str = "") -> str:
        """Keep a receipt; return its digest, by which the next one names it."""
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        with self.writing() as run:
            run(
                "INSERT INTO receipt VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " proof = excluded.proof", (digest, request.id, body, proof, _text(_now())),
            )  # fmt: skip
        return digest

    def receipt(self, digest: str) -> tuple[bytes, str]:
        """Return a receipt's bytes and its proof."""
        rows = self._rows("SELECT body, proof FROM receipt WHERE digest = ?", digest)
        if not rows:
            raise Refused("unknown-receipt", f"there is no receipt {digest[:20]} in this home.")
        body, proof = rows[0]
        return body, proof

    def receipt_of(self, request: Request) -> bytes | None:
        """Return the receipt that was signed for a request, whether it is logged yet or not."""
        rows = self._rows("SELECT body FROM receipt WHERE request = ?", request.id)
        return rows[0][0] if rows else None

    def last_receipt(self, dataset: str) -> bytes | None:
        """Return the newest receipt about a dataset, which the next one follows."""
        rows = self._rows(
            "SELECT body FROM receipt JOIN request ON request.id = receipt.request"
            " WHERE dataset = ? ORDER BY receipt.rowid DESC LIMIT 1", dataset,
        )  # fmt: skip
        return rows[0][0] if rows else None


def _now() -> datetime:
    return datetime.now(UTC)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def departed(dataset: str, folder: Path | None = None) -> dict[str, frozenset[str]]:
    """Return the lists of a dataset; nothing where there is no ledger, and none is made."""
    ledger = Ledger.there(folder)
    if ledger is None:
        return {}
    with ledger:
        return ledger.departures(dataset)
