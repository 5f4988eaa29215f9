"""Random lives of imported data: people leave, return, erase, by every route and in any order.

The oracle is a set of rows. After each step no run may have a row that it says is gone, and a run
that learns anew has exactly the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from rescind.forgetting.run_chain import current
from typer.testing import CliRunner, Result

from rescind.cli import app
from rescind.data.importing import append_file, import_file
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.methods.additive.gram import Gram
from rescind.storage.federations import load_federation

CELL = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))
USERS, ITEMS = [f"c{n}" for n in range(6)], [f"p{n}" for n in range(14)]
QUIET = ("--audits", "none")
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
    out_of_run: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    files: int = 0

    def pick(self, some: Sequence[T]) -> T:
        return some[int(torch.randint(len(some), (), generator=self.draw))]

    def counts(self, row: Row) -> bool:
        return row not in self.gone and row[0] not in self.left

    def in_run(self) -> set[Row]:
        return rows_of(current(Path("run")))

    def append(self) -> None:
        rows = {(self.pick(USERS), self.pick(ITEMS)) for _ in range(6)}
        self.files += 1
        file = Path(f"later-{self.files}.csv")
        file.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in sorted(rows)))
        append_file("shop", file)
        self.stored |= {row for row in rows if self.counts(row)}

    def learn(self) -> None:
        run_cell(CELL, Path("run"))
        wanted = {row for row in self.stored if self.counts(row) and row[0] not in self.out_of_run}
        assert self.in_run() == wanted, self.steps

    def leave_by_folder(self) -> None:
        user = self.pick(USERS)
        mine = {row for row in self.stored | self.in_run() if row[0] == user}
        said = self.ask({"withdraw": user})
        if said.exit_code:
            assert not {row for row in mine if self.counts(row)}, (
                f"refused: {said.output} {self.steps}"
            )
            self.forget_files()
            return
        self.left.add(user)
        self.out_of_run.add(user)
        self.gone |= mine
        self.stored -= mine

    def leave_by_command(self) -> None:
        user = self.pick(USERS)
        mine = {row for row in self.stored | self.in_run() if row[0] == user}
        run = current(Path("run"))
        said = rescind("forget", run, "--withdraw", user, *QUIET, "--request", "none")
        if said.exit_code:
            learnt = {row for row in self.in_run() if row[0] == user}
            assert not learnt, f"refused: {said.exception} {self.steps}"
            self.steps[-1] += f" refused {user}: {said.exception}"
            return
        self.left.add(user)
        self.out_of_run.add(user)
        self.gone |= mine & self.in_run()

    def erase_by_folder(self) -> None:
        self.erase(by_folder=True)

    def erase_by_command(self) -> None:
        self.erase(by_folder=False)

    def erase(self, by_folder: bool) -> None:
        if not (learnt := sorted(row for row in self.in_run() if row[0] in USERS)):
            return
        user, item = self.pick(learnt)
        if by_folder:
            said = self.ask({"erase": {"user": user, "items": [item]}})
        else:
            run = current(Path("run"))
            words = ("--user", user, "--item", item, *QUIET, "--request", "none")
            said = rescind("forget", run, *words)
        assert not said.exit_code, (said.output, said.exception)
        self.gone.add((user, item))
        if by_folder:
            self.stored.discard((user, item))

    def delete_rows(self) -> None:
        user = self.pick(USERS)
        out = f"rows-{len(self.steps)}.json"
        said = rescind("data", "erase", "shop", "--user", user, "--out", out, "--request", "none")
        if not said.exit_code:
            mine = {row for row in self.stored if row[0] == user}
            self.gone |= mine
            self.stored -= mine

    def return_(self) -> None:
        if not self.left:
            return
        user = self.pick(sorted(self.left))
        named = self.pick((True, False))
        words = ("--run", "run") if named else ()
        if named:
            self.out_of_run.discard(user)
        said = rescind("data", "admit", "shop", "--user", user, *words)
        assert not said.exit_code, said.exception
        self.left.discard(user)
        mine = {row for row in self.stored if row[0] == user}
        self.gone |= mine
        self.stored -= mine

    def ask(self, request: dict[str, object]) -> Result:
        Path(f"requests/r{len(self.steps)}.json").write_text(json.dumps(request))
        self.steps[-1] += f" {request}"
        return rescind("requests", "run", "requests", "--run", "run", *QUIET)

    def forget_files(self) -> None:
        for path in Path("requests").glob("*.json"):
            path.unlink()

    def check(self) -> None:
        kept = {row for row in self.in_run() if row in self.gone}
        assert not kept, f"the run still has {kept} after {self.steps}"


STEPS = (
    Shop.append, Shop.append, Shop.learn, Shop.leave_by_folder, Shop.leave_by_command,
    Shop.erase_by_folder, Shop.erase_by_command, Shop.delete_rows, Shop.return_, Shop.return_,
)  # fmt: skip


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 100))]
)
def test_what_is_gone_stays_away_and_the_rest_counts(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    draw = torch.Generator().manual_seed(seed)
    shop = Shop(draw)
    shop.stored |= {(u, shop.pick(ITEMS)) for u in USERS for _ in range(6)}
    shop.stored |= {(f"stays {n}", item) for n in range(8) for item in ITEMS[:11]}
    rows = "".join(f"{u},{i}\n" for u, i in sorted(shop.stored))
    Path("shop.csv").write_text("user,item\n" + rows)
    import_file(Path("shop.csv"), "shop")
    run_cell(CELL, Path("run"))
    Path("requests").mkdir()
    for _ in range(14):
        step = shop.pick(STEPS)
        shop.steps.append(step.__name__)
        step(shop)
        shop.check()
        if len(shop.left) > 3:
            shop.return_()
    shop.append()
    shop.learn()
