"""Machines with data of their own: what does not go together is refused before the first round."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory
from flower.served import SHOP, results
from rescind.cli.flower_given import requests_named
from rescind.core.labels import Labels
from rescind.data.erasing import erase_imported
from rescind.data.importing import import_file
from rescind.errors import DataError
from rescind.flower.run_request import NamedRequest, RunRequest
from rescind.flower.server import executor
from rescind.flower.server.naming import Numbers, UnknownError
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.names import table_facts
from rescind.flower.silo.node import Node
from rescind.flower.silo.recommend import recommend_to
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter

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

    @contextmanager
    def here(self) -> Iterator[None]:
        """Work on this machine."""
        places = {"RESCIND_CACHE": self.folder / "cache", "RESCIND_KEYS": self.folder / "keys"}
        before = {name: os.environ.get(name) for name in places}
        os.environ.update({name: str(place) for name, place in places.items()})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

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
        return RecipeData(str(self.folder / "shop.toml"))

    def answer(self, request: Letter) -> Letter:
        with self.here():
            self.data.note_in(self.store)
            return Node(self.store, self.data, self.number, self.silos).answer(request)

    def recommended(self, user: str) -> list[str]:
        with self.here():
            return [one.item for one in recommend_to(self.store.folder, user, 5)]


def run(folder: Path, *machines: Machine, **named: Any) -> dict[str, Any]:
    """Train over machines, or answer requests."""
    (folder / "shop.toml").write_text(SHOP)
    words = {"unshare": None, "erase": None, "withdraw": None, **named}
    at = words.pop("at", None)
    requests = tuple(replace(one, silo=at) for one in requests_named(**words))
    asked = RunRequest(
        str(folder / "shop.toml"), 2, str(folder / "out"), deadline=0.0, wait=0.0,
        requests=requests,
    )  # fmt: skip
    grid = InMemory({FIRST + one.number: one for one in machines})  # type: ignore[misc]
    serve(grid, asked)
    return results(asked)[0]


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
    silos = machines(tmp_path, ALL, ALL)
    assert run(tmp_path, *silos)["client_rounds"] == 3 * 24
    run(tmp_path, *silos, withdraw=["a2"])
    assert len(silos[0].recommended("a1")) == 5
    with pytest.raises(DataError, match="there is no user 'nobody'"):
        silos[0].recommended("nobody")
    with silos[1].here():
        erase_imported("shop", ["a2"])
    with pytest.raises(DataError, match="erase from it on each machine alike"):
        run(tmp_path, *silos)
    with silos[0].here():
        erase_imported("shop", ["a2"])
    run(tmp_path, *silos)


def test_a_run_over_different_tables_answers_nobody_by_the_number_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version trained it, when nobody compared tables."""
    silos = machines(tmp_path, rows(A, 24), rows(B, 30))
    monkeypatch.setattr(executor, "check_tables", lambda _: None)
    run(tmp_path, *silos)
    facts = run(tmp_path, *silos, withdraw=["b1", "a1"])
    (refused,) = facts["refused_requests"]
    assert "silo 1 says that user 'b1' is on silo 0" in refused["why"]
    assert len(facts["forgot"]) == 1, "the control: a1 is on silo 0"
    with pytest.raises(DataError, match="the model has 30 items and this silo's table 24"):
        silos[0].recommended("a3")


def test_a_number_counts_only_if_the_silo_that_has_the_person_agrees() -> None:
    def told(**answers: dict[int, int]) -> Numbers:
        return Numbers(2, dict(answers), {}, "")

    ask = NamedRequest("withdraw", "eve")
    assert told(eve={0: 3, 1: 3}).of(ask)[0] == 3
    assert told(eve={0: 3}).of(ask)[0] == 3, "her silo is away, and another one knows her number"
    assert told(eve={0: -1, 1: 3}).of(ask)[0] == 3
    with pytest.raises(UnknownError, match="no silo knows user 'eve'"):
        told(eve={0: -1, 1: -1}).of(ask)
    for elsewhere in (-1, 5):
        with pytest.raises(UnknownError, match="different tables"):
            told(eve={0: 3, 1: elsewhere}).of(ask)
    two = told(eve={0: 2, 1: 3})
    with pytest.raises(UnknownError, match="silos 0, 1 each have a user 'eve'"):
        two.of(ask)
    assert [two.of(replace(ask, silo=silo))[0] for silo in (0, 1)] == [2, 3]


def test_what_is_compared_says_little_about_people() -> None:
    facts = table_facts(Labels(("anna", "bob"), ("soap",)), 2, 1)
    assert (facts["users"], facts["items"]) == (2, 1)
    assert [len(facts[name]) for name in ("user_ids", "item_ids")] == [8, 8]
    swapped = table_facts(Labels(("bob", "anna"), ("soap",)), 2, 1)
    assert swapped["user_ids"] != facts["user_ids"]
    assert swapped["item_ids"] == facts["item_ids"]
