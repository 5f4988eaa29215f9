"""A shop over silos in this process: each silo has a disk, and each command a server of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower.grids import FIRST, InMemory
from flower.served import results
from rescind.data.importing import load_imported
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.steps import HELD
from rescind.requests.words import Words

RECIPE = """
[data]
name = "shop"

[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
"""Of imported data, which the test imports under this name."""
Row = tuple[str, str]


def asks(
    leave: Sequence[str] = (),
    erase: Mapping[str, Sequence[str]] | None = None,
    unshare: Sequence[str] = (),
) -> tuple[Words, ...]:
    """Return requests, each of one person. erase: items by user"""
    found = [Words("unshare", {user: None}) for user in unshare]
    found += [Words("erase", {user: tuple(items)}) for user, items in (erase or {}).items()]
    return (*found, *(Words("leave", {user: None}) for user in leave))


@dataclass
class SiloShop:
    """Silos with their disks, and a server that starts anew for each command."""

    folder: Path
    silos: int
    grid: type[InMemory] = InMemory
    away: set[int] = field(default_factory=set)
    """Silos that no command reaches."""
    single_updates: bool = True

    def write_recipe(self, text: str = RECIPE) -> None:
        (self.folder / "recipe.toml").write_text(text)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def silo(self, number: int) -> Path:
        return self.folder / f"silo-{number}"

    def serve(
        self, *requests: Words, resume: bool = False, away: Collection[int] = (), **settings: Any
    ) -> dict[str, Any]:
        """Start the silos that are there and the server; return run.json."""
        asked = RunRequest(
            self.recipe, self.silos, str(self.out), deadline=0, wait=0, resume=resume,
            requests=requests, **settings,
        )  # fmt: skip
        serve(self.made(self.joined(away)), asked)
        return results(asked)[0]

    @property
    def recipe(self) -> str:
        return str(self.folder / "recipe.toml")

    def joined(self, away: Collection[int] = ()) -> dict[int, Node]:
        """Return the silos that are there, as `rescind flower join` starts them."""
        source, nodes = RecipeData(self.recipe), {}
        for s in range(self.silos):
            if s not in self.away and s not in away:
                source.note_in(Store(self.silo(s)))
                nodes[FIRST + s] = Node(
                    Store(self.silo(s)), source, s, self.silos, single_updates=self.single_updates
                )
        return nodes

    def made(self, nodes: dict[int, Node]) -> InMemory:
        """Return the grid of a command."""
        return self.grid(nodes)

    def held(self, newest: bool = False) -> set[Row]:
        """Return every row that a silo's disk has. newest: in its last moment only"""
        found = set[Row]()
        for s in range(self.silos):
            store = Store(self.silo(s))
            paths = sorted((store.folder / HELD).glob("*.safetensors"), key=_written)
            for path in paths[-newest:] if newest else paths:
                moment = int(path.stem, 16)
                keys = store.numbering(store.numbering_of(moment))
                records = store.held(moment).records
                pairs = zip(records.client.tolist(), records.item.tolist(), strict=True)
                found |= {(keys.users[u], keys.items[i]) for u, i in pairs}
        return found


def stored_rows() -> set[Row]:
    """Return every row that is stored of the shop."""
    table = load_imported("shop")
    pairs = zip(table.users[table.user].tolist(), table.items[table.item].tolist(), strict=True)
    return {(str(user), str(item)) for user, item in pairs}


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns


def outcomes(facts: Mapping[str, Any]) -> list[str]:
    """Return what the requests of a command came to; of a refused one the code."""
    return [one["code"] or one["outcome"] for one in facts["requests"]]
