"""Random lives of silos: they come and go, the server is killed, people leave and return.

The oracle is a set of rows. Whatever happens in between, in the end no silo holds what was asked to
be gone, every request that was not refused has a receipt, and the receipts are one chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from typer import Exit
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import FIRST, InMemory
from flower.served import results
from rescind.cli.data import app as data
from rescind.cli.flower_given import requests_named
from rescind.cli.verify import command
from rescind.data import import_file
from rescind.data.importing import append_file, load_imported
from rescind.errors import ConfigError, RescindError
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.steps import HELD

pytestmark = pytest.mark.flower

RECIPE = """
[data]
name = "shop"

[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
SILOS = 2
IDS = [f"customer {n}" for n in range(16, 0, -1)]
ITEMS = [f"product {n}" for n in range(20)]
ASKING = IDS[:6]
"""Who asks for something; the others only learn."""
Row = tuple[str, str]
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
class Shops:
    """Silos with their disks, a server that starts anew for each command, and what must hold."""

    folder: Path
    draw: torch.Generator = field(default_factory=torch.Generator)
    gone: set[Row] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    files: int = 0
    away: set[int] = field(default_factory=set)
    killed: int = -1

    def pick(self, some: Sequence[T]) -> T:
        return some[int(torch.randint(len(some), (), generator=self.draw))]

    def serve(self, resume: bool = False, **named: list[str]) -> Any:
        words = {"unshare": None, "erase": None, "withdraw": None, **named}
        asked = RunRequest(
            str(self.folder / "recipe.toml"), SILOS, str(self.folder / "out"), deadline=0, wait=0
        )
        asked = replace(asked, requests=requests_named(**words), resume=resume)
        source = RecipeData(asked.recipe)
        nodes = {
            FIRST + s: Node(Store(self.silo(s)), source, s, SILOS, single_updates=True)
            for s in range(SILOS)
            if s not in self.away
        }
        for s in range(SILOS):
            if s not in self.away:
                source.note_in(Store(self.silo(s)))
        grid = Killing(nodes)
        grid.left, self.killed = self.killed, -1
        serve(grid, asked)
        return results(asked)[0]

    def silo(self, number: int) -> Path:
        return self.folder / f"silo-{number}"

    def held(self) -> set[Row]:
        """Return every row that a silo's disk has in any moment."""
        found, names = set[Row](), [str(item) for item in load_imported("shop").items]
        for s in range(SILOS):
            store = Store(self.silo(s))
            for path in (store.folder / HELD).glob("*.safetensors"):
                records = store.held(int(path.stem, 16)).records
                pairs = zip(records.client.tolist(), records.item.tolist(), strict=True)
                found |= {(IDS[u], names[i]) for u, i in pairs}
        return found

    # -- steps ------------------------------------------------------------------------------------

    def ask(self, resume: bool = False, **named: list[str]) -> None:
        """Give a request; killed, or with nobody there, it is given again in the same words."""
        self.steps.append(f"{named} resume={resume} away={self.away} kill={self.killed}")
        try:
            self.serve(resume, **named)
        except KeyboardInterrupt:
            self.steps.append("killed")
            with suppress(RescindError):
                self.serve(self.pick((True, False)), **named)
        except RescindError as error:
            self.steps.append(str(error))

    def leave(self) -> None:
        user = self.pick(ASKING)
        held = {row for row in self.held() if row[0] == user}
        if not held or user in self.left:
            return
        self.killed = self.pick((-1, -1, 0, 1, 2, 4, 6))
        self.ask(withdraw=[user])
        self.left.add(user)
        self.gone |= held

    def erase(self) -> None:
        rows = sorted(row for row in self.held() if row[0] in ASKING and row not in self.gone)
        rows = [row for row in rows if row[0] not in self.left]
        if not rows:
            return
        user, item = self.pick(rows)
        self.killed = self.pick((-1, -1, 0, 1, 2, 4, 6))
        self.ask(erase=[f"{user}:{item}"])
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
        except ConfigError as error:
            if "repeat its command with --resume" not in str(error):
                raise
            self.serve(resume=True)
            self.serve()

    def return_(self) -> None:
        if not self.left or self.away:
            return
        user = self.pick(sorted(self.left))
        self.settle()
        self.steps.append(f"return {user}")
        before = {row for row in self.stored() if row[0] == user}
        words = ["admit", "shop", "--user", user, "--silo", str(self.silo(IDS.index(user) % SILOS))]
        done = CliRunner().invoke(data, words)
        assert done.exit_code == 0, (done.exception, self.steps)
        self.left.discard(user)
        self.gone |= before
        self.files += 1
        file = self.folder / f"later-{self.files}.csv"
        new = self.pick(ITEMS)
        file.write_text(f"user,item\n{user},{new}\n")
        append_file("shop", file)
        self.learn()
        mine = {row for row in self.held() if row[0] == user}
        assert mine == {(user, new)} - self.gone, self.steps

    def stored(self) -> set[Row]:
        table = load_imported("shop")
        pairs = zip(table.users[table.user].tolist(), table.items[table.item].tolist(), strict=True)
        return {(str(user), str(item)) for user, item in pairs}

    def settle(self) -> None:
        """All are there, and whatever was asked is done."""
        self.away, self.killed = set(), -1
        for user in sorted(self.left):
            with suppress(RescindError):
                self.serve(withdraw=[user])
        for user, item in sorted(self.gone):
            if user not in self.left:
                with suppress(RescindError):
                    self.serve(erase=[f"{user}:{item}"])

    def check(self) -> None:
        kept = self.held() & self.gone
        kept |= {row for row in self.held() if row[0] in self.left}
        assert not kept, f"{kept} is held after {self.steps}"


STEPS = (
    Shops.leave, Shops.erase, Shops.erase, Shops.go_away, Shops.come_back, Shops.come_back,
    Shops.train, Shops.return_, Shops.return_,
)  # fmt: skip


@pytest.fixture
def shops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shops:
    """A run on imported data over two silos."""
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = [f"{user},{ITEMS[(7 * n + 5 * k) % 20]}" for n, user in enumerate(IDS) for k in range(8)]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(tmp_path / "shop.csv", "shop")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "recipe.toml").write_text(RECIPE)
    made = Shops(tmp_path / "served")
    made.serve()
    return made


def verified(shops: Shops, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(Exit) as ended:
        command(shops.folder / "out" / "receipts")
    said = capsys.readouterr().out
    assert ended.value.exit_code == 0, f"{said} {shops.steps}"
    assert "does not fork" in said
    return said


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 60))]
)
def test_what_is_gone_stays_away_and_receipts_are_one_chain(
    shops: Shops, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shops.draw.manual_seed(seed)
    for _ in range(8):
        shops.pick(STEPS)(shops)
    shops.settle()
    shops.check()
    if shops.gone:
        verified(shops, capsys)
    shops.train()
    shops.check()


@pytest.mark.parametrize("kill", range(6))
def test_the_same_request_after_a_kill_is_answered_once_also_without_resume(
    shops: Shops, kill: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shops.killed = kill
    with pytest.raises(KeyboardInterrupt):
        shops.serve(withdraw=["customer 7"])
    shops.serve(withdraw=["customer 7"])
    assert "customer 7" not in {user for user, _ in shops.held()}
    assert "1 receipt: 1 valid" in verified(shops, capsys)


def test_an_item_that_the_file_has_twice_is_named_once_in_the_command_that_deletes_it(
    shops: Shops, caplog: pytest.LogCaptureFixture
) -> None:
    user, item = next(row for row in sorted(shops.held()) if row[0] == "customer 7")
    shops.serve(erase=[f"{user}:{item}"])
    (told,) = (r.getMessage() for r in caplog.records if "To delete them" in r.getMessage())
    assert "2 rows" in told, "the control: the file has it twice"
    assert told.endswith(f"rescind data erase shop --user '{user}' --item '{item}'")
