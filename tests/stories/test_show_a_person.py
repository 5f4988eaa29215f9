"""Whoever answers a person looks up what there is of them: in imported data, and in a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from requesting import ask
from rescind.cli import app
from rescind.data.importing import import_file
from rescind.errors import RescindError
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.experiments.recipe import SharingSettings
from rescind.methods.additive.gram import Gram

CELL = Cell(
    "c",
    DataSettings(name="shop"),
    SharingSettings(ratio=(1, 1, 1), part=0.5),
    Gram(),
    RunSettings(rounds=1, evaluate_every=1),
)
BOUGHT = [
    f"K-{user:02d},art{(3 * user + 5 * n) % 23:02d},{1 + n % 5},{1_700_000_000 + 1000 * user + n}"
    for user in range(12)
    for n in range(11)
]
AGAIN = "K-03,art09,5,1700009999"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An imported dataset and a run on it, in which some lend."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{line},Thing {line.split(',')[1]}" for line in (*BOUGHT, AGAIN)]
    Path("bought.csv").write_text("\n".join(["user,item,rating,timestamp,title", *lines]) + "\n")
    import_file("bought.csv", "shop", columns={"title": "title"})
    return tmp_path


def show(*words: str) -> str:
    told = CliRunner().invoke(app, ["data", "show", *words])
    assert told.exit_code == 0, (told.output, told.exception)
    return told.output


def error_of(*words: str) -> str:
    told = CliRunner().invoke(app, ["data", "show", *words])
    assert isinstance(told.exception, RescindError)
    return f"{told.output}{told.exception}"


def test_every_stored_row_of_one_person_is_listed_by_original_ids(shop: Path) -> None:
    said = show("shop", "--user", "K-03")
    assert said.startswith("shop: 12 rows of user 'K-03', 0 of them left out\n")
    assert "K-0" not in said.replace("K-03", ""), "of nobody else"
    assert any(
        line.split() == ["art09", "Thing", "art09", "5", "2023-11-15T00:59:59Z", "no"]
        for line in said.splitlines()
    )
    rows = json.loads(show("shop", "--user", "K-03", "--json"))["rows"]
    given = [line.split(",") for line in (*BOUGHT, AGAIN) if line.startswith("K-03,")]
    assert sorted((r["item"], r["rating"], r["time"]) for r in rows) == sorted(
        (item, float(rating), int(time)) for _, item, rating, time in given
    )
    assert not any(row["left_out"] for row in rows)
    assert {row["title"] for row in rows} == {f"Thing {row['item']}" for row in rows}


def test_of_a_run_it_is_told_whether_each_is_lent(shop: Path) -> None:
    fed = run_cell(CELL, shop / "run").fed
    lenders = fed.world.shared.client.unique().tolist()
    seen = set()
    for client in range(12):
        user = fed.labels.user_id(client)
        shared = fed.world.shared.item[fed.world.shared.client == client].tolist()
        table = json.loads(show("run", "--user", user, "--json"))
        lent = {row["item"] for row in table["rows"] if row["lent"]}
        assert lent == {fed.labels.item_id(item) for item in shared}
        assert (len(lent) > 0) == (client in lenders)
        said = show("run", "--user", user)
        rows, marked = len(table["rows"]), sum(row["lent"] for row in table["rows"])
        assert rows == (12 if user == "K-03" else 11)
        assert f"run: {rows} rows of user '{user}', {marked} of them lent\n" in said
        assert {row["rating"] for row in table["rows"]} == {1.0, 2.0, 3.0, 4.0, 5.0}
        seen.add(len(lent))
    assert len(seen) > 1, "control: some lend nothing"


def test_who_left_is_told_from_who_never_was_there_by_every_command(shop: Path) -> None:
    def codes(*words: str) -> str:
        told = CliRunner().invoke(app, [*words])
        assert isinstance(told.exception, RescindError), told.output
        return told.exception.code

    run_cell(CELL, shop / "run")
    ask("shop", "leave", "K-03")
    ask("shop", "erase", "K-04")
    commands = (("data", "show", "run"), ("recommend", "run"), ("audit", "run"))
    for words in commands:
        said = [codes(*words, "--user", user) for user in ("K-03", "K-04", "K-77")]
        assert said == ["has-left", "erased", "unknown-person"], words
    assert [codes("data", "show", "shop", "--user", user) for user in ("K-03", "K-77")] == [
        "unknown-person", "unknown-person",
    ]  # fmt: skip
    assert show("shop", "--user", "K-05"), "control"


@pytest.mark.parametrize("where", ["shop", "run"])
def test_an_unknown_person_is_answered_without_the_id_of_another(shop: Path, where: str) -> None:
    run_cell(CELL, shop / "run")
    said = error_of(where, "--user", "K-33")
    assert "K-33" in said
    assert "K-0" not in said
    assert "there is no dataset and no run 'shoop'" in error_of("shoop", "--user", "K-03")


@pytest.mark.parametrize(
    "words",
    [
        ("forget", "run", "--user", "k-03"),
        ("recommend", "run", "--user", "k-03"),
    ],
)
def test_a_refusal_does_not_name_an_id_that_looks_alike(shop: Path, words: tuple[str, ...]) -> None:
    run_cell(CELL, shop / "run")
    said = CliRunner().invoke(app, words)
    assert isinstance(said.exception, RescindError)
    assert said.exception.code == "unknown-person"
    assert "K-" not in f"{said.output}{said.exception}"


def test_a_person_who_is_there_is_shown_with_the_ids_that_look_alike(shop: Path) -> None:
    assert "look like it" not in show("shop", "--user", "K-03"), "control"
    Path("more.csv").write_text("user,item,rating,timestamp,title\nk-03,art01,4,1700099999,T\n")
    assert CliRunner().invoke(app, ["data", "append", "shop", "more.csv"]).exit_code == 0
    assert "Ids here that look like it: 'k-03'. Each may" in show("shop", "--user", "K-03")
    assert "look like it" not in show("shop", "--user", "K-04"), "control: nobody is alike"
