"""Machines with data of their own: people of their own, or what does not go together is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Message

from flower.deployments import free_port
from flower.grids import FIRST, InMemory
from flower.served import GRAPH, SHOP, results
from flower.silo_shop import asks, outcomes
from rescind.cli.flower import app
from rescind.cli.request import app as request_app
from rescind.core.federation import Federation
from rescind.core.labels import Labels, left
from rescind.data.erasing import delete_rows
from rescind.data.erasing import rows_of as rows_in
from rescind.data.importing import append_file, import_file, load_imported
from rescind.errors import ConfigError, DataError, RescindError
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server import executor
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.names import table_facts
from rescind.flower.silo.node import Node
from rescind.flower.silo.own_people import OwnPeople, elsewhere, read_items
from rescind.flower.silo.recommend import recommend_to
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.steps import HELD
from rescind.home import Ledger
from rescind.requests.words import Words

pytestmark = pytest.mark.flower

A, B = ([f"{letter}{n}" for n in range(1, 13)] for letter in "ab")
"""The people of two machines."""


def rows(people: Iterable[str], items: int, first: int = 0) -> list[str]:
    """Return rows of a file: eight items for each person, from a part of the catalogue."""
    return [
        f"{user},item {first + (7 * n + k * (1 + n % 3)) % items}"
        for n, user in enumerate(people)
        for k in range(8)
    ]


@dataclass(frozen=True)
class Machine:
    """A silo's machine: its own imports and keys, and its process."""

    folder: Path
    number: int
    silos: int = 2
    catalogue: tuple[str, ...] = ()
    """The items of all silos, if the table has this machine's people only."""

    @contextmanager
    def here(self) -> Iterator[None]:
        """Work on this machine."""
        with patch.dict(os.environ, {"RESCIND_HOME": str(self.folder / "home")}):
            yield

    def imports(self, lines: Iterable[str]) -> Machine:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "shop.csv").write_text("\n".join(["user,item", *lines]) + "\n")
        (self.folder / "shop.toml").write_text(SHOP)
        with self.here():
            import_file(self.folder / "shop.csv", "shop", replace=True)
        return self

    @property
    def store(self) -> Store:
        return Store(self.folder / f"silo-{self.number}")

    @property
    def data(self) -> RecipeData:
        people = None
        if self.catalogue:
            (self.folder / "items.txt").write_text("\n".join(self.catalogue) + "\n")
            people = OwnPeople(self.folder / "items.txt", self.number, self.silos)
        return RecipeData(str(self.folder / "shop.toml"), people=people)

    def answer(self, request: Letter) -> Letter:
        with self.here():
            self.data.note_in(self.store)
            return Node(self.store, self.data, self.number, self.silos).answer(request)

    def recommended(self, user: str) -> list[str]:
        with self.here():
            return [one.item for one in recommend_to(self.store.folder, user, 5)]


class Killing(InMemory):
    """A grid that kills the server at one of its exchanges."""

    left = -1

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().push_messages(messages)


def run(
    folder: Path,
    *machines: Machine,
    asked: tuple[Words, ...] = (),
    killed: int = -1,
    **settings: Any,
) -> dict[str, Any]:
    """Train over machines, or answer requests. killed: exchanges before the server is killed"""
    (folder / "shop.toml").write_text(SHOP)
    wanted = RunRequest(
        str(folder / "shop.toml"), 2, str(folder / "out"), deadline=0.0, wait=0.0,
        requests=asked, **settings,
    )  # fmt: skip
    grid = Killing({FIRST + one.number: one for one in machines})  # type: ignore[misc]
    grid.left = killed
    serve(grid, wanted)
    return results(wanted)[0]


def items_of(name: str, user: str) -> list[str]:
    """Return the items that an imported table stores of a user."""
    mine = rows_in(load_imported(name), [user])
    return [str(item) for item in mine.items[mine.item]]


def machines(folder: Path, first: list[str], second: list[str]) -> list[Machine]:
    tables = enumerate((first, second))
    return [Machine(folder / f"machine-{n}", n).imports(table) for n, table in tables]


ALL = rows([*A, *B], 24)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (rows(B, 30), "30 items and 12 users, not 24 and 24"),
        (rows([*B, *A], 24), "as many, but other user ids"),
        (rows([*A, *B], 24, first=1), "as many, but other item ids"),
    ],
    ids=["another size", "other people", "other items"],
)
def test_silos_with_different_tables_are_refused_before_the_first_round(
    other: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos = machines(tmp_path, ALL, other)
    with pytest.raises(DataError, match=f"silo 1 has another table than silo 0: {says}") as told:
        run(tmp_path, *silos)
    assert not list((tmp_path / "out").glob("run.json"))
    assert not any(name in str(told.value) for name in ("a1", "b1", "item 1")), "no id is named"
    monkeypatch.setattr(executor, "check_tables", lambda _: None)
    assert run(tmp_path, *silos)["round"] == 3, "the control: without the check it is trained"


def test_silos_with_the_same_table_learn_each_with_keys_of_its_own(tmp_path: Path) -> None:
    """Each machine deletes the rows of who asks, so that all still have one table."""
    silos = machines(tmp_path, ALL, ALL)
    assert run(tmp_path, *silos)["client_rounds"] == 3 * 24
    facts = run(tmp_path, silos[0], asked=asks(leave=["a1"]))
    assert outcomes(facts) == ["WAITING"], "the other machine has the rows, too"
    assert outcomes(run(tmp_path, *silos, asked=asks(leave=["a2"]))) == ["ERASED"] * 2
    assert len(silos[0].recommended("a3")) == 5
    with pytest.raises(DataError):
        silos[0].recommended("nobody")
    for one in silos:
        with one.here():
            assert {"a1", "a2"}.isdisjoint(load_imported("shop").users)
    run(tmp_path, *silos)
    with silos[1].here():
        delete_rows("shop", [("a3", item) for item in items_of("shop", "a3")])
    with pytest.raises(DataError, match="erase from it on each machine alike"):
        run(tmp_path, *silos)


def test_silos_that_number_a_person_otherwise_answer_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos = machines(tmp_path, ALL, rows([*B, *A], 24))
    monkeypatch.setattr(executor, "check_tables", lambda _: None)
    run(tmp_path, *silos)
    facts = run(tmp_path, *silos, asked=asks(leave=["b1"]))
    assert outcomes(facts) == ["other-tables"]
    assert "forgot" not in facts


def test_what_is_compared_says_little_about_people() -> None:
    facts = table_facts(Labels(("anna", "bob"), ("soap",)), 2, 1)
    assert (facts["users"], facts["items"]) == (2, 1)
    assert [len(facts[name]) for name in ("user_ids", "item_ids")] == [8, 8]
    swapped = table_facts(Labels(("bob", "anna"), ("soap",)), 2, 1)
    assert swapped["user_ids"] != facts["user_ids"]
    assert swapped["item_ids"] == facts["item_ids"]


# -- tables of own people --------------------------------------------------------------------------

CATALOGUE = tuple(f"item {n}" for n in range(29, -1, -1))
"""In another order than the items appear in files."""


def own_machines(folder: Path, first: list[str], second: list[str]) -> list[Machine]:
    return [replace(one, catalogue=CATALOGUE) for one in machines(folder, first, second)]


def test_silos_with_their_own_people_learn_what_one_process_learns_from_all(
    tmp_path: Path,
) -> None:
    """No machine has the rows or the ids of another's people."""
    silos = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    facts = run(tmp_path, *silos)
    assert facts["client_rounds"] == 3 * (len(A) + len(B)), "nobody is left out"
    of = {line.split(",")[0]: list[str]() for line in (*rows(A, 24), *rows(B, 30))}
    for line in (*rows(A, 24), *rows(B, 30)):
        of[line.split(",")[0]].append(line)
    taking_turns = [line for pair in zip(A, B, strict=True) for user in pair for line in of[user]]
    alone = Machine(tmp_path / "alone", 0, 1, CATALOGUE).imports(taking_turns)
    with alone.here():
        holdings, labels = alone.data.hold(0)
        cell = one_cell(str(alone.folder / "shop.toml"), None)[1]
        fed = Federation.start(holdings, cell.method, cell.run.seed, labels=labels).run(3)
    model = results(RunRequest("", 2, str(tmp_path / "out")))[1]
    for name, value in fed.now.state.public.items():
        assert_close(model[name], value, rtol=1e-5, atol=1e-6)
    swapped = {n: v.roll(1, 0) for n, v in model.items() if n == "item"}
    assert swapped, "the model has rows of items"
    with pytest.raises(AssertionError):
        assert_close(swapped["item"], fed.now.state.public["item"], rtol=1e-5, atol=1e-6)


def rows_of(machine: Machine, user: str) -> int:
    """Return how many rows of a user a silo holds in all its states."""
    with machine.here():
        store, found = machine.store, 0
        moments = store.moments(HELD)
        assert moments
        for moment in moments:
            number = store.numbering(store.numbering_of(moment)).user(user)
            found += int((store.held(moment).records.client == number).sum())
        return found


def test_a_request_goes_to_the_silo_that_has_the_person(tmp_path: Path) -> None:
    silos = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    run(tmp_path, *silos)
    facts = run(tmp_path, *silos, asked=asks(leave=["b1"], erase={"a2": ["item 7"]}))
    assert outcomes(facts) == ["ERASED"] * 2
    assert rows_of(silos[1], "b1") == 0
    assert rows_of(silos[0], "a1") > 0, "nobody is taken for her"
    assert rows_of(silos[0], "a2") == rows_of(silos[0], "a1") - len(silos[0].store.moments(HELD))
    facts = run(tmp_path, *silos, asked=asks(leave=["nobody", elsewhere(3)]))
    assert outcomes(facts) == ["unknown-person"] * 2
    found = silos[1].recommended("b2")
    assert len(found) == 5
    assert {*found} <= {*CATALOGUE}
    mine = {line.split(",")[1] for line in rows(B, 30) if line.startswith("b2,")}
    assert not mine & {*found}, "items keep their names"
    for user in ("a1", elsewhere(0), "nobody", "b1"):
        with pytest.raises(RescindError):
            silos[1].recommended(user)
    run(tmp_path, *silos)
    assert rows_of(silos[1], "b1") == 0, "the silo remembers who left"


def test_the_machine_of_who_asks_deletes_their_rows_and_lets_them_in_again(tmp_path: Path) -> None:
    silos = own_machines(tmp_path, rows(A, 24), rows(["a1", *B], 30))
    run(tmp_path, *silos)
    asked = asks(leave=["b1"], erase={"a2": ["item 7"]})
    facts = run(tmp_path, *silos, asked=asked)
    assert outcomes(facts) == ["ERASED"] * 2
    with silos[0].here():
        assert len(items_of("shop", "a2")) == 7
        assert len(items_of("shop", "a1")) == 8, "nobody else"
    (tmp_path / "later.csv").write_text("user,item\nb1,item 29\nb2,item 29\n")
    with silos[1].here():
        assert "b1" not in load_imported("shop").users
        append_file("shop", tmp_path / "later.csv")
        assert "b1" not in load_imported("shop").users, "an append drops them"
        words = ["readmit", "--user", "b1", "--silo", str(silos[1].store.folder)]
        assert CliRunner().invoke(request_app, words).exit_code == 0
        (tmp_path / "again.csv").write_text("user,item\nb1,item 29\n")
        append_file("shop", tmp_path / "again.csv")
        assert items_of("shop", "b1") == ["item 29"]
    run(tmp_path, *silos)
    assert rows_of(silos[1], "b1") > 0


def test_a_person_whose_silo_is_away_waits_for_it(tmp_path: Path) -> None:
    silos = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    run(tmp_path, *silos)
    facts = run(tmp_path, silos[0], asked=asks(leave=["b1", "a1"]))
    assert outcomes(facts) == ["WAITING"] * 2
    assert len(facts["forgot"]) == 1, "what can be done is done"
    assert rows_of(silos[1], "b1") > 0
    assert outcomes(run(tmp_path, *silos, resume=True)) == ["ERASED"] * 2
    assert rows_of(silos[1], "b1") == 0
    with silos[1].here():
        assert "b1" not in load_imported("shop").users


@pytest.mark.parametrize(
    "missed", [pytest.param(1, marks=pytest.mark.slow), 2], ids=["missed one request", "missed two"]
)
def test_a_request_that_waited_for_its_silo_is_answered_when_it_is_back(
    missed: int, tmp_path: Path
) -> None:
    """A silo that had missed a training anew could not look anybody up, and was said to be away."""
    silos = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    run(tmp_path, *silos)
    for user in A[1:missed]:
        run(tmp_path, silos[0], asked=asks(leave=[user]))
    asked = asks(leave=[A[0], "b1", "nobody"])
    assert {*outcomes(run(tmp_path, silos[0], asked=asked))} == {"WAITING"}
    home, saved = Path(os.environ["RESCIND_HOME"]), tmp_path / "saved"
    shutil.copytree(tmp_path, saved)
    shutil.copytree(home, saved / "server")
    models = {}
    for killed in (-1, 1, 2, 4, 6):
        for name, place in (("server", home), *((n, tmp_path / n) for n in STATE)):
            shutil.rmtree(place)
            shutil.copytree(saved / name, place)
        if killed >= 0:
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path, *silos, resume=True, killed=killed)
        run(tmp_path, *silos, resume=True)
        with Ledger.open() as ledger:
            found = [one.code or one.outcome for one in ledger.requests()]
        assert found == ["ERASED"] * (missed + 1) + ["unknown-person"], killed
        assert rows_of(silos[1], "b1") == 0
        models[killed] = results(RunRequest("", 2, str(tmp_path / "out")))[1]
    for model in models.values():
        assert all(torch.equal(model[name], value) for name, value in models[-1].items())


STATE = ("out", "machine-0", "machine-1")


def test_a_silo_that_cannot_look_somebody_up_keeps_them_waiting(tmp_path: Path) -> None:
    silos = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    run(tmp_path, *silos)
    shutil.rmtree(silos[1].store.folder / "numbering")
    facts = run(tmp_path, *silos, asked=asks(leave=["b1", "a1"]))
    assert outcomes(facts) == ["WAITING", "ERASED"]
    assert "node failed" in facts["requests"][0]["reason"]
    assert len(facts["forgot"]) == 1, "the control: a1 is on silo 0"


def test_two_people_with_one_id_are_told_apart_by_their_silo(tmp_path: Path) -> None:
    silos = own_machines(tmp_path, rows(A, 24), rows(["b1", "a1", *B[1:]], 30))
    run(tmp_path, *silos)
    assert outcomes(run(tmp_path, *silos, asked=asks(leave=["a1"]))) == ["ambiguous"]
    assert rows_of(silos[0], "a1") * rows_of(silos[1], "a1") > 0
    assert outcomes(run(tmp_path, *silos, asked=asks(leave=["a1"]), at=1)) == ["ERASED"]
    assert rows_of(silos[0], "a1") > 0
    assert rows_of(silos[1], "a1") == 0
    with silos[0].here():
        assert len(items_of("shop", "a1")) == 8, "nor are rows of the other deleted"
    run(tmp_path, *silos)
    assert rows_of(silos[0], "a1") > 0


def test_lists_of_items_that_differ_and_mixed_silos_are_refused(tmp_path: Path) -> None:
    first, second = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    for other, says in (
        (CATALOGUE[::-1], "as many, but other item ids"), ((*CATALOGUE, "more"), "31 items, not 30")
    ):  # fmt: skip
        with pytest.raises(DataError, match=f"silo 1 has another list than silo 0: {says}"):
            run(tmp_path, first, replace(second, catalogue=other))
    with pytest.raises(DataError, match=r"silo 0 joined with --own .* and silo 1 without"):
        run(tmp_path, first, replace(second, catalogue=()))
    short = replace(second, catalogue=CATALOGUE[6:])
    with pytest.raises(DataError, match="6 of the 30 items of 'shop' are not in the list") as told:
        run(tmp_path, first, short)
    assert "item 29" not in str(told.value), "the server is not told which"
    with short.here(), pytest.raises(DataError, match=r"not in the list .*: item 2\d,"):
        short.data.check_own()  # as `join` does
    assert not list((tmp_path / "out").glob("run.json"))
    run(tmp_path, first, second)


def test_people_who_come_later_and_rows_that_were_erased_change_no_other_number(
    tmp_path: Path,
) -> None:
    silos = own_machines(tmp_path, rows(A, 24), rows(B, 30))
    with silos[0].here():
        before = silos[0].data.names().labels
        delete_rows("shop", [("a2", item) for item in items_of("shop", "a2")])
        (tmp_path / "later.csv").write_text("user,item\n" + "\n".join(rows(["a99"], 24)) + "\n")
        append_file("shop", tmp_path / "later.csv")
        after = silos[0].data.names().labels
        assert [after.client(u, 99) for u in ("a1", "a3", "a99")] == [0, 4, 2 * len(A)]
        assert before.users[2] == "a2"
        assert after.users[2] == left(2)
    facts = run(tmp_path, *silos)
    assert facts["client_rounds"] == 3 * (len(A) + len(B)), "one left and one came"


def test_a_list_of_items_has_each_item_once(tmp_path: Path) -> None:
    path = tmp_path / "items.txt"
    for text, says in (("", "is empty"), ("soap\n\nsoap\n", "has 'soap' twice")):
        path.write_text(text)
        with pytest.raises(DataError, match=says):
            read_items(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_items(tmp_path / "nowhere.txt")
    path.write_text("soap\r\n brush \n")
    assert read_items(path) == ["soap", "brush"]


def test_the_command_joins_with_its_own_users_or_names_items_that_the_list_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "machine", 1).imports(rows(B, 30))

    class StartedError(Exception):
        """Instead of a process."""

    def started(*_: object) -> None:
        raise StartedError

    monkeypatch.setattr("rescind.flower.deploy.started", started)

    def joined(listed: Iterable[str]) -> BaseException | None:
        (tmp_path / "items.txt").write_text("\n".join(listed))
        words = ["join", str(machine.folder / "shop.toml"), "--silo", "1/2", "--insecure"]
        where = ["--store", str(machine.store.folder), "--port", str(free_port())]
        with machine.here():
            own = ["--own", str(tmp_path / "items.txt")]
            return CliRunner().invoke(app, [*words, *where, *own]).exception

    assert "1 of the 30 items of 'shop' are not in the list items.txt: item 29." in str(
        joined(CATALOGUE[1:])
    )
    assert not machine.store.folder.exists()
    assert isinstance(joined(CATALOGUE), StartedError)
    people = OwnPeople(tmp_path / "items.txt", 1, 2)
    assert RecipeData.noted_in(machine.store).people == people, "`recommend` reads it there"


def test_graphs_and_streams_need_the_whole_table(tmp_path: Path) -> None:
    (tmp_path / "items.txt").write_text("soap\n")
    people = OwnPeople(tmp_path / "items.txt", 0, 2)
    stream = SHOP.replace('name = "shop"', 'name = "shop"\nvariant = "blocks"')
    for name, text in (("graph", GRAPH), ("stream", stream.replace("FedAvg", "F3CRec"))):
        (tmp_path / f"{name}.toml").write_text(text)
        with pytest.raises(ConfigError, match="not for graphs or streams"):
            RecipeData(str(tmp_path / f"{name}.toml"), people=people).check_own()
    machine = own_machines(tmp_path, rows(A, 24), rows(B, 30))[0]
    with machine.here():
        machine.data.check_own()
