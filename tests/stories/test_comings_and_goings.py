"""Random lives of imported data: people leave, return, erase, by every route and in any order.

The oracle is a set of rows. After each step no run may have a row that it says is gone, and a run
that learns anew has exactly the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from typer.testing import CliRunner, Result

from requesting import ask
from rescind.cli import app
from rescind.data.importing import append_file, import_file
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from rescind.storage.federations import load_federation

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
USERS, ITEMS = [f"c{n}" for n in range(6)], [f"p{n}" for n in range(14)]
Row = tuple[str, str]
T = TypeVar("T")


def rescind(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rows_of(run: Path) -> set[Row]:
    """Return all rows that a run has."""
    fed = load_federation(run / "model")
    records, labels = fed.now.vault.holdings.records, fed.labels
    pairs = zip(records.client.tolist(), records.item.tolist(), strict=True)
    return {(labels.users[u], labels.items[i]) for u, i in pairs}


@dataclass
class Shop:
    """What must be true, step by step; and the commands that must make it true."""

    draw: torch.Generator
    stored: set[Row] = field(default_factory=set)
    gone: set[Row] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    files: int = 0

    def pick(self, some: Sequence[T]) -> T:
        return some[int(torch.randint(len(some), (), generator=self.draw))]

    def counts(self, row: Row) -> bool:
        return row not in self.gone and row[0] not in self.left

    def in_run(self) -> set[Row]:
        return rows_of(Path("run"))

    def append(self) -> None:
        rows = {(self.pick(USERS), self.pick(ITEMS)) for _ in range(6)}
        self.files += 1
        file = Path(f"later-{self.files}.csv")
        file.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in sorted(rows)))
        append_file("shop", file)
        self.stored |= {row for row in rows if self.counts(row)}

    def learn(self) -> None:
        run_cell(CELL, Path("run"))
        assert self.in_run() == {row for row in self.stored if self.counts(row)}, self.steps

    def of(self, user: str) -> set[Row]:
        return {row for row in self.stored | self.in_run() if row[0] == user}

    def ask(self, kind: str, user: str, *items: str) -> None:
        mine = {row for row in self.of(user) if not items or row[1] in items}
        done = ask("shop", kind, user, items=items)
        self.steps[-1] += f" {kind} {user} {items}: {done.outcome} {done.code}"
        if any(self.counts(row) for row in mine):
            assert done.outcome in ("ERASED", "ROWS_ONLY"), self.steps
        elif done.outcome == "REFUSED":
            return
        if kind == "leave":
            self.left.add(user)
        self.gone |= mine
        self.stored -= mine

    def leave(self) -> None:
        self.ask("leave", self.pick(USERS))

    def erase_all(self) -> None:
        self.ask("erase", self.pick(USERS))

    def erase(self) -> None:
        if rows := sorted(row for row in self.in_run() if row[0] in USERS):
            self.ask("erase", *self.pick(rows))

    def return_(self) -> None:
        if not self.left:
            return
        user = self.pick(sorted(self.left))
        said = rescind("request", "readmit", "--user", user)
        assert not said.exit_code, said.exception
        self.left.discard(user)
        mine = {row for row in self.stored if row[0] == user}
        self.gone |= mine
        self.stored -= mine

    def check(self) -> None:
        kept = {row for row in self.in_run() if row in self.gone}
        assert not kept, f"the run still has {kept} after {self.steps}"


STEPS = (
    Shop.append, Shop.append, Shop.learn, Shop.leave, Shop.leave, Shop.erase, Shop.erase,
    Shop.erase_all, Shop.return_, Shop.return_,
)  # fmt: skip


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 100))]
)
def test_what_is_gone_stays_away_and_the_rest_counts(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(seed)
    shop = Shop(draw)
    shop.stored |= {(u, shop.pick(ITEMS)) for u in USERS for _ in range(6)}
    shop.stored |= {(f"stays {n}", item) for n in range(8) for item in ITEMS[:11]}
    rows = "".join(f"{u},{i}\n" for u, i in sorted(shop.stored))
    Path("shop.csv").write_text("user,item\n" + rows)
    import_file(Path("shop.csv"), "shop")
    run_cell(CELL, Path("run"))
    for _ in range(14):
        step = shop.pick(STEPS)
        shop.steps.append(step.__name__)
        step(shop)
        shop.check()
        if len(shop.left) > 3:
            shop.return_()
    shop.append()
    shop.learn()
