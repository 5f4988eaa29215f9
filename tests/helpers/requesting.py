"""A shop of twelve people with runs on it, to ask things of."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rescind.core.home import home
from rescind.core.params import digest
from rescind.data.importing import append_file, import_file, load_imported
from rescind.experiments.cell import Cell, DataSettings, RunSettings, SharingSettings
from rescind.experiments.learning_run import run_cell
from rescind.home import Ledger, Request
from rescind.methods.additive.gram import Gram
from rescind.receipts.of_run import answered_by
from rescind.receipts.receipt import Receipt, parse
from rescind.requests.adding import add_words
from rescind.requests.answer import answer, readmit
from rescind.requests.copies import run_copy
from rescind.requests.papers import papers_of
from rescind.requests.words import Words
from rescind.storage.federations import load_federation

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
LENDING = replace(CELL, sharing=SharingSettings((0, 1, 0), 0.5))
USERS, PER_USER, ITEMS = 12, 5, 10


def items_of(number: int) -> tuple[str, ...]:
    """Return the items of the n-th person at the start."""
    return tuple(sorted(f"p{(3 * number + k) % ITEMS}" for k in range(PER_USER)))


ROWS = [(f"c{user}", item) for user in range(USERS) for item in items_of(user)]


def write_rows(path: Path, pairs: Sequence[tuple[str, ...]], header: str = "user,item") -> Path:
    """Write a table of users and items."""
    path.write_text("\n".join([header, *(",".join(pair) for pair in pairs)]) + "\n")
    return path


@dataclass
class Shop:
    """Imported data of a home and the runs on it, in a folder."""

    folder: Path
    cell: Cell = CELL
    files: int = 0

    @classmethod
    def opened(cls, folder: Path, rows: Sequence[tuple[str, str]] = ROWS, **more: Any) -> Shop:
        """Import the table and learn one run."""
        folder.mkdir(exist_ok=True)
        import_file(write_rows(folder / "shop.csv", rows), "shop")
        shop = cls(folder, **more)
        shop.learn()
        return shop

    def run(self, name: str = "run") -> Path:
        return self.folder / name

    def learn(self, name: str = "run") -> None:
        """Learn from all that the data has now."""
        run_cell(self.cell, self.run(name))

    def arrive(self, user: str, items: Sequence[str]) -> None:
        """Let new rows come."""
        self.files += 1
        rows = [(user, item) for item in items]
        append_file("shop", write_rows(self.folder / f"new-{self.files}.csv", rows))

    def add(self, kind: str, *users: str, items: Sequence[str] = (), **more: Any) -> Request:
        """Write a request down."""
        words = Words(kind, {user: tuple(items) or None for user in users})
        with Ledger.open() as ledger:
            (request,) = add_words(ledger, "shop", [words], **more)
        return request

    def ask(self, kind: str, *users: str, items: Sequence[str] = (), **more: Any) -> Request:
        """Write a request down and answer it."""
        return self.answer(self.add(kind, *users, items=items, **more).id)

    def answer(self, name: str) -> Request:
        with Ledger.open() as ledger:
            return answer(ledger, name)

    def readmit(self, user: str) -> None:
        with Ledger.open() as ledger:
            readmit(ledger, "shop", user)

    def stored(self, user: str) -> tuple[str, ...]:
        """Return the items of somebody in the imported table."""
        data = load_imported("shop")
        mine = data.item[data.users[data.user] == user]
        return tuple(sorted(map(str, data.items[mine])))

    def learnt(self, user: str, name: str = "run") -> tuple[str, ...]:
        """Return the items of somebody in a run."""
        fed = load_federation(self.run(name) / "model")
        if user not in map(str, fed.labels.users):
            return ()
        held = fed.now.vault.holdings.records
        mine = held.item[held.client == fed.labels.client(user, fed.now.vault.holdings.clients)]
        return tuple(sorted({str(fed.labels.item_id(int(item))) for item in mine}))

    def model(self, name: str = "run") -> str:
        """Return the digest of the model of a run."""
        return digest(load_federation(self.run(name) / "model").now.state.public)


def papers(name: str) -> dict[str, bytes]:
    """Return the files that are sent for a request."""
    with zipfile.ZipFile(io.BytesIO(papers_of(name).read_bytes())) as packed:
        return {one: packed.read(one) for one in packed.namelist()}


def unpacked(name: str, into: Path) -> Path:
    """Unpack what is sent for a request, as the person does who gets it."""
    with zipfile.ZipFile(papers_of(name)) as packed:
        packed.extractall(into)
    return into


def answered(dataset: str, words: Words, **more: Any) -> Request:
    """Write a request down and answer it."""
    with Ledger.open() as ledger:
        (request,) = add_words(ledger, dataset, [words], **more)
        return answer(ledger, request.id)


def ask(dataset: str, kind: str, *users: str, items: Sequence[str] = (), **more: Any) -> Request:
    """Ask for something of a dataset, and answer it."""
    words = Words(kind, {user: tuple(items) or None for user in users})
    return answered(dataset, words, **more)


def known(run: Path) -> str:
    """Return the name of the data of a run, which the ledger knows from now on."""
    copy = run_copy(run)
    with Ledger.open() as ledger:
        if ledger.copy(copy.id) is None:
            ledger.register(copy)
    return copy.dataset


def ask_of(run: Path, kind: str, *users: str, items: Sequence[str] = (), **more: Any) -> Request:
    """Ask for something of a run, as `rescind forget RUN` does, and answer it."""
    return ask(known(run), kind, *users, items=items, **more)


def receipt_of(done: Request) -> Receipt:
    """Return the receipt that answers a request."""
    with Ledger.open() as ledger:
        return parse(ledger.receipt(done.receipt)[0])


def newest_receipt(run: Path | str) -> Receipt:
    """Return the receipt of the last answer of a run."""
    return parse(answered_by(Path(run))["receipt"].encode())


@contextmanager
def elsewhere(monkeypatch: Any, folder: Path) -> Iterator[None]:
    """Work in another home."""
    with monkeypatch.context() as patch:
        patch.setenv("RESCIND_HOME", str(folder))
        yield


def bytes_of_home() -> bytes:
    """Return all that is written in the home."""
    return b"\n".join(path.read_bytes() for path in home().rglob("*") if path.is_file())


def erase_rows(data: str, user: str, items: Sequence[str] = ()) -> Request:
    """Erase rows of somebody, or all of them, from imported data that no run learnt."""
    with Ledger.open() as ledger:
        (request,) = add_words(ledger, data, [Words("erase", {user: tuple(items) or None})])
        return answer(ledger, request.id)
