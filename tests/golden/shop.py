"""A shop on the command line: asked by one command, or through a folder of requests."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, chdir
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.golden.canonical import SHORT, read_papers
from tests.golden.matrix import LATER, After, Ask, Mouth, NotOffered, Reply, rows
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.data.erasing import rows_of
from rescind.data.importing import load_imported
from rescind.errors import RescindError
from rescind.experiments.cell import Cell, DataSettings, RunSettings, SharingSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from rescind.requests.papers import papers_of
from rescind.storage.federations import load_federation

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
RUN = Path("run")
REQUESTS = Path("requests")


def write_rows(path: Path, pairs: Any) -> Path:
    """Write a table of users and items."""
    path.write_text("\n".join(["user,item", *(f"{user},{item}" for user, item in pairs)]) + "\n")
    return path


class ShopData(Mouth):
    """Imported data in a home of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open = ExitStack()
        self._open.enter_context(chdir(folder))
        home = {"RESCIND_CACHE": str(folder / "cache"), "RESCIND_HOME": str(folder / "home")}
        self._open.enter_context(patch.dict(os.environ, home))
        self._files = 0

    def close(self) -> None:
        self._open.close()

    def rescind(self, *words: object) -> Result:
        """Give a command."""
        return CliRunner().invoke(app, [str(word) for word in words])

    def arrive(self, user: str, items: tuple[str, ...]) -> None:
        self._files += 1
        table = write_rows(Path(f"new-{self._files}.csv"), [(user, item) for item in items])
        must(self.rescind("data", "append", "shop", table))

    def stored(self, user: str) -> tuple[str, ...]:
        """Return the items of somebody that are stored."""
        rows = rows_of(load_imported("shop"), [user])
        return tuple(sorted({*rows.items[rows.item].tolist()}))


class Shop(ShopData):
    """A run on imported data."""

    cell = CELL

    def start(self, lending: bool) -> None:
        table = write_rows(Path("shop.csv"), rows())
        must(self.rescind("data", "import", table, "--name", "shop"))
        self.cell = replace(CELL, sharing=SharingSettings((0, 1, 0), 0.5)) if lending else CELL
        run_cell(self.cell, RUN)

    def learn(self) -> None:
        run_cell(self.cell, RUN)

    def readmit(self, ask: Ask) -> Reply:
        """Let people in again."""
        codes = [
            reply_of(self.rescind("request", "readmit", "--user", user), "READMITTED")
            for user in ask.users
        ]
        return max(codes, key=lambda one: one.code)

    def after(self, user: str) -> After:
        digest, have = of_model(RUN, user)
        stored = self.stored(user)
        run_cell(CELL, Path("fresh"))
        fresh = of_model(Path("fresh"), user)[1]
        self.arrive(user, (LATER,))
        run_cell(CELL, Path("later"))
        later = LATER in (of_model(Path("later"), user)[1] or ())
        return After(digest, have, stored, fresh, later)


def of_model(run: Path, user: str) -> tuple[str, tuple[str, ...] | None]:
    """Return the digest of a run's sum, and the items of a user in it."""
    fed = load_federation(run / "model")
    digest = str(fed.method.rebuilt(fed)).rpartition(":")[2][:SHORT]
    if user not in map(str, fed.labels.users):
        return digest, None
    held = fed.now.vault.holdings.records
    mine = held.item[held.client == fed.labels.client(user, fed.now.vault.holdings.clients)]
    return digest, tuple(sorted(str(fed.labels.item_id(int(item))) for item in mine))


def reply_of(told: Result, outcome: str, receipts: tuple[dict[str, Any], ...] = ()) -> Reply:
    """Return what a command came to; an error is refused with exit code 2, as `main` does."""
    if isinstance(told.exception, RescindError):
        return Reply(2, "REFUSED", told.exception.code)
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        raise told.exception
    return Reply(told.exit_code, outcome, receipts=receipts)


def must(told: Result) -> None:
    if told.exit_code:
        raise AssertionError(told.output) from told.exception


def answered(told: Result, names: list[str] | None = None) -> Reply:
    """Return one reply for the requests that a command with --json answered.

    names: their ids, a request may stand there twice. Default: all
    """
    if not told.stdout.startswith("["):
        return reply_of(told, "")
    found = {one["id"]: one for one in json.loads(told.stdout)}
    ends = [found[name] for name in names or found]
    if len({one["outcome"] for one in ends}) > 1:
        raise AssertionError(f"they came to different ends: {ends}")
    papers = [papers_of(one["id"]) for one in ends]
    receipts = tuple(read_papers(path) for path in papers if path.is_file())
    return Reply(told.exit_code, ends[0]["outcome"], ends[0]["code"], receipts)


class ByForget(Shop):
    """`rescind forget`, and `rescind request readmit` for who returns."""

    name = "forget"

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind == "readmit":
            return self.readmit(ask)
        told = self.rescind("forget", *self._words(ask), "--json")
        if isinstance(told.exception, RescindError):
            return reply_of(told, "")
        return answered(told)

    def _words(self, ask: Ask) -> list[object]:
        if ask.kind == "leave":
            return [word for user in ask.users for word in ("--user", user)]
        kind = "unshare" if ask.kind == "unshare" else "erase"
        if ask.kind in ("erase all", "unshare"):
            table = Path("asked.csv")
            table.write_text("\n".join(["user", *ask.users]) + "\n")
        else:
            pairs = [(user, item) for user in ask.users for item in ask.items[user]]
            table = write_rows(Path("asked.csv"), pairs)
        return ["--kind", kind, "--file", table]

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        raise NotOffered  # it is answered at once


class ByQueue(Shop):
    """A folder of requests, which `rescind request add` takes and `request answer` answers."""

    name = "queue"

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind == "readmit":
            if last:
                raise NotOffered
            return self.readmit(ask)
        for user in ask.users:
            self.write(ask, user)
        names = self.add()
        return answered(self.rescind("request", "answer", "--json"), names)

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        (user,) = ask.users
        self.write(ask, user)
        self.write(ask, user)
        names = self.add()
        told = self.rescind("request", "answer", "--json")
        first, second = (answered(told, [name]) for name in names)
        return first, second

    def add(self) -> list[str]:
        """Put the files into the ledger; return the ids of their requests."""
        told = self.rescind("request", "add", "--folder", REQUESTS)
        must(told)
        return [line.split()[0] for line in told.stdout.splitlines()]

    def write(self, ask: Ask, user: str) -> None:
        """Write the file of a request."""
        if ask.kind == "readmit":
            raise NotOffered
        request: dict[str, Any] = {"kind": ask.kind.split()[0], "user": user}
        if ask.kind not in ("leave", "erase all", "unshare"):
            request["items"] = [*ask.items[user]]
        self._files += 1
        REQUESTS.mkdir(exist_ok=True)
        (REQUESTS / f"request-{self._files:03}.json").write_text(json.dumps(request))
