"""Whoever answers a person looks up what there is of them: in imported data, and in a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rescind.experiments.forget_run import answer
from rescind.experiments.read_request import NamedRecords
from typer.testing import CliRunner

from rescind.cli import app
from rescind.data.importing import import_file
from rescind.errors import RescindError
from rescind.experiments import prepared_data
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
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
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


def test_rows_that_a_run_forgot_are_shown_as_left_out_until_they_are_deleted(shop: Path) -> None:
    run_cell(CELL, shop / "run")
    answer(shop / "run", "withdraw", "K-03", audits="none")
    assert "12 rows of user 'K-03', 12 of them left out" in show("shop", "--user", "K-03")
    assert "0 of them left out" in show("shop", "--user", "K-04"), "control"
    assert "run-forgot-1" in error_of("run", "--user", "K-03"), "the newest run is named"


def test_who_asked_before_is_told_from_who_never_was_there(shop: Path) -> None:
    def told(*words: str) -> str:
        said = CliRunner().invoke(app, words)
        assert isinstance(said.exception, RescindError), said.output
        return str(said.exception)

    def of_every_command(run: str, user: str) -> list[str]:
        return [
            told("data", "show", run, "--user", user),
            told("recommend", run, "--user", user),
            told("forget", run, "--withdraw", user, "--request", "none"),
            told("audit", run, "--withdraw", user),
        ]

    fed = run_cell(CELL, shop / "run").fed
    answer(shop / "run", "withdraw", "K-03", audits="none")
    records = fed.now.vault.holdings.records
    theirs = records.item[records.client == fed.labels.client("K-04", 12)].unique().tolist()
    every = NamedRecords("K-04", tuple(fed.labels.item_id(item) for item in theirs))
    answer(shop / "run-forgot-1", "erase", every, audits="none")
    for said in of_every_command("run-forgot-2", "K-03"):
        assert said.startswith("user 'K-03' has left this run after an earlier request. See its")
    for said in (
        told("data", "show", "run-forgot-2", "--user", "K-04"),
        told("recommend", "run-forgot-2", "--user", "K-04"),
        told("audit", "run-forgot-2", "--withdraw", "K-04"),
    ):
        assert said.startswith("user 'K-04' had everything erased from this run after an earlier ")
        assert "and has not left: rows that come later count. See its receipt" in said
    # A run that learnt later never had them; its data knows.
    run_cell(CELL, shop / "later")
    for said in of_every_command("later", "K-03"):
        assert said.startswith("there is no user 'K-03' in this run. Its data, 'shop', leaves ")
        assert "after an earlier request: see its receipt" in said
    for run in ("run-forgot-2", "later"):
        for said in of_every_command(run, "K-77"):
            assert said.startswith("there is no user 'K-77' among 10"), "control: nobody"
            assert "after an earlier request" not in said


def test_a_run_says_how_many_rows_it_leaves_out(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told(folder: str) -> list[str]:
        caplog.clear()
        prepared_data._TOLD.clear()  # as in another process
        run_cell(CELL, shop / folder)
        return [one for one in caplog.messages if "users erased rows of 'shop'" in one]

    assert told("run") == [], "control: nobody asked"
    answer(shop / "run", "withdraw", "K-03", audits="none")
    answer(shop / "run-forgot-1", "erase", NamedRecords("K-04", ("art12",)), audits="none")
    (said,) = told("later")
    assert "on this machine: 13 rows of 2 users are left out here (the list: " in said
    for words in (["--user", "K-03"], ["--user", "K-04", "--item", "art12"]):
        assert CliRunner().invoke(app, ["data", "erase", "shop", *words]).exit_code == 0
    assert all("none of them is stored any more" in one for one in told("last"))


def test_rows_that_are_stored_and_left_out_are_counted_until_they_are_deleted(shop: Path) -> None:
    def data(*words: str) -> str:
        told = CliRunner().invoke(app, ["data", *words])
        assert told.exit_code == 0, (told.output, told.exception)
        return told.output

    counted = ("describe shop", "list", "append shop bought.csv")
    run_cell(CELL, shop / "run")
    for words in counted:
        assert "left out" not in data(*words.split()), "control: nobody asked"
    answer(shop / "run", "withdraw", "K-03", audits="none")
    answer(shop / "run-forgot-1", "erase", NamedRecords("K-04", ("art12",)), audits="none")
    for words in counted:
        said = data(*words.split())
        assert "13 rows of 2 users stored, but left out after a request" in said, words
        assert "K-0" not in said, "no ids where nobody asked for them"
    assert "11 users, 23 items, 120 rows\n" in data("describe", "shop"), "what is learnt"
    assert json.loads(data("describe", "shop", "--json"))["left_out"] == {
        "users": 2,
        "rows": 13,
        "users_in_part": 1,
    }
    assert json.loads(show("shop", "--left-out", "--json"))["users"] == {"K-03": 12, "K-04": 1}
    said = show("shop", "--left-out")
    assert "13 rows of 2 users stored" in said
    rows = [line.split() for line in said.splitlines()[2:4]]
    assert rows == [["K-03", "12", "12"], ["K-04", "1", "11"]]
    assert "erase shop --user USER; with --item ITEM where fewer rows are left out" in said
    assert "give --user USER, or --left-out" in error_of("shop")
    assert "not an imported dataset" in error_of("ml-100k", "--left-out")
    data("erase", "shop", "--user", "K-03")
    assert "1 row of 1 user stored, but left out" in data("describe", "shop")
    data("erase", "shop", "--user", "K-04", "--item", "art12")
    assert "left out" not in data("list")


@pytest.mark.parametrize("where", ["shop", "run"])
def test_an_unknown_person_is_answered_without_the_id_of_another(shop: Path, where: str) -> None:
    run_cell(CELL, shop / "run")
    said = error_of(where, "--user", "K-33")
    assert "there is no user 'K-33'" in said
    assert "K-0" not in said
    assert "there is no dataset and no run 'shoop'" in error_of("shoop", "--user", "K-03")


@pytest.mark.parametrize("where", ["shop", "run"])
def test_ids_that_look_like_the_given_one_are_named_where_people_are_looked_up(
    shop: Path, where: str
) -> None:
    run_cell(CELL, shop / "run")
    said = error_of(where, "--user", "k-03 ")
    assert "there is no user 'k-03 '" in said
    assert "Ids here that look like it: 'K-03'. Each may be another person's." in said
    assert "rescind data show shop" not in said, "it was just given"
    assert not re.search("K-(?!03)", said), "of those that are alike only"


@pytest.mark.parametrize(
    "words",
    [
        ("forget", "run", "--withdraw", "k-03", "--request", "none"),
        ("recommend", "run", "--user", "k-03"),
        ("data", "erase", "shop", "--user", "k-03"),
    ],
)
def test_a_refusal_says_where_such_an_id_is_looked_up_and_does_not_name_it(
    shop: Path, words: tuple[str, ...]
) -> None:
    run_cell(CELL, shop / "run")
    said = CliRunner().invoke(app, words)
    assert "Look it up with: rescind data show shop --user k-03. " in str(said.exception)
    assert "K-" not in f"{said.output}{said.exception}"
    nobody = CliRunner().invoke(app, [word.replace("k-03", "k-77") for word in words])
    assert "there is no user 'k-77'" in str(nobody.exception)
    assert "Look it up" not in str(nobody.exception), "control: nobody is alike"


def test_a_person_who_is_there_is_shown_with_the_ids_that_look_alike(shop: Path) -> None:
    assert "look like it" not in show("shop", "--user", "K-03"), "control"
    Path("more.csv").write_text("user,item,rating,timestamp,title\nk-03,art01,4,1700099999,T\n")
    assert CliRunner().invoke(app, ["data", "append", "shop", "more.csv"]).exit_code == 0
    assert "Ids here that look like it: 'k-03'. Each may" in show("shop", "--user", "K-03")
    assert "look like it" not in show("shop", "--user", "K-04"), "control: nobody is alike"
