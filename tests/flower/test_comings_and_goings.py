"""Random lives of silos: they come and go, the server is killed, people leave and return.

The oracle is a set of rows. Whatever happens in between, in the end no silo holds and no machine
stores what was asked to be gone, every request is answered, and the receipts are one chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import InMemory
from flower.silo_shop import Row, SiloShop, asks, stored_rows
from rescind.cli.request import app
from rescind.data import import_file
from rescind.data.importing import append_file
from rescind.errors import ConfigError, RescindError
from rescind.flower.silo.names import ITEM, USER, key_of
from rescind.flower.silo.node import Node
from rescind.home import Ledger
from rescind.receipts.receipt import digest, parse
from rescind.requests.words import Words

pytestmark = pytest.mark.flower

SILOS = 2
IDS = [f"customer {n}" for n in range(16, 0, -1)]
ITEMS = [f"product {n}" for n in range(20)]
ASKING = IDS[:6]
"""Who asks for something; the others only learn."""
T = TypeVar("T")


class Killing(InMemory):
    """A grid that kills the server at one of its exchanges."""

    left = -1

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().push_messages(messages)


@dataclass
class Shops(SiloShop):
    """What happens to the silos of a shop, and what must hold."""

    grid: type[InMemory] = Killing
    draw: torch.Generator = field(default_factory=torch.Generator)
    gone: set[Row] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    files: int = 0
    killed: int = -1

    def pick(self, some: Sequence[T]) -> T:
        return some[int(torch.randint(len(some), (), generator=self.draw))]

    def made(self, nodes: dict[int, Node]) -> InMemory:
        grid = Killing(nodes)
        grid.left, self.killed = self.killed, -1
        return grid

    def named(self) -> set[Row]:
        """Return every row that a silo's disk has in any moment, by original ids."""
        users = {key_of(USER, one): one for one in IDS}
        items = {key_of(ITEM, one): one for one in ITEMS}
        return {(users[user], items[item]) for user, item in self.held() if user in users}

    # -- steps ------------------------------------------------------------------------------------

    def ask(self, *words: Words) -> None:
        """Give a request; killed, or with nobody there, it is given again in the same words."""
        self.steps.append(f"{words} away={self.away} kill={self.killed}")
        try:
            self.serve(*words)
        except KeyboardInterrupt:
            self.steps.append("killed")
            with suppress(RescindError):
                self.serve(*words, resume=self.pick((True, False)))
        except RescindError as error:
            self.steps.append(str(error))

    def leave(self) -> None:
        user = self.pick(ASKING)
        held = {row for row in self.named() if row[0] == user}
        if not held or user in self.left:
            return
        self.killed = self.pick((-1, -1, 0, 1, 2, 4, 6))
        self.ask(*asks(leave=[user]))
        self.left.add(user)
        self.gone |= held

    def erase(self) -> None:
        rows = sorted(row for row in self.named() if row[0] in ASKING and row not in self.gone)
        rows = [row for row in rows if row[0] not in self.left]
        if not rows:
            return
        user, item = self.pick(rows)
        self.killed = self.pick((-1, -1, 0, 1, 2, 4, 6))
        self.ask(*asks(erase={user: [item]}))
        self.gone.add((user, item))

    def go_away(self) -> None:
        self.away = {self.pick(range(SILOS))}
        self.steps.append(f"away {self.away}")

    def come_back(self) -> None:
        self.away = set()

    def train(self) -> None:
        if not self.away:
            self.steps.append("train")
            self.learn()

    def learn(self) -> None:
        """Train anew; a request that a silo has not confirmed yet is finished first."""
        try:
            self.serve()
        except ConfigError:
            self.serve(resume=True)
            self.serve()

    def return_(self) -> None:
        if not self.left or self.away:
            return
        user = self.pick(sorted(self.left))
        self.settle()
        self.steps.append(f"return {user}")
        before = {row for row in stored_rows() if row[0] == user}
        for silo in range(SILOS):  # all have the same table
            words = ["readmit", "--user", user, "--silo", str(self.silo(silo))]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, (done.exception, self.steps)
        self.left.discard(user)
        self.gone |= before
        self.files += 1
        file = self.folder / f"later-{self.files}.csv"
        new = self.pick(ITEMS)
        file.write_text(f"user,item\n{user},{new}\n")
        append_file("shop", file)
        self.learn()
        mine = {row for row in self.named() if row[0] == user}
        assert mine == {(user, new)} - self.gone, self.steps

    def settle(self) -> None:
        """All are there, and whatever was asked is done."""
        self.away, self.killed = set(), -1
        self.serve(*asks(leave=sorted(self.left)), resume=True)
        rows = sorted(row for row in self.gone if row[0] not in self.left)
        for user, item in rows:
            self.serve(*asks(erase={user: [item]}), resume=True)

    def check(self) -> None:
        for found in (self.named(), stored_rows()):
            kept = found & self.gone
            kept |= {row for row in found if row[0] in self.left}
            assert not kept, f"{kept} is there after {self.steps}"


STEPS = (
    Shops.leave, Shops.erase, Shops.erase, Shops.go_away, Shops.come_back, Shops.come_back,
    Shops.train, Shops.return_, Shops.return_,
)  # fmt: skip


@pytest.fixture
def shops(tmp_path: Path) -> Shops:
    """A run on imported data over two silos."""
    rows = [f"{user},{ITEMS[(7 * n + 5 * k) % 20]}" for n, user in enumerate(IDS) for k in range(8)]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(tmp_path / "shop.csv", "shop")
    made = Shops(tmp_path, SILOS)
    made.write_recipe()
    made.serve()
    return made


def chain() -> int:
    """Return the number of receipts; they must be one chain, and every request answered."""
    with Ledger.open() as ledger:
        asked = ledger.requests()
        assert {one.outcome for one in asked} <= {"ERASED", "REPEATED", "ROWS_ONLY"}
        bodies = [ledger.receipt(one)[0] for one in {one.receipt for one in asked if one.receipt}]
    after = {parse(body).previous: digest(body) for body in bodies}
    assert len(after) == len(bodies), "two follow the same one"
    steps, last = 0, ""
    while last in after:
        steps, last = steps + 1, after[last]
    assert steps == len(bodies), "some are on no chain"
    return steps


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 60))]
)
def test_what_is_gone_stays_away_and_receipts_are_one_chain(shops: Shops, seed: int) -> None:
    shops.draw.manual_seed(seed)
    for _ in range(8):
        shops.pick(STEPS)(shops)
    shops.settle()
    shops.check()
    assert bool(chain()) == bool(shops.gone)
    shops.train()
    shops.check()


@pytest.mark.parametrize("kill", range(6))
def test_the_same_request_after_a_kill_is_answered_once_also_without_resume(
    shops: Shops, kill: int
) -> None:
    shops.killed = kill
    with pytest.raises(KeyboardInterrupt):
        shops.serve(*asks(leave=["customer 7"]))
    told: Any = shops.serve(*asks(leave=["customer 7"]))
    assert [one["outcome"] for one in told["requests"]] == ["ERASED"]
    assert "customer 7" not in {user for user, _ in shops.named() | stored_rows()}
    assert chain() == 1
