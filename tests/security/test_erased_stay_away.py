"""Erased people do not come back: by another run, another folder, another import."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rescind.cli.forget_papers import rows_left
from rescind.experiments.forget_run import answer
from rescind.experiments.read_request import NamedRecords
from rescind.forgetting.data_erasure import erase
from typer.testing import CliRunner

from rescind.cli import app, main
from rescind.core.clock import Clock
from rescind.data import load
from rescind.data.blocklist import FILE, Blocklist, place
from rescind.data.erasing import erase_imported, items_of, stored_rows
from rescind.data.importing import append_file, import_file, imported_folder
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.experiments.learning_run import run_cell
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy.keys import own_public_key, read_secret
from rescind.privacy.sealing import band
from rescind.receipts.receipt import Receipt, opened
from rescind.receipts.verify import verify
from rescind.storage.events import names_in, read_event
from rescind.storage.federations import load_federation

CANARY, ONLY_THEIRS = "canary-7f3a9c51", "film-e2d8b640"
CELL = Cell(
    "tiny",
    DataSettings(name="mine"),
    None,
    FedAvg(model=MF(dim=4), clients_per_round=8),
    RunSettings(rounds=2, evaluate_every=2, checkpoint_every=2),
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of thirty people with a dozen of forty films each; one film is the canary's alone."""
    import torch

    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    lines = ["user,item"]
    for user in range(30):
        films = np.argsort(Clock(5).bits("f", torch.tensor(user), torch.arange(40)).numpy())[:12]
        name = CANARY if user == 3 else f"person-{user}"
        lines += [f"{name},film-{film}" for film in films]
    lines.append(f"{CANARY},{ONLY_THEIRS}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    import_file(path, "mine")
    return path


def holding(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text, whatever their form."""
    import pyarrow.parquet as pq

    found = []
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            data = str(pq.read_table(path).to_pydict()).encode()
        else:
            data = path.read_bytes() if path.is_file() else b""
        if text.encode() in data:
            found.append(path.name)
    return sorted(found)


def test_a_run_into_another_folder_does_not_learn_them_again(table: Path, tmp_path: Path) -> None:
    first = run_cell(CELL, tmp_path / "one")
    assert CANARY in first.fed.labels.users
    done = answer(tmp_path / "one", "withdraw", CANARY, audits="none")
    said = " ".join(done.evidence.receipt.not_covered)
    assert "imported copy of 'mine'" in said, "the receipt names the copy that is left"
    second = run_cell(CELL, tmp_path / "two")
    assert (
        len(second.fed.now.vault.holdings.records) == len(first.fed.now.vault.holdings.records) - 13
    )
    assert holding(tmp_path / "two", CANARY) == []
    assert second.facts["data"]["digest"] != first.facts["data"]["digest"]
    assert CANARY not in load("mine").users
    assert CANARY not in obtained(CELL).users, "what a silo loads"


def test_whoever_left_is_gone_with_rows_that_the_run_did_not_use(
    table: Path, tmp_path: Path
) -> None:
    filtered = replace(CELL, data=DataSettings(name="mine", core=8))
    run = run_cell(filtered, tmp_path / "one")
    held = run.fed.now.vault.holdings.records
    client = run.fed.labels.client(CANARY, run.fed.world.sizes.clients)
    assert int((held.client == client).sum()) < 13, "the control: the filter drops a row of theirs"
    answer(tmp_path / "one", "withdraw", CANARY, audits="none")
    assert CANARY not in load("mine").users
    assert holding(run_cell(CELL, tmp_path / "two").folder, CANARY) == []


@pytest.mark.parametrize("filters", [{"core": 7}, {"min_user": 12}])
def test_who_passes_a_filter_is_decided_without_what_was_erased(
    table: Path, tmp_path: Path, filters: dict[str, int]
) -> None:
    """A rerun has the rows of data that never had them, not those that passed because of them."""
    filtered = replace(CELL, data=DataSettings(name="mine", **filters))
    lends = replace(filtered, sharing=SharingSettings(ratio=(1.0, 2.0, 7.0)))
    first = run_cell(lends, tmp_path / "one")
    few = NamedRecords("person-5", tuple(items_of("mine", "person-5")[:2]))
    done = answer(tmp_path / "one", "withdraw", CANARY, audits="none")
    assert any("core" in line or "min_user" in line for line in done.evidence.receipt.not_covered)
    answer(done.folder, "erase", few, audits="none")
    again = run_cell(lends, tmp_path / "two")
    erase("mine", [CANARY], path=tmp_path / "a.json")
    erase("mine", ["person-5"], few.items, path=tmp_path / "b.json")
    never = obtained(filtered)
    held = again.fed.now.vault.holdings
    assert len(held.records) == len(never)
    assert sorted(again.fed.labels.users) == sorted(never.users.tolist())
    assert sorted(again.fed.labels.items) == sorted(never.items.tolist())
    assert len(first.fed.labels.users) > len(never.users), "control: somebody passed before"
    assert len(again.fed.world.shared), "control: somebody lends"


def test_a_run_without_a_filter_says_nothing_of_one(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "one")
    done = answer(tmp_path / "one", "withdraw", CANARY, audits="none")
    assert not any("decided" in line for line in done.evidence.receipt.not_covered)


def test_an_id_goes_with_the_last_record(table: Path, tmp_path: Path) -> None:
    """Who asks to erase everything is gone as who leaves is; who keeps a record stays known."""
    run_cell(CELL, tmp_path / "one")
    asked = tmp_path / "asked.csv"
    asked.write_text(f"user\n{CANARY}\nperson-4\n")
    done = answer(tmp_path / "one", "erase", str(asked), audits="none")
    asked.unlink()
    some = NamedRecords("person-5", tuple(items_of("mine", "person-5")[:-1]))
    after = answer(done.folder, "erase", some, audits="none")
    assert after.fed is not None
    assert not {CANARY, "person-4"} & {*after.fed.labels.users}
    assert "person-5" in after.fed.labels.users, "control: a record is left"
    assert holding(after.folder, CANARY) == holding(after.folder, "person-4") == []
    assert holding(after.folder, "person-5"), "control: names are found"


def test_receipts_of_other_requests_survive(table: Path, tmp_path: Path) -> None:
    run = run_cell(CELL, tmp_path / "one").folder
    (run / "additive" / "model").mkdir(parents=True)
    (run / "additive" / "receipt.json").write_text("evidence")
    (run / "additive" / "model" / "labels.json").write_text(CANARY)
    answer(run, "withdraw", CANARY, audits="none")
    assert (run / "additive" / "receipt.json").read_text() == "evidence"
    assert holding(run, CANARY) == []


def test_an_item_that_only_they_had_loses_its_name(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "one")
    assert len(holding(tmp_path / "one", ONLY_THEIRS)) == 1, "the control"
    new = answer(tmp_path / "one", "withdraw", CANARY, audits="none").folder
    assert holding(new, ONLY_THEIRS) == holding(new, CANARY) == []
    names = load_federation(new / "model").labels.items
    assert sum(name.startswith("(removed ") for name in names) == 1
    assert ONLY_THEIRS not in load("mine").items


def test_requests_that_are_drawn_for_experiments_are_not_remembered(
    table: Path, tmp_path: Path
) -> None:
    from rescind.experiments.recipe import SharingSettings

    lending = replace(CELL, sharing=SharingSettings(ratio=(1, 1, 1), part=0.5))
    run_cell(lending, tmp_path / "one")
    answer(tmp_path / "one", "erase", "draw:0.3", audits="none")
    assert not Blocklist.of_dataset("mine")


def test_a_trial_leaves_other_runs_alone_and_says_so(table: Path, tmp_path: Path) -> None:
    """Public data is as published unless somebody asks; private data only if told to."""
    first = run_cell(CELL, tmp_path / "one")
    done = answer(tmp_path / "one", "withdraw", CANARY, audits="none", everywhere=False)
    assert not Blocklist.of_dataset("mine")
    assert "may learn these rows again" in done.later_runs
    assert "may be learnt by other runs" in " ".join(done.evidence.receipt.not_covered)
    again = run_cell(CELL, tmp_path / "two")
    assert again.facts["data"]["digest"] == first.facts["data"]["digest"]
    public = replace(load("mine"), source="publisher")
    run_cell(CELL, tmp_path / "public", dataset=public)
    answer(tmp_path / "public", "withdraw", CANARY, audits="none")
    assert not Blocklist.of_dataset("mine"), "public data stays as it was published"
    asked = answer(tmp_path / "two", "withdraw", CANARY, audits="none")  # the control
    assert Blocklist.of_dataset("mine")
    assert str(place("mine")) in asked.later_runs, "where the list is"
    assert "undo" not in asked.later_runs, "nobody is told to delete the list of real requests"
    place("mine").unlink()
    back = run_cell(CELL, tmp_path / "three")
    assert back.facts["data"]["digest"] == first.facts["data"]["digest"], "undone"


def test_a_trial_can_be_meant_for_all_runs_afterwards(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "one")
    trial = partial(answer, tmp_path / "one", "withdraw", CANARY, audits="none")
    assert "give the same command again with --everywhere" in trial(everywhere=False).later_runs
    assert not Blocklist.of_dataset("mine")
    assert not trial().later_runs
    assert not Blocklist.of_dataset("mine"), "control: repeated as it was"
    assert str(place("mine")) in trial(everywhere=True).later_runs
    assert CANARY not in load("mine").users
    assert holding(run_cell(CELL, tmp_path / "two").folder, CANARY) == []


def test_a_file_cannot_be_meant_for_all_runs_afterwards(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "one")
    (tmp_path / "who.csv").write_text(f"user,item\n{CANARY},{ONLY_THEIRS}\n")
    asked = partial(answer, tmp_path / "one", "erase", str(tmp_path / "who.csv"), audits="none")
    asked(everywhere=False)
    with pytest.raises(ConfigError, match="answered for this run only"):
        asked(everywhere=True)


def test_a_receipt_names_the_lists_that_are_kept_with_their_sizes(
    table: Path, tmp_path: Path
) -> None:
    def lists(receipt: Receipt) -> dict[str, object]:
        return {kept.name: kept.bytes for kept in receipt.kept if kept.name.startswith("list")}

    run_cell(CELL, tmp_path / "one")
    done = answer(tmp_path / "one", "withdraw", "person-4", audits="none")
    first, size = place("mine").stat().st_size, (done.folder / FILE).stat().st_size
    of_run, of_data = "list of removed rows, of this run", "list of removed rows, of the data"
    assert lists(done.evidence.exact) == {of_run: band(size), of_data: band(first)}
    assert (
        lists(done.evidence.receipt)
        == lists(done.evidence.exact)
        == dict.fromkeys((of_run, of_data), "100-999")
    ), "an exact size would tell the next requester how much others erased"
    said = [kept.says for kept in done.evidence.exact.kept if kept.name == of_data]
    assert "stay until the operator deletes" in said[0]
    path = tmp_path / "receipt-mine.json"
    erased = erase("mine", [CANARY], (), path)
    second = place("mine").stat().st_size
    assert second > first, "control: the list has grown"
    exact = opened(erased.receipt, read_secret(erased.key))
    assert lists(erased.receipt) == lists(exact) == {of_data: band(second)}
    assert band(second) == "1000-9999", "control: another band"
    run_cell(CELL, tmp_path / "two")
    trial = answer(tmp_path / "two", "withdraw", "person-5", audits="none", everywhere=False)
    assert list(lists(trial.evidence.exact)) == [of_run], "a trial is on the list of its run alone"
    assert place("mine").stat().st_size == second


def test_data_erase_deletes_the_bytes_and_later_imports_leave_them_out(table: Path) -> None:
    folder = imported_folder() / "mine"
    assert holding(folder, CANARY) == ["users.parquet"], "the control"
    done = erase_imported("mine", [CANARY])
    assert (len(done.rows), stored_rows("mine", *done.pairs)) == (13, 0)
    assert holding(imported_folder(), CANARY) == holding(imported_folder(), ONLY_THEIRS) == []
    again = import_file(table, "mine", replace=True)
    assert len(again) == len(done.after) == 360 - 12
    assert holding(imported_folder(), CANARY) == []


def test_erased_rows_that_come_back_under_another_name_are_told(table: Path) -> None:
    told: list[str] = []
    import_file(table, "before", tell=told.append)
    assert told == [], "control: nobody was erased yet"
    erase_imported("mine", [CANARY])
    import_file(table, "mine", replace=True, tell=told.append)
    assert [text for text in told if "13 rows skipped" not in text] == [], "control: they stay"
    told.clear()
    other = import_file(table, "other", tell=told.append)
    assert len(other) == 361
    (said,) = told
    assert said.startswith("13 rows of this file had been erased from 'mine'.")
    assert "rescind data erase other --user USER" in said
    assert CANARY not in said
    place("broken").write_text("[")
    assert len(import_file(table, "third", tell=told.append)) == 361, "no list of another stops it"
    assert len(told) == 2
    told.clear()
    (table.parent / "week.csv").write_text(f"user,item\n{CANARY},{ONLY_THEIRS}\n")
    append_file("before", table.parent / "week.csv", tell=told.append)
    (said,) = told
    assert said.startswith("1 rows of this file had been erased from 'mine'.")


def test_other_runs_that_still_have_the_user_are_named(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        run_cell(CELL, tmp_path / "runs" / name / "seed-0")
    runs = tmp_path / "runs"

    def forgotten(run: Path) -> str:
        words = ["forget", str(run), "--withdraw", CANARY, "--audits", "none"]
        told = CliRunner().invoke(app, [*words, "--request", "none"])
        assert told.exit_code == 0, told.output
        return told.output

    asked = tmp_path / "asked.csv"
    asked.write_text("User\nperson-1\nperson-2\n")  # capitals, as spreadsheets write them
    words = ["forget", str(runs / "one" / "seed-0"), "--erase", str(asked), "--audits", "none"]
    refused = CliRunner().invoke(app, words)
    assert "Give --parts FOLDER (a part for each" in str(refused.exception)
    several = CliRunner().invoke(app, [*words, "--parts", str(tmp_path / "parts")])
    assert several.exit_code == 0, several.output
    assert f"Answer there, too, or delete it: {runs}/two/seed-0\n" in several.output
    first = forgotten(runs / "one" / "seed-0-forgot-1")
    assert f"Answer there, too, or delete it: {runs}/two/seed-0\n" in first
    left = json.loads((runs / "one" / "seed-0-forgot-2" / "receipt.json").read_text())
    assert any("Other models that were trained on 'mine'" in said for said in left["not_covered"])
    (runs / "two" / "run.json").write_text("{")  # of somebody else: it stops nothing
    assert "Answer there" not in forgotten(runs / "two" / "seed-0"), "nobody is left to tell"


def test_every_other_run_is_named_and_says_so_when_it_is_asked(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_cell(CELL, Path("runs/one"))
    others = [Path(f"runs/other-{number}") for number in range(7)]
    for other in others:
        shutil.copytree("runs/one", other)

    def told(*words: str) -> str:
        said = CliRunner().invoke(app, [*words])
        assert said.exit_code == 0, said.output
        return said.output

    recommend = ("recommend", str(others[6]), "--user", CANARY)
    assert "was forgotten" not in told(*recommend), "control"
    asked = ("--withdraw", CANARY, "--request", "none")
    said = told("forget", "runs/one", *asked, "--audits", "none")
    assert (
        "7 other runs on this data still have some of it. Answer there, too, or delete it:\n"
        in said
    )
    assert [line.strip() for line in said.splitlines() if "  runs/other" in line] == [
        str(other) for other in others
    ]
    answer_here = f"rescind forget {others[6]} --withdraw {CANARY} --request FILE"
    assert f"and this run still has them. Answer here, too: {answer_here}\n" in told(*recommend)
    assert "was forgotten" not in told("recommend", str(others[6]), "--user", "person-4")


def test_a_trial_after_a_request_for_all_runs_says_that_the_rows_are_listed(
    table: Path, tmp_path: Path
) -> None:
    for name in ("one", "two", "three"):
        run_cell(CELL, tmp_path / name)
    trial = partial(answer, audits="none", everywhere=False)
    film = items_of("mine", "person-4")[0]
    assert (
        "may learn these rows again"
        in trial(tmp_path / "three", "erase", NamedRecords(CANARY, (ONLY_THEIRS,))).later_runs
    ), "control: nobody is listed"
    answer(tmp_path / "one", "withdraw", CANARY, audits="none")
    answer(tmp_path / "one-forgot-1", "erase", NamedRecords("person-4", (film,)), audits="none")
    done = trial(tmp_path / "two", "withdraw", CANARY)
    assert "were on the list of 'mine' before" in done.later_runs
    assert "may be learnt by other runs" not in " ".join(done.evidence.receipt.not_covered)
    same = NamedRecords("person-4", (film,))
    assert "were on the list" in trial(tmp_path / "two-forgot-1", "erase", same).later_runs
    more = NamedRecords("person-4", (items_of("mine", "person-4")[1],))
    assert "may learn these" in trial(tmp_path / "two-forgot-2", "erase", more).later_runs


def test_another_run_is_named_by_what_it_still_has(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lends = replace(CELL, sharing=SharingSettings(ratio=(1.0, 0.0, 0.0)))
    one, two = (run_cell(cell, tmp_path / "runs" / name).folder for cell, name in
                ((CELL, "one"), (lends, "two")))  # fmt: skip

    def told(run: Path, *words: str) -> str:
        quick = ("--audits", "none", "--request", "none")
        said = CliRunner().invoke(app, ["forget", str(run), *words, *quick])
        assert said.exit_code == 0, said.output
        return said.output

    film = items_of("mine", "person-7")[0]
    record = ("--user", "person-7", "--item", film)
    said = told(one, *record)
    assert f"Answer there, too, or delete it: {two}\n" in said, "control: it has the record"
    assert f"Looked for other runs in {tmp_path / 'runs'}, not elsewhere.\n" in said
    assert "Answer there" not in told(two, *record), "the first run knows the user, without it"
    one, two = (tmp_path / "runs" / f"{name}-forgot-1" for name in ("one", "two"))
    lent = tmp_path / "lent.csv"
    lent.write_text("user\nperson-8\n")
    assert "Answer there" not in told(two, "--unshare", str(lent)), "nobody lends in the first run"


def test_one_row_can_be_erased(table: Path) -> None:
    with pytest.raises(DataError, match="leave --item out"):
        erase_imported("mine", ["person-4"], [ONLY_THEIRS])
    theirs = items_of("mine", "person-4")[0]
    for users, items, whose in (
        (["person-4"], [theirs, ONLY_THEIRS], f"item '{ONLY_THEIRS}'"),
        (["person-4", CANARY], [ONLY_THEIRS], "user 'person-4'"),
    ):
        with pytest.raises(DataError, match=f"no such rows of {whose}"):
            erase_imported("mine", users, items)
    assert len(load("mine")) == 361, "all or nothing"
    done = erase_imported("mine", [CANARY], [ONLY_THEIRS])
    assert len(done.rows) == 1
    assert CANARY in load("mine").users
    assert ONLY_THEIRS not in load("mine").items


def test_an_id_that_is_not_there_is_answered_with_what_to_do_and_no_other_id(table: Path) -> None:
    for users, items, unknown in (
        (["Person-4"], [], "there is no user 'Person-4' in 'mine'"),
        (["person-4"], ["Film-1"], "there is no item 'Film-1' in 'mine'"),
    ):
        with pytest.raises(DataError) as told:
            erase_imported("mine", users, items)
        said = str(told.value)
        assert f"{unknown}. One whose id differs in capitals, blanks, zeros or signs only" in said
        assert "as they stand in what was imported (table.csv)" in said
        assert said.endswith("give the command again. Nothing was erased.")
        assert "receipt" not in said, "control: of nobody who asked before"
        assert not re.findall(r"person-|film-", said), "nobody learns who else is there"
    with pytest.raises(DataError, match=r"there is no user 'nobody' in 'mine'\. Allowed are ids"):
        erase_imported("mine", ["nobody"])
    with pytest.raises(DataError, match=r"are several items. Repeat --item for each. Nothing"):
        erase_imported("mine", ["person-4"], ["film-1,film-2"])
    erase_imported("mine", ["person-4"])
    with pytest.raises(DataError, match="any more, after an earlier request") as told:
        erase_imported("mine", ["person-4"])
    said = str(told.value)
    assert "receipt-mine.json, receipt-mine-2.json" in said
    assert "answered/REQUEST/receipt-mine.json in a folder of requests" in said


def test_the_command_writes_a_receipt(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def rescind(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["rescind", *words])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out + said.err

    code, said = rescind("data", "erase", "mine", "--user", CANARY, "--case", "DSR 117")
    assert code == 0, said
    assert "deleted 13 rows" in said
    private = "receipt-mine.key, receipt-mine.html, receipt-mine.request.json"
    assert f"for the requester only  {private}" in said
    page, asked = tmp_path / "receipt-mine.html", tmp_path / "receipt-mine.request.json"
    assert stat.S_IMODE(page.stat().st_mode) == stat.S_IMODE(asked.stat().st_mode) == 0o600
    told = page.read_text().split("</style>")[1]
    assert "Request DSR 117 was answered on 20" in told
    assert "One person asked to erase 13 records" in told
    assert "these records were deleted from the imported data." in told
    assert "is answered for by itself, with a receipt of its own" in told
    assert "its devices" not in told, "there are none"
    assert CANARY not in told
    lines = told.replace("\\\n", " ")
    commands = re.findall(r"rescind verify receipt-mine.json --.*?(?=\n|</code>)", lines)
    assert len(commands) == 4
    said_by = []
    of_log = rescind("log", "key")[1].split()[0]
    for command in commands:
        words = command.replace("KEY-FROM-THE-OPERATORS-WEB-PAGE", str(own_public_key())).split()
        words = [of_log if word == "KEY-OF-THEIR-LOG" else word for word in words]
        code, said = rescind(*words[1:])
        assert code == 0, said
        said_by.append(said)
    assert f"about exactly the given Erase request, of user '{CANARY}'" in said_by[1]
    assert "Erase of 13 records" in said_by[2], "this command opens the exact numbers"
    assert "is entry" in said_by[3], "and it is in the log"
    table = json.loads(asked.read_text())
    assert {*table["user"]} == {CANARY}, "as they know themselves"
    assert ONLY_THEIRS in table["item"]
    asked.write_text(json.dumps({**table, "user": ["person-4"] * 13}))
    mine = ("--event", asked.name, "--event-key", "receipt-mine.key")
    assert rescind("verify", "receipt-mine.json", *mine)[0] == 1, "control: another person's name"
    assert "receipt.json" not in told, "commands name this file"
    assert rescind("verify", "receipt-mine.json")[0] == 0
    receipt = json.loads((tmp_path / "receipt-mine.json").read_text())
    assert receipt["done"]["level"] == "L1"
    assert receipt["verdict"] == "UNAUDITED", "no model was looked at"
    assert receipt["claims"]["case"].startswith("bound:"), "strangers do not read it"
    assert CANARY not in (tmp_path / "receipt-mine.json").read_text()
    assert rescind("data", "erase", "mine", "--user", CANARY)[0] == 2
    other = ("data", "erase", "mine", "--user", "person-5", "--user", "person-6", "--receipt")
    code, said = rescind(*other, "page.html")
    assert (code, "must end in .json" in said) == (2, True)
    code, said = rescind(*other, "receipt-mine.json")
    assert (code, "exists already. Choose another with --receipt" in said) == (2, True)
    assert "will be deleted" not in said, "it will not"
    code, said = rescind(*other, "two.json")
    assert "will be deleted for good" in said, "control"
    assert (code, "for you alone (it counts all users)  two.key, two.html\n" in said) == (0, True)
    assert not (tmp_path / "two.request.json").exists(), "nobody gets it, so it is not written"
    assert "Do not send this page" in (tmp_path / "two.html").read_text()
    assert rescind("data", "erase", "mine", "--user", "person-4")[0] == 0
    assert (tmp_path / "receipt-mine-2.json").is_file()
    assert rescind("data", "erase", "ml-100k", "--user", "7")[0] == 2


def test_whoever_stops_lending_stays_in_the_data_and_is_told_so(
    table: Path, tmp_path: Path
) -> None:
    lending = replace(CELL, sharing=SharingSettings(ratio=(1, 0, 0), part=1.0))
    first = run_cell(lending, tmp_path / "one").fed
    path = tmp_path / "request.csv"
    path.write_text(f"user\n{CANARY}\n")
    done = answer(tmp_path / "one", "unshare", str(path), audits="none")
    assert "are not lent again in any run of 'mine'" in done.later_runs
    assert "leaves these rows out" not in done.later_runs
    (copy,) = (one for one in done.evidence.receipt.not_covered if "imported copy" in one)
    assert "rows that are still stored there stay" in copy
    assert "and are not lent again" in copy
    assert "left out" not in copy
    (listed,) = (one for one in done.evidence.receipt.kept if one.name.endswith("of the data"))
    assert "no run lends the rows of this request again" in listed.says
    assert held_of(CANARY) == 13, "as it says: they stay"
    again = run_cell(lending, tmp_path / "two").fed
    assert len(again.now.vault.holdings.records) == len(first.now.vault.holdings.records)
    client = again.labels.client(CANARY, again.world.sizes.clients)
    assert client in first.world.shared.client, "control: they lent"
    assert client not in again.world.shared.client, "as it says: not again"
    moved = (tmp_path / "one" / "report.html").read_text()
    assert "or are no longer lent" in moved
    assert "without them" not in moved
    gone = answer(tmp_path / "two", "withdraw", "person-4", audits="none")
    assert "leaves these rows out" in gone.later_runs, "control: of one who left it is true"


def test_an_item_that_somebody_had_twice_is_one_item_and_two_rows(
    table: Path, tmp_path: Path
) -> None:
    times = tmp_path / "times.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    mine = [item for user, item in rows if user == "person-5"][:2]
    said = [f"{user},{item},{n}" for n, (user, item) in enumerate(rows)]
    said.append(f"person-5,{mine[0]},9999")
    times.write_text("\n".join(["user,item,time", *said]) + "\n")
    import_file(times, "twice")
    run_cell(replace(CELL, data=DataSettings(name="twice")), tmp_path / "one")
    asked, parts = tmp_path / "asked.csv", tmp_path / "parts"
    four = [f"person-5,{item}" for item in mine]
    four += [f"{user},{item}" for user, item in rows if user == "person-6"][:2]
    asked.write_text("\n".join(["user,item", *four]) + "\n")
    words = ["forget", str(tmp_path / "one"), "--erase", str(asked), "--audits", "none", "--parts"]
    told = CliRunner().invoke(app, [*words, str(parts)]).output
    assert told.count("4 items (5 rows)") == 2, told
    assert "parts in" in told
    assert "proof" not in told.partition("In your log")[0]
    new = tmp_path / "one-forgot-1"
    assert "asked to erase 4 items (5 rows)" in (new / "receipt.html").read_text()
    ask = ["verify", str(new / "receipt.json")]
    for user in ("person-5", "person-6"):
        told = CliRunner().invoke(app, [*ask, "--part", str(parts / f"{user}.json")]).output
        assert f"Erase of 2 items of user '{user}' is part of" in told, told
    told = CliRunner().invoke(app, [*ask, "--event-key", str(new / "receipt.key")]).output
    assert "Erase of 4 items (5 rows) of 2 people" in told
    done = erase("twice", ["person-5"], mine, tmp_path / "receipt.json")
    assert (done.items, done.rows) == (2, 3)
    assert "asked to erase 2 items (3 rows)" in (tmp_path / "receipt.html").read_text()
    assert "2 items" not in (tmp_path / "receipt.json").read_text(), "strangers see a band"
    whole = opened(done.receipt, read_secret(done.key))
    assert (whole.asked.records, whole.claims["items"]) == (3, "2")


@pytest.mark.parametrize(
    ("asked", "advised"),
    [
        (
            ["--user", CANARY],
            "--withdraw USER --request FILE (who did not withdraw: --erase FILE instead of "
            "--withdraw USER)",
        ),
        (
            ["--user", CANARY, "--item", ONLY_THEIRS, "--item", "film-5"],
            f"--user {CANARY} --item {ONLY_THEIRS} --item film-5 --request FILE",
        ),
        (
            ["--user", CANARY, "--user", "person-4", "--item", "film-5"],
            "--erase FILE (a CSV with the columns user,item)",
        ),
    ],
)
def test_who_asked_for_some_items_is_not_taken_out_of_the_runs(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[str], advised: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["data", "erase", "mine", *asked])
    assert told.exit_code == 0, told.output
    last = told.output.splitlines()[-1]
    asks = f"rescind forget RUN {advised}"
    assert last == f"No run near here has any of it. If one elsewhere has: {asks}"
    assert ("--withdraw" in told.output) == ("--item" not in asked)
    assert ("who did not withdraw" in told.output) == ("--item" not in asked)


def test_a_run_below_another_one_stays_and_is_named_however_deep(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    single, below = Path("runs/data/mine-Gram"), Path("runs/data/mine-Gram/trials/a/seed-1")
    for folder in (single, below):
        run_cell(CELL, folder)
    (single / "audits").mkdir()
    (single / "audits" / "trace").write_text(CANARY)
    words = ["forget", str(single), "--withdraw", CANARY, "--audits", "none", "--request", "none"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert f"Answer there, too, or delete it: {below}\n" in said.output
    assert (below / "model").is_dir(), "it is answered by itself"
    assert not (single / "model").exists()
    assert not (single / "audits").exists(), "the control: what is no run goes"
    deleted = CliRunner().invoke(app, ["data", "erase", "mine", "--user", CANARY])
    assert f"Runs that still have some of it: {below}." in deleted.output, (
        "three folders below runs"
    )


def test_a_deletion_names_the_runs_that_still_have_some_of_it(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "runs/two", "runs/mine/Gram/seed-0"):
        run_cell(CELL, Path(folder))
    answer(Path("one"), "withdraw", CANARY, audits="none", everywhere=False)

    def told(*words: str) -> str:
        said = CliRunner().invoke(app, ["data", "erase", "mine", *words])
        assert said.exit_code == 0, said.output
        return said.output.splitlines()[-1].partition(" rescind forget RUN ")[0]

    both = "Runs that still have some of it: runs/mine/Gram/seed-0, runs/two."
    assert told("--user", CANARY) == both
    assert told("--user", "person-4") == both.replace(": ", ": one-forgot-1, ")


def test_a_deletion_is_announced_and_on_a_terminal_it_asks(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["data", "erase", "mine", "--user", CANARY]
    said = f"mine: 13 of 361 rows will be deleted for good, of user '{CANARY}'"
    with monkeypatch.context() as terminal:
        terminal.setattr("rescind.cli.data_people.sys", SimpleNamespace(stdin=Terminal()))
        told = CliRunner().invoke(app, words, input="n\n")
        assert (told.exit_code, told.output.splitlines()[0]) == (1, said)
        assert told.output.endswith("Nothing was erased.\n")
        assert held_of(CANARY) == 13
        several = CliRunner().invoke(app, [*words, "--user", "person-4"], input="n\n")
        assert several.output.splitlines()[0].endswith(" rows will be deleted for good, of 2 users")
        unknown = CliRunner().invoke(app, [*words, "--user", "nobody"], input="y\n")
        assert "will be deleted" not in unknown.output, "it will not"
        assert CliRunner().invoke(app, [*words, "--yes"]).exit_code == 0
    assert held_of(CANARY) == 0
    told = CliRunner().invoke(app, ["data", "erase", "mine", "--user", "person-4"])
    assert told.exit_code == 0, "a script is not asked"
    assert "rows will be deleted for good, of user 'person-4'" in told.output.splitlines()[0]


def test_a_deletion_of_more_than_was_asked_for_is_told_and_needs_a_word(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_cell(CELL, tmp_path / "run")
    answer(tmp_path / "run", "erase", NamedRecords(CANARY, (ONLY_THEIRS,)), audits="none")
    words = ["data", "erase", "mine", "--user", CANARY]
    only = f"rescind data erase mine --user {CANARY} --item {ONLY_THEIRS}"

    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, ConfigError)
    assert "with --yes. Nothing was erased." in str(refused.exception)
    assert "named 1 of these rows. 12 more, which they did not name," in refused.output
    assert refused.output.splitlines()[1].endswith(only)
    with monkeypatch.context() as terminal:
        terminal.setattr("rescind.cli.data_people.sys", SimpleNamespace(stdin=Terminal()))
        asked = CliRunner().invoke(app, words, input="n\n")
        assert (asked.exit_code, "12 more" in asked.output) == (1, True)
    assert held_of(CANARY) == 13, "nothing was deleted"
    named = CliRunner().invoke(app, shlex.split(only)[1:])
    assert (named.exit_code, "which they did not name" in named.output) == (0, False)
    assert held_of(CANARY) == 12
    rest = CliRunner().invoke(app, words)
    assert (rest.exit_code, "which they did not name" in rest.output) == (0, False)
    assert held_of(CANARY) == 0


def test_forgetting_imported_data_names_the_user_and_asks_on_a_terminal(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cell(CELL, tmp_path / "run")
    nowhere = ["--audits", "none", "--request", "none"]
    words = ["forget", str(tmp_path / "run"), "--withdraw", CANARY, *nowhere]
    with monkeypatch.context() as terminal:
        terminal.setattr("rescind.cli.forget.sys", SimpleNamespace(stdin=Terminal()))
        told = CliRunner().invoke(app, words, input="n\n")
        assert told.exit_code == 1
        assert told.output.startswith(f"withdraw of user '{CANARY}': 13 records. ")
        assert told.output.endswith("Nothing was forgotten.\n")
        assert not (tmp_path / "run-forgot-1").exists()
        taken = CliRunner().invoke(app, [*words, "--request", str(table)], input="y\n")
        assert f"{table} exists already" in str(taken.exception)
        assert "Go on?" not in taken.output, "a question whose answer is of no use"
        done = CliRunner().invoke(app, [*words, "--yes"])
        assert done.exit_code == 0
        assert (
            f"still stored in 'mine'. To delete them, with a receipt: rescind data erase mine "
            f"--user {CANARY}\n" in done.output
        )
    erase_imported("mine", ["person-4"])
    other = ["forget", str(tmp_path / "run-forgot-1"), "--withdraw", "person-4", *nowhere]
    done = CliRunner().invoke(app, other)
    assert done.exit_code == 0, "a script is not asked"
    assert "still stored" not in done.output, "control: no row is"


def test_nobody_of_imported_data_is_forgotten_without_the_request_that_checks_the_receipt(
    table: Path, tmp_path: Path
) -> None:
    run_cell(CELL, tmp_path / "run")

    def asked(*words: str) -> str:
        told = CliRunner().invoke(
            app, ["forget", str(tmp_path / "run"), "--audits", "none", *words]
        )
        return str(told.exception or told.output)

    one, both = ("--withdraw", CANARY), ("--withdraw", CANARY, "--withdraw", "person-4")
    film = items_of("mine", CANARY)[0]
    for words in (one, both, ("--user", CANARY, "--item", film)):
        assert "give --request FILE (the exact request" in asked(*words), words
    file = str(tmp_path / "request.json")
    for words in (("--request", file), ("--case", "DSR 5"), ("--out", str(tmp_path / "new"))):
        assert "Give them one by one" in asked(*both, *words), words
    assert not list(tmp_path.glob("run-forgot-*")), "nothing was forgotten"
    assert "Written" in asked(*one, "--request", file)
    assert json.loads(Path(file).read_text())["user"] == CANARY


def test_a_trial_and_a_reminder_need_no_file_of_the_request(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "run")
    words = ["forget", str(tmp_path / "run"), "--withdraw", CANARY, "--audits", "none"]
    assert CliRunner().invoke(app, [*words, "--only-here"]).exit_code == 0
    assert not Blocklist.of_dataset("mine").has_withdrawn(CANARY), "control: it was a trial"
    said = CliRunner().invoke(app, words).output
    assert "see its receipt, no new one is needed.\nIt is noted that they left" in said
    assert Blocklist.of_dataset("mine").has_withdrawn(CANARY)


def test_what_an_earlier_requester_gets_stays_when_a_run_is_learnt_again_and_asked_again(
    table: Path, tmp_path: Path
) -> None:
    run = run_cell(CELL, tmp_path / "run").folder
    new = answer(run, "withdraw", CANARY, audits="none").folder
    kept = {name: (new / name).read_bytes() for name in ("receipt.json", "receipt.key")}
    run_cell(CELL, new)
    answer(new, "withdraw", "person-4", audits="none")
    assert not (new / "model").exists(), "control: it was emptied"
    for name, was in kept.items():
        assert (new / name.replace("receipt", "receipt-before-1")).read_bytes() == was


def test_rows_that_are_left_of_one_of_several_are_told(table: Path, tmp_path: Path) -> None:
    run = run_cell(CELL, tmp_path / "run").folder
    films = {user: items_of("mine", user)[0] for user in ("person-4", "person-5")}
    assert "person-4 --item" in rows_left(run, {user: [film] for user, film in films.items()})
    erase_imported("mine", ["person-4"], [films["person-4"]])
    left = rows_left(run, {user: [film] for user, film in films.items()})
    assert left.endswith(f"rescind data erase mine --user person-5 --item {films['person-5']}")
    erase_imported("mine", ["person-5"], [films["person-5"]])
    assert rows_left(run, {user: [film] for user, film in films.items()}) == ""


def test_a_resumed_command_says_that_rows_were_erased_since(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--data", "mine", "--method", "Popularity"]
    assert CliRunner().invoke(app, words).exit_code == 0
    again = CliRunner().invoke(app, [*words, "--resume"])
    assert "finished before\n" in again.output, "control"
    erase_imported("mine", ["person-4"])
    later = time.time() + 60  # the run tells whole seconds
    for path in (imported_folder() / "mine").iterdir():
        os.utime(path, (later, later))
    again = CliRunner().invoke(app, [*words, "--resume"])
    assert "finished before, and rows of 'mine' were erased or added since" in again.output


def test_a_record_that_was_erased_before_is_not_called_unknown(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "run")
    film = NamedRecords("person-5", (items_of("mine", "person-5")[0],))
    done = answer(tmp_path / "run", "erase", film, audits="none")
    with pytest.raises(ConsentError, match="was erased from this run by an earlier request"):
        answer(done.folder, "erase", film, audits="none")
    asked = tmp_path / "asked.csv"
    asked.write_text(f"user,item\nperson-5,{film.items[0]}\n")
    with pytest.raises(ConsentError, match=r"line 2: .*was erased from this run"):
        answer(done.folder, "erase", str(asked), audits="none")
    others = {*items_of("mine", "person-6")} - {*items_of("mine", "person-5")}
    with pytest.raises(ConsentError, match="does not hold"):
        answer(done.folder, "erase", NamedRecords("person-5", (min(others),)), audits="none")


def test_the_imported_file_appended_adds_nothing(table: Path, tmp_path: Path) -> None:
    rows = len(load("mine"))
    assert append_file("mine", table).rows == 0
    assert len(load("mine")) == rows
    more = tmp_path / "more.csv"
    more.write_text("user,item\nperson-5,film-new\n")
    assert append_file("mine", more).rows == 1, "control: another file adds its rows"


class Terminal:
    def isatty(self) -> bool:
        return True


def test_a_row_that_was_there_twice_is_in_the_request_of_its_receipt(
    table: Path, tmp_path: Path
) -> None:
    table.write_text(table.read_text() + f"{CANARY},{ONLY_THEIRS}\n")
    import_file(table, "mine", replace=True)
    done = erase("mine", [CANARY], [ONLY_THEIRS], tmp_path / "one.json")
    text = (tmp_path / "one.request.json").read_text()
    assert json.loads(text)["item"] == [ONLY_THEIRS] * 2
    request = read_event(text), read_secret(done.key), names_in(text)
    assert verify(done.path.read_bytes(), {own_public_key(): "me"}, request=request).valid


def test_each_of_several_who_asked_together_gets_a_receipt_of_her_own_rows(
    table: Path, tmp_path: Path
) -> None:
    """As an officer does it: one answer of the run to all, then `data erase` for each person."""
    run_cell(CELL, tmp_path / "one")
    asked = ("person-4", "person-5")
    (tmp_path / "request.csv").write_text("\n".join(["user", *asked]) + "\n")
    answer(tmp_path / "one", "erase", str(tmp_path / "request.csv"), audits="none")
    assert not {*asked} & {*load("mine").users}, "control: nobody learns the rows of either"
    for number, user in enumerate(asked):
        others = [held_of(one) for one in asked[number + 1 :]]
        path = tmp_path / f"{user}.json"
        done = erase("mine", [user], (), path)
        assert done.rows == 12
        exact = opened(done.receipt, read_secret(done.key)).asked
        assert (exact.people, exact.records) == (1, 12)
        assert held_of(user) == 0
        assert [held_of(one) for one in asked[number + 1 :]] == others, "nobody else's are deleted"
        assert holding(imported_folder(), user) == []
    again = import_file(table, "mine", replace=True)
    assert not {*asked} & {*again.users}


def held_of(user: str) -> int:
    """The rows that the files have of a user, whether or not they are on a list."""
    stored = load("mine", erased_too=True)
    return int((stored.users[stored.user] == user).sum())


def test_an_urgent_request_leaves_the_rows_of_others_to_their_own_receipts(
    table: Path, tmp_path: Path
) -> None:
    run_cell(CELL, tmp_path / "one")
    answer(tmp_path / "one", "withdraw", "person-4", audits="none")
    erase("mine", ["person-6"], items_of("mine", "person-6")[:2], tmp_path / "6.json")
    assert held_of("person-4") == 12
    assert held_of("person-6") == 10


def test_files_with_data_can_be_read_by_their_owner_only(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "one")
    folders = (imported_folder() / "mine", tmp_path / "one" / "model")
    for path in (p for folder in folders for p in folder.rglob("*") if p.is_file()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_swapped_ids_are_noticed(table: Path, tmp_path: Path) -> None:
    run_cell(CELL, tmp_path / "one")
    (name,) = holding(tmp_path / "one" / "model" / "labels", CANARY)
    path = tmp_path / "one" / "model" / "labels" / name
    users = json.loads(path.read_text())
    users[3], users[4] = users[4], users[3]
    path.write_text(json.dumps(users))
    with pytest.raises(DataError, match="does not match the digest"):
        answer(tmp_path / "one", "withdraw", CANARY, audits="none")
