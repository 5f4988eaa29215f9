"""A shop over silos: Flower's messages on a grid in memory, each silo with its own disk."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack, chdir, suppress
from io import BytesIO
from pathlib import Path
from re import sub
from unittest.mock import patch
from zipfile import ZipFile

from tests.golden.canonical import facts, short
from tests.golden.matrix import LATER, After, Ask, Mouth, Reply, rows
from typer.testing import CliRunner

from flower.silo_shop import RECIPE, SiloShop, asks, stored_rows
from rescind.cli.flower_told import exit_code
from rescind.cli.request import app
from rescind.core import params
from rescind.core.claims import CONFIRMED
from rescind.data import import_file
from rescind.data.importing import append_file, load_imported
from rescind.errors import RescindError
from rescind.flower.silo.names import ITEM, USER, key_of
from rescind.receipts.receipt import opened, parse
from rescind.requests.words import Words

SILOS = 3
LENDING = """
[sharing]
ratio = [0, 1, 0]
part = 0.5
"""
DIGITS = 4
"""Of a weight: so few that it is the same on each machine."""


class OverSilos(Mouth):
    """Three silos that stay, and a server that starts anew for each command."""

    name = "silos"
    recipe = RECIPE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open, self._files = ExitStack(), 0
        self._open.enter_context(chdir(folder))
        self._open.enter_context(patch.dict(os.environ, {"RESCIND_HOME": str(folder / "home")}))
        self.shop = SiloShop(Path(), SILOS)

    def close(self) -> None:
        self._open.close()

    def start(self, lending: bool) -> None:
        import_file(self._table(rows()), "shop")
        self.shop.write_recipe(self.recipe + LENDING * lending)
        self.shop.serve()

    def _table(self, pairs: Collection[tuple[str, str]]) -> Path:
        self._files += 1
        path = Path(f"rows-{self._files}.csv")
        path.write_text("\n".join(["user,item", *(f"{user},{item}" for user, item in pairs)]))
        return path

    def arrive(self, user: str, items: tuple[str, ...]) -> None:
        append_file("shop", self._table([(user, item) for item in items]))

    def learn(self) -> None:
        self.shop.serve()

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind == "readmit":
            told = [self._readmit(user) for user in ask.users]
            return max(told, key=lambda one: one.code)
        return self.served(*_words(ask))

    def _readmit(self, user: str) -> Reply:
        """Let somebody in on each silo: all of them have the table."""
        for silo in range(SILOS):
            words = ["readmit", "--user", user, "--silo", str(self.shop.silo(silo))]
            told = CliRunner().invoke(app, words)
            if isinstance(told.exception, RescindError):
                return Reply(2, "REFUSED", told.exception.code)
            if told.exception is not None and not isinstance(told.exception, SystemExit):
                raise told.exception
        return Reply(0, "READMITTED")

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        """Ask twice while the silo of who asks is away; then it is there again."""
        if ask.kind == "readmit":
            return (self.ask(ask), self.ask(ask))
        away = [self.silo_of(user) for user in ask.users]
        first, second = (self.served(*_words(ask), away=away) for _ in "ab")
        return first, second, self.served(resume=True)

    def served(self, *words: Words, resume: bool = False, away: Collection[int] = ()) -> Reply:
        """Give a command; return the worst of what its requests came to."""
        try:
            told = self.shop.serve(*words, resume=resume, away=away)["requests"]
        except RescindError as error:
            return Reply(2, "REFUSED", error.code)
        for one in told:
            if one["outcome"] in ("WAITING", "REFUSED"):
                return Reply(exit_code(told), one["outcome"], one["code"])
        receipts = tuple(_receipt(Path(one["papers"])) for one in told if one["papers"])
        return Reply(exit_code(told), told[0]["outcome"] if told else "", receipts=receipts)

    def silo_of(self, user: str) -> int:
        names = [str(one) for one in load_imported("shop").users]
        return names.index(user) % SILOS if user in names else 0

    def _held(self, user: str) -> tuple[str, ...] | None:
        """Return what the newest moment of a user's silo has of them."""
        names = {key_of(ITEM, str(item)): str(item) for item in load_imported("shop").items}
        mine = {item for who, item in self.shop.held(newest=True) if who == key_of(USER, user)}
        return tuple(sorted(names[item] for item in mine)) or None

    def after(self, user: str) -> After:
        weights = params.load(self.shop.out / "model" / "public.safetensors")[0]
        texts = [
            f"{name} {(one * 10**DIGITS).round().long().tolist()}" for name, one in weights.items()
        ]
        standing = self._held(user)
        stored = tuple(sorted(item for who, item in stored_rows() if who == user))
        with suppress(RescindError):
            self.shop.serve()
        fresh = self._held(user)
        self.arrive(user, (LATER,))
        with suppress(RescindError):
            self.shop.serve()
        later = LATER in (self._held(user) or ())
        return After(short(" ".join(sorted(texts))), standing, stored, fresh, later)


def _words(ask: Ask) -> tuple[Words, ...]:
    if ask.kind in ("leave", "unshare"):
        return asks(**{ask.kind: ask.users})
    return asks(erase={user: ask.items[user] for user in ask.users})


def _receipt(papers: Path) -> dict[str, object]:
    """Return the canonical facts of a receipt, exact: its key is among the papers."""
    with ZipFile(BytesIO(papers.read_bytes())) as packed:
        found = opened(
            parse(packed.read("receipt.json")),
            bytes.fromhex(packed.read("receipt.key").decode()),
        )
    known = facts(found)
    claims = {**known["claims"], CONFIRMED: sub(r" on [\d-]+", "", found.claims[CONFIRMED])}
    return {**known, "claims": claims}
