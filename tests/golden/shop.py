"""A shop on the command line, by itself or asked through a folder of requests."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, chdir
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rescind.forgetting.run_chain import current
from tests.golden.canonical import SHORT, read_receipt
from tests.golden.matrix import LATER, After, Ask, Mouth, NotOffered, Reply, rows
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.data.blocklist import Blocklist
from rescind.data.erasing import items_of
from rescind.experiments.cell import Cell, DataSettings, RunSettings, SharingSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import MOVED

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
RUN = Path("run")


def write_rows(path: Path, pairs: Any) -> Path:
    """Write a table of users and items."""
    path.write_text("\n".join(["user,item", *(f"{user},{item}" for user, item in pairs)]) + "\n")
    return path


class ShopData(Mouth):
    """Imported data in a folder of its own, with keys of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open = ExitStack()
        self._open.enter_context(chdir(folder))
        home = {"RESCIND_CACHE": str(folder / "cache"), "RESCIND_KEYS": str(folder / "keys")}
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
        return tuple(sorted(map(str, items_of("shop", user))))


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
        """Let people in again, by the data and the run."""
        codes = []
        for user in ask.users:
            told = self.rescind("data", "admit", "shop", "--user", user, "--run", RUN)
            codes.append(reply_of(told, "READMITTED"))
        return max(codes, key=lambda one: one.code)

    def after(self, user: str) -> After:
        standing = current(RUN)
        digest, have = of_model(standing, user)
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
    from rescind.errors import RescindError

    if isinstance(told.exception, RescindError):
        return Reply(2, "REFUSED", type(told.exception).__name__)
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        raise told.exception
    return Reply(told.exit_code, outcome, receipts=receipts)


def must(told: Result) -> None:
    if told.exit_code:
        raise AssertionError(told.output) from told.exception


class ByForget(Shop):
    """`rescind forget RUN`, and `rescind data admit` for who returns."""

    name = "forget"

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind == "readmit":
            return self.readmit(ask)
        before, left = receipts_below(Path()), self._left(ask)
        words = (*self._words(ask), "--audits", "none")
        told = self.rescind("forget", RUN, *words)
        if told.exit_code and (RUN / MOVED).is_file():  # it says: give the one that stands
            told = self.rescind("forget", current(RUN), *words)
        made = sorted(set(receipts_below(Path())) - set(before))
        if made:
            return reply_of(told, "ERASED", tuple(read_receipt(path) for path in made))
        return reply_of(told, "REPEATED" if left == self._left(ask) else "ALREADY_GONE")

    def _left(self, ask: Ask) -> list[bool]:
        """Return of each person whether it is noted that they left."""
        noted = Blocklist.of_dataset("shop")
        return [noted.has_withdrawn(user) for user in ask.users]

    def _words(self, ask: Ask) -> list[object]:
        papers: list[object] = ["--request", "none", "--parts", "none", "--yes"]
        if ask.kind == "leave":
            return [word for user in ask.users for word in ("--withdraw", user)] + papers
        option = "--unshare" if ask.kind == "unshare" else "--erase"
        if ask.kind in ("erase all", "unshare"):
            table = Path("asked.csv")
            table.write_text("\n".join(["user", *ask.users]) + "\n")
            return [option, table, *papers]
        pairs = [(user, item) for user in ask.users for item in ask.items[user]]
        return [option, write_rows(Path("asked.csv"), pairs), *papers]

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        raise NotOffered  # it is answered at once


def receipts_below(folder: Path) -> list[Path]:
    """Return all receipts of runs below a folder."""
    found = folder.glob("**/receipt*.json")
    return sorted(path for path in found if not path.name.endswith(".request.json"))


class ByQueue(Shop):
    """A folder of requests, which `rescind requests run` answers."""

    name = "queue"

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind == "readmit" and not last:
            return self.readmit(ask)
        names = [self._write(ask, user) for user in ask.users]
        told = self._work()
        return self._worst([self._reply(told, name) for name in names])

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        (user,) = ask.users
        names = [self._write(ask, user), self._write(ask, user)]
        told = self._work()
        first, second = (self._reply(told, name) for name in names)
        return first, second

    def _work(self) -> Result:
        return self.rescind("requests", "run", "requests", "--run", RUN, "--audits", "none")

    def _write(self, ask: Ask, user: str) -> str:
        if ask.kind in ("unshare", "readmit"):
            raise NotOffered
        request: dict[str, Any]
        if ask.kind == "leave":
            request = {"withdraw": user}
        else:
            request = {"erase": {"user": user, "items": [*ask.items[user]]}}
        self._files += 1
        name = f"request-{self._files}"
        Path("requests").mkdir(exist_ok=True)
        Path(f"requests/{name}.json").write_text(json.dumps(request))
        return name

    def _reply(self, told: Result, name: str) -> Reply:
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            return reply_of(told, "")
        place = Path("requests/answered") / name
        if (Path("requests") / f"{name}.json").exists():
            return Reply(told.exit_code, "REFUSED")
        about = json.loads((place / "about.json").read_text())
        receipts = tuple(read_receipt(path) for path in receipts_below(place))
        if about.get("same_as"):
            outcome = "REPEATED"
        elif about.get("no_receipt"):
            outcome = "ALREADY_GONE"
        elif about.get("before"):
            outcome = "REPEATED"
        else:
            outcome = "ROWS_ONLY" if about.get("only_rows") else "ERASED"
        return Reply(told.exit_code, outcome, receipts=receipts)

    def _worst(self, replies: list[Reply]) -> Reply:
        """Return one reply for requests that came together."""
        if len({one.outcome for one in replies}) > 1:
            raise AssertionError(f"they came to different ends: {replies}")
        both = tuple(receipt for one in replies for receipt in one.receipts)
        return Reply(replies[0].code, replies[0].outcome, replies[0].problem, both)


class ByRows(ByForget):
    """`rescind data erase`: the rows of imported data, whoever learnt from them."""

    name = "rows"

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if not last and ask.kind in ("leave", "readmit"):
            return super().ask(ask, last)
        if ask.kind in ("leave", "unshare", "readmit"):
            raise NotOffered
        if len({ask.items[user] for user in ask.users}) > 1 and ask.kind != "erase all":
            raise NotOffered  # one command names the same items of all
        words: list[object] = [word for user in ask.users for word in ("--user", user)]
        if ask.kind != "erase all":
            words += [word for item in ask.items[ask.users[0]] for word in ("--item", item)]
        before = receipts_below(Path())
        told = self.rescind("data", "erase", "shop", *words, "--yes")
        made = sorted(set(receipts_below(Path())) - set(before))
        receipts = tuple(read_receipt(path) for path in made)
        return reply_of(told, "ROWS_ONLY" if made else "REPEATED", receipts)
