"""A shop over silos: Flower's messages on a grid in memory, each silo with its own disk."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.golden.canonical import read_receipt, short
from tests.golden.matrix import LATER, After, Ask, Reply, rows
from tests.golden.shop import ShopData, must, reply_of, write_rows

from flower.grids import FIRST, InMemory
from rescind.cli.flower_given import requests_named
from rescind.core import params
from rescind.data.importing import load_imported
from rescind.errors import RescindError
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.steps import HELD

SILOS = 3
RECIPE = """
[data]
name = "shop"

[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
LENDING = """
[sharing]
ratio = [0, 1, 0]
part = 0.5
"""
OUT = Path("out")
DIGITS = 4
"""Of a weight: so few that it is the same on each machine."""


class OverSilos(ShopData):
    """Three silos that stay, and a server that starts anew for each command."""

    name = "silos"
    recipe = RECIPE

    def start(self, lending: bool) -> None:
        table = write_rows(Path("shop.csv"), rows())
        must(self.rescind("data", "import", table, "--name", "shop"))
        Path("recipe.toml").write_text(self.recipe + LENDING * lending)
        self.serve()

    def serve(self, resume: bool = False, away: Collection[int] = (), **named: list[str]) -> None:
        """Start the silos that are there, and the server with some requests."""
        words = {"unshare": None, "erase": None, "withdraw": None, **named}
        asked = RunRequest("recipe.toml", SILOS, str(OUT), deadline=0, wait=0)
        asked = replace(asked, requests=requests_named(**words), resume=resume)
        source = RecipeData(asked.recipe)
        there = [silo for silo in range(SILOS) if silo not in away]
        for silo in there:
            source.note_in(Store(_folder(silo)))
        serve(
            InMemory({
                FIRST + silo: Node(
                    Store(_folder(silo)), source, silo, SILOS, single_updates=True
                )
                for silo in there
            }),
            asked,
        )  # fmt: skip

    def learn(self) -> None:
        self.serve()

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind != "readmit":
            return self.served(**_words(ask))
        words = ["data", "admit", "shop"]
        told = [
            self.rescind(*words, "--user", user, "--silo", _folder(self.silo_of(user)))
            for user in ask.users
        ]
        return max((reply_of(one, "READMITTED") for one in told), key=lambda one: one.code)

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        """Ask twice while the silo of who asks is away; then it is there again."""
        if ask.kind == "readmit":
            return (self.ask(ask), self.ask(ask))
        away = [self.silo_of(user) for user in ask.users]
        first, second = (self.served(away=away, **_words(ask)) for _ in "ab")
        waits = second.outcome == "WAITING"  # else it is to be given again
        return first, second, self.served(resume=True) if waits else self.ask(ask)

    def served(self, **named: Any) -> Reply:
        before = _answers()
        try:
            self.serve(**named)
        except RescindError as error:
            return Reply(2, "REFUSED", type(error).__name__)
        facts, now = json.loads((OUT / "run.json").read_text()), _answers()
        if refused := facts.get("refused_requests"):
            again = any(one.get("again") for one in refused)
            return Reply(2, "REFUSED", "a silo was not there" if again else "refused by silos")
        new = [one for one in now if one not in before]
        receipts = tuple(read_receipt(OUT / one["receipt"]) for one in new)
        if any(one["waiting"] for one in now):
            return Reply(1, "WAITING", receipts=receipts)
        return Reply(0, "ERASED" if new else "REPEATED", receipts=receipts)

    def silo_of(self, user: str) -> int:
        names = [str(one) for one in load_imported("shop").users]
        return names.index(user) % SILOS if user in names else 0

    def _held(self, user: str) -> tuple[str, ...] | None:
        """Return what the newest moment of a user's silo has of them."""
        table = load_imported("shop")
        if user not in map(str, table.users):
            return None
        client, store = (
            [str(one) for one in table.users].index(user),
            Store(_folder(self.silo_of(user))),
        )
        moments = sorted((store.folder / HELD).glob("*.safetensors"), key=_written)
        held = store.held(int(moments[-1].stem, 16)).records
        mine = held.item[held.client == client].tolist()
        return tuple(sorted(str(table.items[item]) for item in mine)) or None

    def after(self, user: str) -> After:
        weights = params.load(OUT / "model" / "public.safetensors")[0]
        texts = [
            f"{name} {(one * 10**DIGITS).round().long().tolist()}" for name, one in weights.items()
        ]
        standing, stored = self._held(user), self.stored(user)
        with suppress(RescindError):
            self.serve()
        fresh = self._held(user)
        self.arrive(user, (LATER,))
        with suppress(RescindError):
            self.serve()
        return After(
            short(" ".join(sorted(texts))),
            standing,
            stored,
            fresh,
            LATER in (self._held(user) or ()),
        )


def _words(ask: Ask) -> dict[str, list[str]]:
    if ask.kind == "leave":
        return {"withdraw": [*ask.users]}
    if ask.kind == "unshare":
        return {"unshare": [*ask.users]}
    return {"erase": [f"{user}:{','.join(ask.items[user])}" for user in ask.users]}


def _answers() -> list[dict[str, Any]]:
    facts = json.loads((OUT / "run.json").read_text())
    return [dict(one) for one in facts.get("forgot", ())]


def _folder(silo: int) -> Path:
    return Path(f"silo-{silo}")


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns
