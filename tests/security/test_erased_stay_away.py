"""Erased people do not come back: by another run, another folder, another import, another name."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from requesting import CELL, LENDING, ROWS, Shop, elsewhere, write_rows
from rescind.cli import app
from rescind.data import load
from rescind.data.importing import append_file, import_file, imported_folder
from rescind.errors import ConfigError, DataError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import DataSettings
from rescind.receipts.receipt import parse

CANARY, ONLY_THEIRS = "canary-7f3a9c51", "film-e2d8b640"
TABLE = [*ROWS, (CANARY, "p1"), (CANARY, "p2"), (CANARY, ONLY_THEIRS)]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.opened(tmp_path / "shop", TABLE)


def holding(folder: Path, text: str) -> list[str]:
    """Return the files below a folder that hold a text, whatever their form."""
    return sorted(path.name for path in folder.rglob("*") if text.encode() in _content(path))


def _content(path: Path) -> bytes:
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return str(pq.read_table(path).to_pydict()).encode()
    return path.read_bytes() if path.is_file() else b""


def test_nothing_of_who_left_is_in_any_file_of_data_or_runs(shop: Shop, tmp_path: Path) -> None:
    assert holding(shop.run(), CANARY), "control: names are found"
    assert holding(imported_folder(), ONLY_THEIRS), "control: items are found"
    shop.ask("leave", CANARY)
    shop.learn("two")
    for folder in (imported_folder(), shop.run(), shop.run("two")):
        assert holding(folder, CANARY) == holding(folder, ONLY_THEIRS) == []
    assert CANARY not in obtained(CELL).users, "what a silo loads"


def test_a_later_import_or_append_leaves_them_out(shop: Shop, tmp_path: Path) -> None:
    shop.ask("leave", CANARY)
    shop.ask("erase", "c4", items=["p2"])
    import_file(write_rows(tmp_path / "again.csv", TABLE), "shop", replace=True)
    again = load("shop")
    assert CANARY not in again.users
    assert len(again) == len(TABLE) - 4, "three rows, and one of c4"
    shop.arrive(CANARY, ["p7"])
    assert len(load("shop")) == len(again)
    shop.arrive("c4", ["p7"])
    assert len(load("shop")) == len(again) + 1, "control: others come"


def test_the_same_file_appended_adds_nothing(shop: Shop, tmp_path: Path) -> None:
    rows, table = len(load("shop")), tmp_path / "shop" / "shop.csv"
    assert append_file("shop", table).rows == 0
    assert len(load("shop")) == rows
    shop.arrive("c5", ["p-new"])
    assert len(load("shop")) == rows + 1, "control: another file adds its rows"


def test_rows_that_come_under_another_name_are_told(shop: Shop, tmp_path: Path) -> None:
    shop.ask("leave", CANARY)
    lines: list[str] = []
    import_file(write_rows(tmp_path / "other.csv", TABLE), "other", tell=lines.append)
    assert any("shop" in line for line in lines)
    lines.clear()
    import_file(write_rows(tmp_path / "third.csv", ROWS), "third", tell=lines.append)
    assert lines == [], "control: nobody of these left"


def test_with_another_home_the_data_is_not_there(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other keys beside the same data once learnt everybody again, with exit code 0."""
    shop.ask("leave", CANARY)
    words = ["run", "--data", "shop", "--method", "Gram", "--out", str(tmp_path / "b")]
    with elsewhere(monkeypatch, tmp_path / "other"):
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, ConfigError)
        assert not (tmp_path / "b").exists()
        assert not (tmp_path / "other").exists(), "nothing is made by looking"
    assert CliRunner().invoke(app, words).exit_code == 0, "control: with its home it learns"


@pytest.mark.parametrize("filters", [{"core": 4}, {"min_user": 4}])
def test_who_passes_a_filter_is_decided_without_what_was_erased(
    tmp_path: Path, filters: dict[str, int]
) -> None:
    """A rerun has the rows of data that never had them, not those that passed because of them."""
    cell = replace(LENDING, data=DataSettings(name="shop", **filters))
    shop = Shop.opened(tmp_path / "shop", TABLE, cell=cell)
    done = shop.ask("leave", "c3")
    with shop_ledger() as ledger:
        receipt = parse(ledger.receipt(done.receipt)[0])
    assert any("core" in line or "min_user" in line for line in receipt.not_covered)
    shop.ask("erase", "c5", items=["p5", "p6"])
    again = run_cell(cell, tmp_path / "two")
    never = obtained(cell)
    assert len(again.fed.now.vault.holdings.records) == len(never)
    assert sorted(again.fed.labels.users) == sorted(never.users.tolist())
    assert "c5" not in never.users, "control: three rows do not pass"


def shop_ledger():
    from rescind.home import Ledger

    return Ledger.open()


def test_a_model_that_was_learning_meanwhile_is_not_taken_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leaves while a run learns was read before: the run must not stand afterwards."""
    from rescind.experiments import learning_run

    real = learning_run.obtained

    def read(*words: object, **more: object) -> object:
        data = real(*words, **more)
        if not left:
            left.append(shop.ask("leave", CANARY))
        return data

    left: list[object] = []
    monkeypatch.setattr(learning_run, "obtained", read)
    with pytest.raises(DataError):
        shop.learn("late")
    assert not (shop.run("late") / "run.json").exists()
    shop.learn("late")
    assert shop.learnt(CANARY, "late") == ()
    assert shop.learnt("c4", "late"), "control: the others are in it"


def test_what_was_made_with_the_records_goes_and_a_run_below_stays(shop: Shop) -> None:
    below = shop.run() / "below"
    run_cell(CELL, below)
    for name in ("report.html", "checkpoints/round-1", "audits/models", "receipt-old.json"):
        path = shop.run() / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CANARY)
    shop.ask("leave", CANARY)
    left = {str(path.relative_to(shop.run())) for path in shop.run().rglob("*") if path.is_file()}
    assert not left & {"report.html", "checkpoints/round-1", "audits/models"}
    assert "receipt-old.json" in left, "evidence of other requests"
    assert shop.learnt("c4", "run/below")
    assert shop.learnt(CANARY, "run/below") == (), "it is a run of its own, and answered as one"


def files_of(*folders: Path) -> Iterator[Path]:
    return (path for folder in folders for path in folder.rglob("*") if path.is_file())


def test_files_with_data_can_be_read_by_their_owner_only(shop: Shop) -> None:
    shop.ask("leave", CANARY)
    home = imported_folder().parent
    private = [*files_of(imported_folder(), shop.run() / "model", home / "answers")]
    for path in [home / "ledger.db", *private]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_swapped_ids_are_noticed(shop: Shop) -> None:
    (name,) = holding(shop.run() / "model" / "labels", CANARY)
    path = shop.run() / "model" / "labels" / name
    users = json.loads(path.read_text())
    users[3], users[4] = users[4], users[3]
    path.write_text(json.dumps(users))
    with pytest.raises(DataError):
        shop.ask("leave", CANARY)
