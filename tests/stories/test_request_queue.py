"""A folder of requests, answered by cron: once each, whatever happens to the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from rescind.experiments.forget_run import answer
from rescind.experiments.left_in_others import left_in_others
from rescind.experiments.other_runs import still_has
from rescind.experiments.read_request import NamedRecords
from rescind.experiments.request_files import read_all
from rescind.experiments.request_log import log_lines, metrics_text
from rescind.experiments.request_queue import Pass, work_through
from rescind.experiments.request_states import due_told, open_requests, time_left
from rescind.forgetting.run_chain import current
from rescind.forgetting.succession import begin_learning, rerunning
from typer.testing import CliRunner

from rescind.cli import app, main
from rescind.core.deadlines import months_after
from rescind.core.files import locked
from rescind.data.erasing import admit_imported, erase_imported, items_of
from rescind.data.importing import append_file, imported_folder
from rescind.errors import DataError, RescindError
from rescind.experiments import request_queue
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import run_cell
from rescind.forgetting import data_erasure
from rescind.methods.additive.gram import Gram
from rescind.privacy import keys
from rescind.privacy.keys import read_secret
from rescind.receipts.receipt import opened, parse
from rescind.receipts.verify import verify
from rescind.storage.federations import load_federation
from shops import import_shop

DATA = DataSettings(name="synthetic", users=20, items=30, interactions=200)
CELL = Cell("c", DATA, None, Gram(), RunSettings(rounds=1, evaluate_every=1))


class Killed(BaseException):
    """Ends a call as a kill does: nothing after it is run."""


@pytest.fixture
def queue(tmp_path) -> tuple[Path, Path]:
    run_cell(CELL, tmp_path / "run")
    (tmp_path / "requests").mkdir()
    return tmp_path / "requests", tmp_path / "run"


def ask(folder: Path, name: str, **request) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(request))
    return path


def members(run: Path) -> int:
    return int(load_federation(current(run) / "model").world.members.sum())


def test_requests_are_answered_by_deadline_and_leave_receipts_and_a_log(queue):
    folder, run = queue
    fed = load_federation(run / "model")
    held = fed.now.vault.holdings.records
    items = [fed.labels.item_id(int(i)) for i in held.item[held.client == 5][:2]]
    ask(folder, "late", withdraw="3", received="2026-01-02", due="2026-01-05")
    few = {"user": fed.labels.user_id(5), "items": items}
    ask(folder, "soon", erase=few, received="2026-01-01")
    when = datetime(2026, 1, 10, tzinfo=UTC)
    done = work_through(folder, run, "none", now=when)
    assert done.answered == ("late", "soon"), "the first deadline comes first"
    assert done.waiting == ()
    assert members(run) == 19
    lines = log_lines(folder)
    assert [(one["request"], one["late"]) for one in lines] == [("late", True), ("soon", False)]
    assert "user" not in json.dumps(lines)
    for name in done.answered:
        receipt = (folder / "answered" / name / "receipt.json").read_bytes()
        assert verify(receipt, {keys.own_public_key(): "me"}).valid
        assert (folder / "answered" / name / "receipt.key").is_file()
        assert not (folder / f"{name}.json").exists()
        page = (folder / "answered" / name / "receipt.html").read_text()
        assert f"Request {name} was answered on 20" in page
        assert "is for the requester" in page
        case = json.loads(receipt)["claims"]["case"]
        assert case.startswith("bound:"), "it may name a user, and strangers read the receipt"


@pytest.mark.parametrize(
    ("audits", "least", "told"),
    [("standard", 1, True), ("standard", 10_000, False), ("none", 1, False)],
)
def test_an_audit_is_told_before_it_begins(queue, monkeypatch, audits, least, told):
    """A night prints nothing else while models are trained for comparison."""
    folder, run = queue
    real, lines, before = request_queue.answer, [], []

    def quick(*given, on_start, **named):
        def begun(*started):
            on_start(*started)
            before.extend(lines)

        return real(*given[:4], "none", on_start=begun, **named)

    monkeypatch.setattr(request_queue, "answer", quick)
    monkeypatch.setattr(request_queue, "FEWEST", least)
    ask(folder, "anna", withdraw="3")
    assert work_through(folder, run, audits, tell=lines.append).answered == ("anna",)
    assert lines == before
    assert [line.startswith("auditing: anna; with 1 records") for line in lines] == [True] * told


def test_the_key_and_the_exact_page_lie_with_the_answer_alone(queue):
    folder, run = queue
    ask(folder, "anna", withdraw="3")
    ask(folder, "ben", withdraw="4")
    done = work_through(folder, run, "none", most=1)
    new, place = run.with_name("run-forgot-1"), folder / "answered" / "anna"
    key, receipt = place / "receipt.key", (place / "receipt.json").read_bytes()
    assert not (new / "receipt.key").exists()
    assert "Numbers are bands" in (new / "receipt.html").read_text()
    assert (new / "receipt.json").read_bytes() == receipt
    assert opened(parse(receipt), keys.read_secret(key)).asked.people == 1
    assert len(done.waiting) == 1
    shutil.copy(key, new / "receipt.key")  # as an earlier version left it
    other = new.with_name("other")
    shutil.copytree(new, other)
    (other / "receipt.json").write_bytes(receipt + b" ")
    work_through(folder, run, "none")
    assert not (new / "receipt.key").exists(), "taken away with the next pass"
    assert not (run.with_name("run-forgot-2") / "receipt.key").exists()
    request_queue._keep_once(place, other)
    assert (other / "receipt.key").exists(), "control: the key of another receipt stays"


def test_a_request_that_was_answered_is_told_again_without_its_key(queue, monkeypatch, capsys):
    _, run = queue
    for key_is_there in (True, False):
        monkeypatch.setattr("sys.argv", [*f"rescind forget {run} --withdraw 3".split()])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr().out
        assert not end.value.code
        assert ("answered before: the receipt is the same\n" in said) != key_is_there
        assert ("For the requester only" in said) == key_is_there
        assert ("key is not here any more" in said) != key_is_there
        run.with_name("run-forgot-1").joinpath("receipt.key").unlink(missing_ok=True)


@pytest.mark.parametrize("named", ["run", "run-forgot-1", "run-forgot-2"])
def test_what_was_answered_by_hand_gets_that_answer_whichever_run_is_named(
    queue, named, monkeypatch, capsys
):
    folder, run = queue
    answer(run, "withdraw", "3", audits="none")
    answer(run.with_name("run-forgot-1"), "withdraw", "4", audits="none")
    ask(folder, "anna", withdraw="3")
    by_hand = (run.with_name("run-forgot-1") / "receipt.json").read_bytes()
    words = ["requests", "run", str(folder), "--run", str(run.with_name(named))]
    monkeypatch.setattr("sys.argv", ["rescind", *words, "--audits", "none"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "answered before, by rescind forget" in capsys.readouterr().out
    assert (folder / "answered" / "anna" / "receipt.json").read_bytes() == by_hand
    assert not run.with_name("run-forgot-3").exists()
    ask(folder, "ben", withdraw="5")
    assert work_through(folder, run.with_name(named), "none").before == {}, "control"
    assert (folder / "answered" / "ben" / "request.json").is_file()


@pytest.mark.parametrize("together", [True, False])
def test_the_same_request_under_another_name_is_answered_by_the_first(queue, together, capsys):
    folder, run = queue
    ask(folder, "dsr-170", withdraw="3")
    if not together:
        assert command(folder, run, capsys)[0] == 0
    ask(folder, "dsr-171", withdraw="3")
    ask(folder, "dsr-172", withdraw="3")
    code, said = command(folder, run, capsys)
    assert code == 0
    assert said.count(f"answered before, as dsr-170: send {folder}/answered/dsr-170/\n") == 2
    assert "by rescind forget" not in said
    for number in (171, 172):
        assert f"  nothing in {folder}/answered/dsr-{number}/ is for the user: " in said
        assert f"for the user: {folder}/answered/dsr-{number}/" not in said, "not both"
    assert (f"for the user: {folder}/answered/dsr-170/" in said) == together, "the control"
    places = [folder / "answered" / f"dsr-{number}" for number in (170, 171, 172)]
    told = [json.loads((place / "about.json").read_text()).get("same_as") for place in places]
    assert told == [None, "dsr-170", "dsr-170"]
    assert {"request.json", "receipt.key"} <= {path.name for path in places[0].iterdir()}
    assert len({(place / "receipt.json").read_bytes() for place in places}) == 1
    assert current(run).name == "run-forgot-1"


def test_rows_of_the_same_request_are_told_by_the_first_answer(shop):
    folder, run = shop
    ask(folder, "anna", withdraw="c3")
    ask(folder, "anna-2", withdraw="c3")
    told = work_through(folder, run, "none").rows
    assert "its receipt: receipt-shop.json" in told["anna"]
    assert told["anna-2"] == "'shop' had none of them any more, see the answer to anna"
    assert (folder / "answered" / "anna" / "receipt-shop.json").is_file()


def test_rows_that_were_deleted_by_hand_are_not_said_to_have_no_receipt(shop):
    folder, run = shop
    answer(run, "withdraw", "c3", audits="none")  # rescind forget, then rescind data erase
    data_erasure.erase("shop", ["c3"], items_of("shop", "c3"), run.with_name("rows.json"))
    ask(folder, "anna", withdraw="c3")
    done = work_through(folder, run, "none")
    assert done.before == {"anna": ""}
    assert run.with_name("rows.json").is_file()
    assert "no receipt about it" not in done.rows["anna"]
    assert "if they were deleted before, the receipt of then is about it" in done.rows["anna"]


def test_the_same_request_with_another_receipt_is_not_told_as_the_first(queue):
    folder, run = queue
    ask(folder, "anna", withdraw="3")
    work_through(folder, run, "none")
    receipt = folder / "answered" / "anna" / "receipt.json"
    receipt.write_bytes(receipt.read_bytes() + b" ")  # she came back and left by hand
    ask(folder, "again", withdraw="3")
    assert work_through(folder, run, "none").before == {"again": ""}


def test_given_twice_it_does_nothing_more(queue):
    folder, run = queue
    ask(folder, "anna", withdraw="3")
    first = work_through(folder, run, "none")
    before = sorted(p.name for p in run.parent.iterdir())
    again = work_through(folder, run, "none")
    assert (first.answered, again.answered) == (("anna",), ())
    assert sorted(p.name for p in run.parent.iterdir()) == before
    assert len(log_lines(folder)) == 1


@contextmanager
def killed_at(monkeypatch, at: str) -> Iterator[None]:
    """Kill the queue at a step of Anna's answer; "after X" does X first, and nothing comes back."""

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        if at.startswith("after "):
            name = at.removeprefix("after ")
            real = getattr(request_queue, name)
            patch.setattr(request_queue, name, lambda *a, **k: (real(*a, **k), killed()))
        elif at == "os.replace":
            patch.setattr(request_queue.os, "replace", _kill_for(request_queue.os.replace, "anna"))
        elif at == "unlink":
            patch.setattr(Path, "unlink", _kill_for(Path.unlink, "anna.json"))
        elif at == "write":  # the rows are gone, and their receipt is not written
            patch.setattr(data_erasure, "write", killed)
        else:
            patch.setattr(request_queue, at, killed)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("at", ["after answer", "_hand_over", "os.replace", "add_to_log", "unlink"])
def test_killed_between_two_writes_a_request_is_answered_once(queue, monkeypatch, at):
    folder, run = queue
    ask(folder, "anna", withdraw="3")
    ask(folder, "ben", withdraw="4")

    with killed_at(monkeypatch, at):
        work_through(folder, run, "none")
    work_through(folder, run, "none")
    assert sorted(one["request"] for one in log_lines(folder)) == ["anna", "ben"]
    assert sorted(p.name for p in (folder / "answered").iterdir()) == ["anna", "ben"]
    assert list(folder.glob("*.json")) == []
    assert list(run.parent.glob("run*/receipt.key")) == [], "each key lies with its answer alone"
    for name, user in (("anna", "3"), ("ben", "4")):
        given = json.loads((folder / "answered" / name / "request.json").read_text())
        assert given["user"] == user, "the user can check the receipt, also after a kill"
    assert members(run) == 18
    assert current(run).name == "run-forgot-2", "two requests, two new runs, no third"


def _kill_for(real, name: str):
    def call(self, *words, **more):
        if any(Path(str(w)).name == name for w in (self, *words)):
            raise Killed
        return real(self, *words, **more)

    return call


SHOP = Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1))


def learn(run: Path) -> None:
    """Learn the run of the shop, as every night; it forgets which requests it answered."""
    run_cell(SHOP, run)
    for old in run.parent.glob("run-forgot-*"):
        shutil.rmtree(old)


@pytest.fixture
def shop(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A queue to a run on imported data: 12 users with 5 items each."""
    import_shop(tmp_path, monkeypatch)
    learn(tmp_path / "run")
    (tmp_path / "requests").mkdir()
    return tmp_path / "requests", tmp_path / "run"


def test_an_answer_ends_with_the_imported_rows_gone_and_a_receipt_of_that(shop, capsys):
    folder, run = shop
    assert items_of("shop", "c3") == ["p0", "p1", "p2", "p3", "p9"], "control: they are stored"
    few = {"user": "c4", "items": ["p2", "p3"]}
    ask(folder, "anna", withdraw="c3")
    ask(folder, "ben", erase=few)
    code, told = command(folder, run, capsys)
    assert code == 0, told
    assert told.count("imported rows: deleted from 'shop'; its receipt: receipt-shop.json") == 2
    assert "Other runs on this data" not in told, "control: there is none"
    assert items_of("shop", "c3") == []
    assert items_of("shop", "c4") == ["p4", "p5", "p6"], "the others stay"
    for name, rows in (("anna", 5), ("ben", 2)):
        place = folder / "answered" / name
        receipt = (place / "receipt-shop.json").read_bytes()
        assert verify(receipt, {keys.own_public_key(): "me"}).valid
        key = read_secret(place / "receipt-shop.key")
        assert opened(parse(receipt), key).asked.records == rows
    assert len(log_lines(folder)) == 2


def test_other_runs_that_still_have_the_user_are_named(shop, capsys):
    folder, run = shop
    shutil.copytree(run, run.with_name("other"))
    ask(folder, "anna", withdraw="c3")
    code, told = command(folder, run, capsys)
    assert code == 0, told
    assert f"Answer there, too, or delete it: {run.with_name('other')}\n" in told


def listed_open(folder: Path, capsys) -> list[dict]:
    """Return what is listed as open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rescind", "requests", "open", str(folder), "--json"])
        with pytest.raises(SystemExit):
            main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "request_", [{"withdraw": "c3"}, {"erase": {"user": "c3", "items": ["p0", "p1"]}}]
)
@pytest.mark.parametrize("end", ["answered there", "deleted", "log alone"])
def test_a_request_is_listed_until_other_runs_have_nothing_of_it(shop, request_, end, capsys):
    folder, run = shop
    other = run.with_name("other")
    shutil.copytree(run, other)
    ask(folder, "anna", **request_)
    done = work_through(folder, run, "none")
    assert [(one.name, one.runs) for one in done.others] == [("anna", (other,))]
    notes = [folder / "answered" / "anna" / "about.json", folder / "log.jsonl"]
    for note in notes:
        assert "other_runs" in note.read_text()
        assert not re.search('"(c3|p0|p1)"', note.read_text()), "no ids"
    answer(other, "withdraw", "c5", audits="none")  # the run that replaced it still has it
    newest = other.with_name("other-forgot-1")
    if end == "log alone":
        shutil.rmtree(folder / "answered")
    (row,) = listed_open(folder, capsys)
    assert (row["request"], row["state"]) == ("anna", "answered")
    assert row["other_runs"] == [str(newest)]
    code, told = command(folder, run, capsys)
    assert code == 0, told
    assert f"Answer there, too, or delete it: {newest}\n" in told, "said again"
    if end == "answered there":
        source = "c3" if "withdraw" in request_ else NamedRecords("c3", ("p0", "p1"))
        answer(newest, next(iter(request_)), source, audits="none")
    else:
        shutil.rmtree(newest)
    assert listed_open(folder, capsys) == []
    work_through(folder, run, "none")
    assert log_lines(folder)[-1]["event"] == "gone from other runs"
    lines = len(log_lines(folder))
    assert work_through(folder, run, "none").others == ()
    assert len(log_lines(folder)) == lines, "noted once"


def test_new_rows_of_who_was_let_in_again_may_be_in_other_runs(shop, tmp_path):
    folder, run = shop
    other = run.with_name("other")
    shutil.copytree(run, other)
    ask(folder, "anna", withdraw="c3")
    work_through(folder, run, "none")
    assert admit_imported("shop", "c3")
    assert [one.name for one in left_in_others(folder)] == ["anna"], "control: it has her old rows"
    (tmp_path / "new.csv").write_text("user,item\nc3,p5\nc3,p6\nc3,p7\n")
    append_file("shop", tmp_path / "new.csv")
    run_cell(Cell("c", DataSettings(name="shop"), None, Gram(), RunSettings(rounds=1)), other)
    assert "c3" in load_federation(other / "model").labels.users, "control: she is back"
    assert left_in_others(folder) == []


def test_what_other_runs_have_after_the_deadline_is_overdue(shop, capsys, tmp_path):
    folder, run = shop
    shutil.copytree(run, run.with_name("other"))
    ask(folder, "anna", withdraw="c3", received="2026-01-02", due="2026-01-05")
    work_through(folder, run, "none", now=datetime(2026, 1, 3, tzinfo=UTC))
    code, told = command(folder, run, capsys)
    assert (code, "answered before: anna; due 2026-01-05, overdue by" in told) == (1, True)
    assert listed_open(folder, capsys)[0]["overdue"]
    now = datetime.now(UTC)
    text = metrics_text(folder, (), now, in_other_runs=[now - timedelta(days=1)])
    assert "rescind_requests_in_other_runs 1\n" in text
    assert "rescind_requests_overdue 1\n" in text, "the person is still in a model"
    text = metrics_text(folder, (), now, in_other_runs=[now + timedelta(days=1)])
    assert "rescind_requests_overdue 0\n" in text, "the control"
    shutil.rmtree(run.with_name("other"))
    assert command(folder, run, capsys)[0] == 0, "control"


def test_killed_before_its_file_is_deleted_a_request_is_not_lost_from_other_runs(shop, monkeypatch):
    folder, run = shop
    shutil.copytree(run, run.with_name("other"))
    done = answered_after_a_kill(folder, run, monkeypatch, "unlink")
    assert [one.name for one in done.others] == ["anna"]


def answered_after_a_kill(folder: Path, run: Path, monkeypatch, at: str) -> Pass:
    """Ask for c3, kill the command at a moment, and return what the next call does."""
    ask(folder, "anna", withdraw="c3")
    with killed_at(monkeypatch, at):
        work_through(folder, run, "none")
    assert (folder / "anna.json").exists(), "until the answer is complete it is open"
    return work_through(folder, run, "none")


@pytest.mark.parametrize("at", ["erase", "write", "after erase", "add_to_log", "unlink"])
def test_killed_while_imported_rows_are_deleted_the_next_call_goes_on(shop, monkeypatch, at):
    folder, run = shop
    done = answered_after_a_kill(folder, run, monkeypatch, at)
    assert done.answered == ("anna",)
    assert done.waiting == ()
    assert items_of("shop", "c3") == []
    assert [one["request"] for one in log_lines(folder)] == ["anna"]
    assert current(run).name == "run-forgot-1"
    place = folder / "answered" / "anna"
    receipt, key = parse((place / "receipt-shop.json").read_bytes()), place / "receipt-shop.key"
    assert opened(receipt, read_secret(key)).asked.records == 5
    assert "its receipt: receipt-shop.json" in done.rows["anna"]


def test_a_more_urgent_request_leaves_rows_that_wait_to_their_own_receipt(shop, monkeypatch):
    folder, run = shop
    ask(folder, "anna", withdraw="c3", due="2026-02-01")
    with killed_at(monkeypatch, "erase"):
        work_through(folder, run, "none")
    ask(folder, "ben", withdraw="c4", due="2026-01-01")
    assert work_through(folder, run, "none", most=1).answered == ("ben",)
    assert len(items_of("shop", "c3")) == 5, "the run has forgotten; the rows wait"
    assert work_through(folder, run, "none").answered == ("anna",)
    for name in ("anna", "ben"):
        assert (folder / "answered" / name / "receipt-shop.json").is_file()


def test_an_answer_whose_imported_rows_cannot_be_deleted_yet_stays_open(shop):
    folder, run = shop
    ask(folder, "anna", withdraw="c3", due="2026-01-05")
    with locked(imported_folder()):
        done = work_through(folder, run, "none")
    assert (done.answered, done.refused) == ((), ("anna",))
    why = json.loads((folder / "refused" / "anna.json").read_text())["why"]
    assert "the run has forgotten, but 'shop' still has the rows" in why
    told = metrics_text(folder, done.waiting, datetime(2026, 1, 10, tzinfo=UTC))
    for line in ("open 1", "overdue 1", "answered_total 0", "refused 1"):
        assert f"rescind_requests_{line}\n" in told
    late = datetime(2026, 1, 10, tzinfo=UTC)
    assert work_through(folder, run, "none", now=late).answered == ("anna",)
    assert items_of("shop", "c3") == []
    assert log_lines(folder)[-1]["late"], "it counts when it is complete"
    assert not list((folder / "refused").iterdir())


def test_the_same_request_under_the_same_name_a_second_time_is_not_lost(shop):
    folder, run = shop
    os.utime(ask(folder, "anna", withdraw="c3"), (1, 1))
    assert work_through(folder, run, "none").answered == ("anna",)
    again = ask(folder, "anna", withdraw="c3")  # she came back, and leaves again
    assert work_through(folder, run, "none").refused == ("anna",)
    assert again.exists()


def test_an_answer_names_the_command_for_data_on_another_machine(shop, monkeypatch, tmp_path):
    folder, run = shop
    ask(folder, "anna", withdraw="c3")
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "elsewhere"))
    done = work_through(folder, run, "none")
    assert "Where it is, give rescind data erase shop --user USER" in done.rows["anna"]


def command(folder: Path, run: Path, capsys) -> tuple[int, str]:
    """Give the command of cron; return its exit code and what it said."""
    words = ["requests", "run", str(folder), "--run", str(run), "--audits", "none"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rescind", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out + said.err


FEW = {"user": "c4", "items": ["p2", "p3"]}


def about(folder: Path, name: str) -> dict:
    return json.loads((folder / "answered" / name / "about.json").read_text())


@pytest.mark.parametrize("request_", [{"withdraw": "c3"}, {"erase": FEW}])
def test_a_reminder_after_the_run_was_learnt_again_is_told_by_the_first(shop, request_, capsys):
    folder, run = shop
    ask(folder, "x1", **request_)
    assert command(folder, run, capsys)[0] == 0
    first = folder / "answered" / "x1"
    for name in ("x2", "x3"):
        learn(run)
        ask(folder, name, **request_)
        code, said = command(folder, run, capsys)
        assert code == 0, said
        assert f"answered before, as x1: send {folder}/answered/x1/\n" in said
        assert "imported rows: 'shop' had none of them any more, see the answer to x1\n" in said
        assert about(folder, name)["same_as"] == "x1", "also if the last answer was a copy"
        place = folder / "answered" / name
        assert {path.name for path in place.iterdir()} - {"receipt.tlog-proof"} == {
            "about.json", "receipt.json", "receipt.html",
        }, "the key and the exact request lie with the first alone"  # fmt: skip
        assert (place / "receipt.json").read_bytes() == (first / "receipt.json").read_bytes()
        assert "Numbers are bands" in (place / "receipt.html").read_text()
        assert not (folder / f"{name}.json").exists()
    assert not run.with_name("run-forgot-1").exists(), "nothing is forgotten twice"
    ask(folder, "other", withdraw="c5")
    ask(folder, "nobody", withdraw="c33")
    ask(folder, "half", erase={"user": "c4", "items": ["p2"]})
    done = work_through(folder, run, "none")
    assert done.before == {}, "control: requests of others, and for other things, are no reminders"
    assert "other" in done.answered
    assert "nobody" in done.refused


@pytest.mark.parametrize("deleted", ["the receipt", "the folder", "both folders"])
@pytest.mark.parametrize("learnt_again", [True, False])
def test_a_reminder_is_answered_if_the_first_receipt_was_deleted(
    shop, deleted, learnt_again, capsys
):
    folder, run = shop
    ask(folder, "x1", withdraw="c3")
    ask(folder, "x2", withdraw="c3")
    assert command(folder, run, capsys)[0] == 0
    if deleted == "the receipt":
        (folder / "answered" / "x1" / "receipt.json").unlink()
    else:
        shutil.rmtree(folder / "answered" / "x1")
    if deleted == "both folders":
        shutil.rmtree(folder / "answered" / "x2")
    if learnt_again:
        learn(run)
    ask(folder, "x3", withdraw="c3")
    code, said = command(folder, run, capsys)
    assert code == 0, said
    gone = f"answered before, as x1; its receipt is not in {folder}/answered/x1/ any more\n"
    assert gone in said
    assert about(folder, "x3")["same_as"] == "x1"
    there = (folder / "answered" / "x3" / "receipt.json").is_file()
    assert there == (not learnt_again or deleted != "both folders")
    assert (f"for the user: {folder}/answered/x3/" in said) == there


@pytest.fixture
def stored_again(shop, tmp_path) -> tuple[Path, Path]:
    """The shop after "x1" was answered, with the rows of its user back from a backup."""
    folder, run = shop
    shutil.copytree(imported_folder() / "shop", tmp_path / "backup")
    ask(folder, "x1", withdraw="c3")
    work_through(folder, run, "none")
    shutil.rmtree(imported_folder() / "shop")
    shutil.copytree(tmp_path / "backup", imported_folder() / "shop")
    learn(run)
    return folder, run


def test_of_a_reminder_that_deleted_rows_only_their_receipt_is_for_the_user(stored_again, capsys):
    folder, run = stored_again
    ask(folder, "x2", withdraw="c3")
    code, said = command(folder, run, capsys)
    assert code == 0, said
    there, rest = f"{folder}/answered/x2/", "is for the user: a receipt.json there is a copy"
    assert f"  of {there} only receipt-shop.* (of the rows) {rest}, without its key\n" in said
    assert f"for the user: {there}" not in said
    assert "Numbers are bands" in (folder / "answered" / "x2" / "receipt.html").read_text()


def test_rows_that_are_stored_again_are_deleted_by_a_reminder(stored_again):
    folder, run = stored_again
    assert len(items_of("shop", "c3")) == 5, "control: they are stored again, and not learnt"
    ask(folder, "x2", withdraw="c3")
    done = work_through(folder, run, "none")
    assert done.before == {"x2": "x1"}
    assert "its receipt: receipt-shop.json" in done.rows["x2"]
    assert items_of("shop", "c3") == []
    assert len(items_of("shop", "c4")) == 5, "control: of others they stay"


@pytest.mark.parametrize("at", ["_hand_over_again", "os.replace", "erase", "add_to_log", "unlink"])
def test_killed_while_a_reminder_is_answered_the_next_call_goes_on(stored_again, monkeypatch, at):
    folder, run = stored_again
    done = answered_after_a_kill(folder, run, monkeypatch, at)
    assert (done.answered, done.before, done.waiting) == (("anna",), {"anna": "x1"}, ())
    assert sorted(path.name for path in (folder / "answered").iterdir()) == ["anna", "x1"]
    assert [one["request"] for one in log_lines(folder)] == ["x1", "anna"]
    assert (folder / "answered" / "anna" / "receipt-shop.json").is_file()
    assert items_of("shop", "c3") == []


def test_a_request_under_a_wrong_name_is_open_and_overdue(queue, capsys):
    folder, run = queue
    text = json.dumps({"withdraw": "3", "received": "2026-01-01"})
    for name in ("B.txt", "C.JSON", "d"):
        (folder / name).write_text(text)
    (folder / "october").mkdir()
    (folder / ".copied.json.x7").write_text(
        text[:9]
    )  # as rsync writes a file that is not there yet
    ask(folder, "anna", withdraw="4")
    done = work_through(folder, run, "none")
    assert done.answered == ("anna",), "control: the others are answered"
    assert sorted(done.refused) == ["B.txt", "C.JSON", "d", "october"]
    why = json.loads((folder / "refused" / "C.JSON.json").read_text())["why"]
    assert "ends in .json" in why
    told = metrics_text(folder, done.waiting, datetime(2026, 2, 5, tzinfo=UTC))
    assert "rescind_requests_open 4\n" in told
    assert "rescind_requests_overdue 3\n" in told, "they say when they came; the folder does not"
    code, said = command(folder, run, capsys)
    assert code == 1
    assert "overdue: B.txt" in said
    (folder / "B.txt").rename(folder / "ben.json")
    assert work_through(folder, run, "none").answered == ("ben",)
    assert not (folder / "refused" / "B.txt.json").exists()
    assert (folder / "refused" / "C.JSON.json").exists(), "its file is still there"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"withdraw": "3", "recieved": "2026-01-01"}, "'recieved'; did you mean 'received'?"),
        ({"unshare": {"user": "3"}}, "give rescind forget RUN --unshare FILE"),
        ({"erase": {"user": "3", "item": ["5"]}}, "'item'; did you mean 'items'?"),
        ({"erase": {"user": "3", "items": "15"}}, "a list of items"),
        (
            {"erase": {"user": "3"}},
            'For all records of a user write {"withdraw": "7"}, which also notes that',
        ),
        ({"received": "2026-01-01"}, "must have one of withdraw and erase"),
        (["withdraw"], "is no request"),
        ({"withdraw": 7}, "the id 7 is not in quotes, and may have lost leading zeros"),
        ({"erase": {"user": "7", "items": [50]}}, "the id 50 is not in quotes"),
        (
            {"withdraw": "3", "received": "2020-11-10", "due": "2030-12-10"},
            "due '2030-12-10' is more than three months after received '2020-11-10'. Write "
            "2021-02-10 or an earlier day (is the year right?)",
        ),
        (
            {"withdraw": "3", "due": "2999-12-10"},
            "more than three months after the day of the file",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong(queue, request_, told):
    folder, run = queue
    (folder / "anna.json").write_text(json.dumps(request_))
    assert work_through(folder, run, "none").refused == ("anna",)
    why = json.loads((folder / "refused" / "anna.json").read_text())["why"]
    assert told.lower() in why.lower()


def test_a_terminal_shows_why_a_request_is_refused_and_cron_does_not(queue, monkeypatch, capsys):
    folder, run = queue
    ask(folder, "anna", withdraw="mia\x1b[2Jquist")
    note = folder / "refused" / "anna.json"
    code, said = command(folder, run, capsys)
    assert code == 1
    left = r"due \d{4}-\d\d-\d\d, \d+ days left"  # a month after the file was written
    assert re.search(f"refused: anna; {left}; why: {note}\n", said)
    month = months_after(datetime.now(UTC).date(), 1)
    assert json.loads(note.read_text())["due"].startswith(f"{month:%Y-%m-%d}")
    assert "quist" not in said, "it names a user, and cron sends mails"
    monkeypatch.setattr("rescind.cli.requests.at_terminal", lambda: True)
    code, said = command(folder, run, capsys)
    assert code == 1
    assert re.search(f"refused: anna; {left}; why: ", said)
    assert "quist" in said
    assert f"({note})\n" in said
    assert "\x1b" not in said, "a request must not write on the terminal"


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-11-16", "2026-12-16"),
        ("2026-12-31", "2027-01-31"),
        ("2026-01-31", "2026-02-28"),
        ("2028-01-30", "2028-02-29"),
        ("2026-02-10", "2026-03-10"),
    ],
)
def test_a_request_is_due_after_one_month_not_after_thirty_days(received, due):
    assert months_after(date.fromisoformat(received), 1) == date.fromisoformat(due)


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-11-17T23:30:00-08:00", "2026-12-17"),
        ("2026-11-18T10:00:00+14:00", "2026-12-17"),
        ("2026-11-18T10:00:00+00:00", "2026-12-18"),
        ("2026-11-19T00:10:00+14:00", "2026-12-18"),
    ],
)
def test_an_hour_of_elsewhere_counts_from_the_earlier_of_both_days(tmp_path, received, due):
    """Whether it is to come is asked of the moment, not of the day that is written."""
    ask(tmp_path, "anna", withdraw="3", received=received)
    ask(tmp_path, "ben", withdraw="4", received="2026-11-18T23:30:00-10:00")
    (one,), (to_come,) = read_all(tmp_path, datetime(2026, 11, 18, 14, tzinfo=UTC))
    assert f"{one.due:%Y-%m-%d}" == due
    assert (
        "received '2026-11-18T23:30:00-10:00' has not come yet: it is 2026-11-19 09:30 UTC, "
        in (to_come.why)
    )
    assert "now it is 2026-11-18 14:00 UTC" in to_come.why
    assert "after today" not in to_come.why, "it is of today"


@pytest.mark.parametrize(
    ("received", "last", "too_late"),
    [
        ("2026-11-10", "2027-02-10", "2027-02-11"),
        ("2026-01-31", "2026-04-30", "2026-05-01"),
        ("2025-11-30", "2026-02-28", "2026-03-01"),
        ("2026-07-18", "2026-10-18", "2026-10-19"),
    ],
)
def test_three_months_are_counted_by_the_calendar(tmp_path, received, last, too_late):
    ask(tmp_path, "anna", withdraw="3", received=received, due=last)
    ask(tmp_path, "ben", withdraw="4", received=received, due=too_late)
    asked, wrong = read_all(tmp_path, datetime(2026, 12, 1, tzinfo=UTC))
    assert [one.name for one in asked] == ["anna"], "control: the last day is allowed"
    assert [one.name for one in wrong] == ["ben"]
    assert f"Write {last} or an earlier day" in wrong[0].why
    assert wrong[0].due.date() == months_after(date.fromisoformat(received), 1), "the month counts"


def end_of(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, 23, 59, 59, 999999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "when", "late"),
    [
        ({"received": "2026-10-17"}, "2026-11-17T23:59:59", None),
        ({"received": "2026-10-17"}, "2026-11-18T00:00:00", "answered 1 day late (due 2026-11-17)"),
        ({"received": "2026-10-17T18:30"}, "2026-11-17T23:59:59", None),
        ({"due": "2026-11-17"}, "2026-11-17T23:59:59", None),
        ({"due": "2026-10-01"}, "2026-11-17T09:00:00", "answered 47 days late (due 2026-10-01)"),
        ({"due": "2026-11-17T12:00+01:00"}, "2026-11-17T10:59:59", None),
        (
            {"due": "2026-11-17T12:00+01:00"},
            "2026-11-17T11:01:00",
            "answered late (due 2026-11-17T12:00:00+01:00)",
        ),
    ],
)
def test_a_request_is_due_with_the_end_of_its_day_and_a_late_answer_is_told(
    queue, words, when, late
):
    folder, run = queue
    ask(folder, "anna", withdraw="3", **words)
    now = datetime.fromisoformat(when).replace(tzinfo=UTC)
    done = work_through(folder, run, "none", now=now)
    assert done.answered == ("anna",)
    assert done.late == ({"anna": late} if late else {})
    assert log_lines(folder)[-1]["late"] is (late is not None)


def test_the_command_tells_a_late_answer_and_ends_with_code_1(queue, capsys):
    folder, run = queue
    ask(folder, "ben", withdraw="4", received=f"{datetime.now(UTC):%Y-%m-%d}")
    code, said = command(folder, run, capsys)
    assert (code, "late: " in said) == (0, False), "control: an answer in time"
    ask(folder, "anna", withdraw="3", received="2020-01-10")
    code, said = command(folder, run, capsys)
    assert code == 1
    assert re.search(r"late: anna; answered \d+ days late \(due 2020-02-10\)", said)
    assert "1 answered, 0 refused, 0 waiting; the run: " in said


def test_a_request_cannot_have_come_after_today(queue):
    folder, run = queue
    path = ask(folder, "anna", withdraw="3", received="2026-06-02")
    came = datetime(2026, 6, 1, 12, tzinfo=UTC)
    os.utime(path, (came.timestamp(), came.timestamp()))
    done = work_through(folder, run, "none", now=came)
    assert done.refused == ("anna",)
    why = json.loads((folder / "refused" / "anna.json").read_text())["why"]
    assert "received '2026-06-02' is after today (2026-06-01)" in why
    assert [one.due for one in done.waiting] == [end_of(2026, 7, 1)], "the file's day counts"
    ask(folder, "ben", withdraw="4", received="2026-06-01")
    done = work_through(folder, run, "none", now=came)
    assert done.answered == ("ben",), "control: today"


def test_a_request_cannot_be_due_before_it_came(queue):
    folder, run = queue
    ask(folder, "anna", withdraw="3", received="2026-05-17", due="2026-01-12")
    ask(folder, "ben", withdraw="4", received="2026-05-17", due="2026-05-17")
    done = work_through(folder, run, "none", now=datetime(2026, 6, 1, 12, tzinfo=UTC))
    assert (done.refused, done.answered) == (("anna",), ("ben",)), "ben is the control"
    why = json.loads((folder / "refused" / "anna.json").read_text())["why"]
    assert "due '2026-01-12' is before received '2026-05-17'" in why


def test_two_at_once_are_told_apart(queue):
    folder, run = queue
    ask(folder, "anna", withdraw="3")
    with locked(folder), pytest.raises(DataError, match="in use by another rescind command"):
        work_through(folder, run, "none")
    assert work_through(folder, run, "none").answered == ("anna",), "control: when it is free"


def test_what_cannot_be_answered_is_refused_and_the_others_are_not(queue):
    folder, run = queue
    ask(folder, "nobody", withdraw="4711")
    ask(folder, "both", withdraw="3", erase={})
    ask(folder, "when", withdraw="3", due="soon")
    (folder / "broken.json").write_text("{")
    (folder / "word.json").write_text("{\u201cwithdraw\u201d: \u201c3\u201d}")
    ask(folder, "two", withdraw=["3", "4"])
    ask(folder, "good", withdraw="3")
    mark = (folder / "good.json").read_text()
    (folder / "good.json").write_text(mark, encoding="utf-8-sig")  # as editors of Windows do
    done = work_through(folder, run, "none")
    assert done.answered == ("good",)
    assert not list((folder / "answered").glob(".*")), "nothing of a refused request"
    assert sorted(done.refused) == ["both", "broken", "nobody", "two", "when", "word"]
    for name, why in (
        ("when", "'soon' is not a date. Write year-month-day, such as 2026-11-30."),
        ("word", "it has curly quotes"),
        ("two", "names 2 users. Write a file for each"),
    ):
        assert why in json.loads((folder / "refused" / f"{name}.json").read_text())["why"]
    assert work_through(folder, run, "none").refused == done.refused, "until somebody mends them"
    ask(folder, "good", withdraw="5")
    again = work_through(folder, run, "none").refused
    assert set(again) - set(done.refused) == {"good"}, "its name was used before"
    assert (folder / "good.json").exists(), "and it is not lost"


def test_the_metrics_count_what_waits_and_what_is_overdue(queue):
    folder, run = queue
    ask(folder, "anna", withdraw="3", received="2026-01-01")
    ask(folder, "ben", withdraw="4", received="2026-01-01", due="2026-01-09")
    ask(folder, "cem", withdraw="5", received="2026-01-02", due="2026-01-20")
    done = work_through(folder, run, "none", most=1)
    now = datetime(2026, 1, 25, tzinfo=UTC)
    text = metrics_text(folder, done.waiting, now)
    assert "rescind_requests_open 2\n" in text
    assert "rescind_requests_overdue 1\n" in text
    assert "rescind_requests_answered_total 1\n" in text
    due = end_of(2026, 1, 20).timestamp()
    assert f"rescind_requests_next_due_seconds {due:.0f}\n" in text
    early = metrics_text(folder, done.waiting, now - timedelta(days=20))
    assert "rescind_requests_overdue 0\n" in early, "control"


@pytest.mark.parametrize("text", ['{"withdraw":', '{"take_back": "u0318"}', "[]"])
def test_an_unreadable_request_is_open_and_becomes_overdue(queue, text):
    folder, run = queue
    path = folder / "e.json"
    path.write_text(text)
    came = datetime(2026, 1, 1, tzinfo=UTC)
    os.utime(path, (came.timestamp(), came.timestamp()))
    for _ in range(2):  # told once, counted always
        done = work_through(folder, run, "none")
        text = metrics_text(folder, done.waiting, came + timedelta(days=29))
        assert "rescind_requests_open 1\n" in text
        assert "rescind_requests_overdue 0\n" in text, "control: there is time left"
        last = metrics_text(folder, done.waiting, came + timedelta(days=31, hours=23))
        assert "rescind_requests_overdue 0\n" in last, "the last day is not over"
        late = metrics_text(folder, done.waiting, came + timedelta(days=32))
        assert "rescind_requests_overdue 1\n" in late
        due = end_of(2026, 2, 1).timestamp()  # one month later
        assert f"rescind_requests_next_due_seconds {due:.0f}\n" in late


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"withdraw": "3", "withdraw": "5"}', "withdraw"),
        ('{"erase": {"user": "3", "items": ["1"], "items": ["2"]}}', "items"),
        ('{"withdraw": "3", "received": "2026-10-01", "received": "2026-11-16"}', "received"),
    ],
)
def test_a_word_that_stands_twice_loses_no_request(queue, text, word):
    folder, run = queue
    (folder / "two.json").write_text(text)
    done = work_through(folder, run, "none")
    assert done.refused == ("two",)
    told = json.loads((folder / "refused" / "two.json").read_text())["why"]
    assert f"'{word}' stands there twice, and only one of them would count" in told
    assert (folder / "two.json").is_file()
    assert not done.answered


def test_a_wrong_request_keeps_the_deadline_that_it_names(queue):
    folder, run = queue
    ask(folder, "e", take_back="u0318", due="2026-01-05")
    ask(folder, "f", withdraw="3", due="soon", received="2026-01-01")
    ask(folder, "g", withdraw="3", due="2036-01-05", received="2026-01-01")
    due = {one.name: one.due for one in work_through(folder, run, "none").waiting}
    assert due == {
        "e": end_of(2026, 1, 5),
        "f": end_of(2026, 2, 1),
        "g": end_of(2026, 2, 1),  # the one that it names cannot be meant
    }


def test_what_is_open_is_listed_by_deadline_and_nothing_changes(queue, monkeypatch, capsys):
    folder, run = queue
    today = datetime.now(UTC)

    def day(days: int) -> str:
        return f"{today + timedelta(days):%Y-%m-%d}"

    ask(folder, "gone", withdraw="5")
    ask(folder, "unknown", withdraw="4711", received=day(-70), due=day(-2))
    work_through(folder, run, "none")
    ask(folder, "soon", withdraw="3", received=day(-1), due=day(3))
    ask(folder, "today", withdraw="3", received=day(-1), due=day(0))
    ask(folder, "gone", withdraw="6", received=day(-1), due=day(1))
    (folder / "broken.json").write_text("{\x1b")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    def listed(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["rescind", "requests", "open", str(folder), *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return capsys.readouterr().out

    lines = listed().splitlines()
    assert [line.split()[0] for line in lines] == [
        "request", "broken", "unknown", "today", "gone", "soon", "5", "By"
    ]  # fmt: skip
    assert re.match(
        f"unknown  {day(-70)}  {day(-2)}  overdue by 2 days  +refused: there is no us", lines[2]
    )
    assert re.search("due today  +waiting", lines[3])
    assert re.search("1 day left  +refused: another request of this name was answered.", lines[4])
    assert re.search(f"{day(3)}  3 days left  +waiting", lines[5])
    assert re.search(" [?]  .* days left, by the file's date  refused: .* is not JSON", lines[1])
    assert lines[6] == "5 open, 1 overdue, 3 refused"
    ask(folder, "old", withdraw="3", received=day(-300), due=day(-263))
    assert re.search("overdue by 263 days  +waiting", listed()), "columns stay apart"
    (folder / "old.json").unlink()
    table = {one["request"]: one for one in json.loads(listed("--json"))}
    assert [table["unknown"][name] for name in ("days_left", "overdue", "state")] == [
        -2, True, "refused"
    ]  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    ask(folder, "unknown", withdraw="7", received=day(-70), due=day(-2))
    assert re.search("overdue by 2 days  +waiting", listed()), "its file was mended"
    for path in folder.glob("*.json"):
        path.unlink()
    assert listed() == f"no open requests in {folder}.\n"


@pytest.mark.parametrize(
    ("words", "guessed"),
    [
        ({"recieved": "2026-01-20"}, ("received", "due")),
        ({"received": "16.02.2026"}, ("received", "due")),
        ({"recieved": "2026-01-20", "due": "2099-01-01"}, ("received", "due")),
        ({"received": "16.02.2026", "due": "2026-02-20"}, ("received",)),
        ({"received": "2026-01-20", "deu": "2026-02-20"}, ()),
        ({"received": "2026-01-20"}, ()),
        ({}, ()),
    ],
)
def test_a_deadline_that_no_date_gives_is_told_apart_and_comes_first(
    queue, monkeypatch, capsys, words, guessed
):
    folder, run = queue
    now = datetime(2026, 2, 18, 12, tzinfo=UTC)
    path = ask(folder, "x", withdraw="4711", **words)
    os.utime(path, (now.timestamp(), now.timestamp()))
    ask(folder, "early", withdraw="4711", received="2026-01-19")
    found = [one.request for one in open_requests(folder, now)]
    unsure = "due" in guessed
    assert [one.name for one in found][unsure] == "early", "only what may be due earlier is first"
    assert {one.name: one.guessed for one in found} == {"x": guessed, "early": ()}
    told = due_told(next(one for one in found if one.name == "x"), now)
    assert (told == "due 2026-03-18 or earlier (by the file's date), 28 days left") == unsure
    assert ("by the file's date" in told) == unsure
    text = metrics_text(folder, found, now)
    assert f"rescind_requests_without_date {int(unsure)}\n" in text
    monkeypatch.setattr(sys, "argv", ["rescind", "requests", "open", str(folder), "--json"])
    with pytest.raises(SystemExit):
        main()
    table = {one["request"]: one["by_file_date"] for one in json.loads(capsys.readouterr().out)}
    assert table == {"x": [*guessed], "early": []}
    code, said = command(folder, run, capsys)
    assert code == 1
    assert bool(re.search("refused: x; due 20.{8} or earlier [(]by the file's", said)) == unsure
    assert "0 answered, 2 refused, 0 waiting; the run: " in said
    note = json.loads((folder / "refused" / "x.json").read_text())
    assert tuple(note.get("by_file_date", ())) == guessed


def test_a_day_that_is_to_come_is_told_from_one_that_cannot_be_read(queue, monkeypatch, capsys):
    folder, _ = queue

    def listed() -> str:
        monkeypatch.setattr(sys, "argv", ["rescind", "requests", "open", str(folder)])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out

    in_hours = datetime.now(UTC) + timedelta(hours=3)
    to_come = "By the file's date: the time it names as received has not come yet."
    unread = "By the file's date: it names no day that can be read."
    path = ask(folder, "anna", withdraw="4711", received=in_hours.isoformat())
    for said in (
        listed(),
        ask(folder, "anna", withdraw="4711", received="2199-01-01") and listed(),
    ):
        assert to_come in said
        assert "not come yet. It may be due earlier." in said
        assert unread not in said
    ask(folder, "ben", withdraw="4711", received="soon")
    said = listed()
    assert to_come in said
    assert unread in said
    path.unlink()
    assert to_come not in listed(), "control: one that cannot be read alone"


def test_refusals_that_another_key_noted_are_told(queue, monkeypatch, tmp_path):
    folder, run = queue
    ask(folder, "anna", withdraw="4711")
    assert work_through(folder, run, "none").refused == ("anna",)

    def listed(keys: str) -> tuple[str, str]:
        monkeypatch.setenv("RESCIND_KEYS", keys)
        said = CliRunner().invoke(app, ["requests", "open", str(folder)])
        return said.stdout, said.stderr

    own = os.environ["RESCIND_KEYS"]
    assert "refused: there is no user '4711'" in listed(own)[0], "control"
    assert listed(own)[1] == ""
    elsewhere = listed(str(tmp_path / "other"))
    assert "waiting" in elsewhere[0]
    assert "1 note of a refusal was written with another erasure.key" in elsewhere[1]
    (folder / "anna.json").unlink()
    assert listed(str(tmp_path / "other"))[1] == "", "nobody waits for it"


def test_a_folder_instead_of_a_command_is_told_how_to_list_it(tmp_path, monkeypatch, capsys):
    def said(word: str) -> str:
        monkeypatch.setattr(sys, "argv", ["rescind", "requests", word])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        return " ".join(capsys.readouterr().err.replace("│", "").split())

    monkeypatch.chdir(tmp_path)
    assert "No such command 'in'" in said("in"), "control: there is no such folder"
    (tmp_path / "in").mkdir()
    assert "'in' is a folder. What is open there: rescind requests open FOLDER." in said("in")


def test_the_time_left_is_told_to_the_hour_on_the_last_day():
    now = datetime(2026, 1, 5, 12, tzinfo=UTC)
    assert time_left(datetime(2026, 1, 5, 11, 30, tzinfo=UTC), now) == "overdue since 11:30 UTC"
    assert time_left(datetime(2026, 1, 5, 13, tzinfo=UTC), now) == "due today"
    assert time_left(end_of(2026, 1, 4), now) == "overdue by 1 day"


def test_a_folder_that_is_not_there_has_no_list(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        open_requests(tmp_path / "none", datetime.now(UTC))


def test_the_folder_above_the_requests_is_refused_with_theirs(queue):
    folder, run = queue
    above = folder.parent / "in"
    above.mkdir()
    (above / "first.csv").write_text("user,item\n")
    shutil.copytree(folder, above / "requests")
    for call in (
        lambda: work_through(above, run),
        lambda: open_requests(above, datetime.now(UTC)),
    ):
        with pytest.raises(DataError, match=f"but a folder {above / 'requests'}. Give that one"):
            call()
    assert sorted(one.name for one in above.iterdir()) == ["first.csv", "requests"]
    ask(above, "anna", withdraw="7")  # control: it has requests of its own
    done = work_through(above, run, "none")
    assert done.answered == ("anna",)
    assert {*done.refused} == {"first.csv", "requests"}


def test_a_folder_of_other_things_is_refused_as_a_whole(queue):
    folder, run = queue
    shop = folder.parent / "shop"
    for name in ("in", "runs"):
        (shop / name).mkdir(parents=True)
    (shop / "nightly.sh").write_text("rescind requests run in\n")
    (shop / "first.csv").write_text("user,item\n")
    (shop / ".profile").write_text("")
    for call in (
        lambda: work_through(shop, run),
        lambda: open_requests(shop, datetime.now(UTC)),
    ):
        told = r"not look like a folder of requests: .* first.csv, in, nightly.sh and 1 more\. Name"
        with pytest.raises(DataError, match=told):
            call()
    names = {".profile", "first.csv", "in", "nightly.sh", "runs"}
    assert {one.name for one in shop.iterdir()} - {".lock"} == names, "no note about each of them"


@pytest.mark.parametrize(
    "names",
    [
        ("request-117.json", "receipt-rows-117.json", "receipt-rows-117.key"),
        ("receipt.json", "receipt.html", "receipt.tlog-proof", "request.json", "about.json"),
    ],
)
def test_a_folder_of_answers_is_refused_as_a_whole(queue, names):
    """What an officer keeps beside the requests: each file would be refused, with a deadline."""
    folder, run = queue
    letters = folder.parent / "letters"
    letters.mkdir()
    for name in names:
        (letters / name).write_text(json.dumps({"kind": "Withdraw", "user": "4"}))
    with pytest.raises(DataError, match="does not look like a folder of requests"):
        work_through(letters, run, "none")
    assert {one.name for one in letters.iterdir()} - {".lock"} == {*names}
    ask(letters, "anna", withdraw="4")  # the control: one request, and it is a folder of them
    assert work_through(letters, run, "none").answered == ("anna",)


@pytest.mark.parametrize("others", [["letter.txt"], ["letter.txt", "october/"]])
def test_a_letter_in_a_folder_of_requests_is_refused_and_open(queue, others):
    folder, run = queue
    if len(others) > 1:  # it was used for requests, so what lies there may be one
        ask(folder, "anna", withdraw="4")
        assert work_through(folder, run, "none").answered == ("anna",)
        (folder / others[1]).mkdir()
    (folder / "letter.txt").write_text("Delete what you have about me.")
    done = work_through(folder, run, "none")
    assert [*done.refused] == [name.rstrip("/") for name in others]
    assert len(done.waiting) == len(others)


def test_requests_that_all_have_wrong_names_are_refused_one_by_one(queue):
    folder, run = queue
    for name in ("anna.txt", "ben.txt"):
        (folder / name).write_text('{"withdraw": "3"}')
    assert work_through(folder, run, "none").refused == ("anna.txt", "ben.txt")


def test_a_folder_among_the_requests_is_called_a_folder(queue):
    folder, run = queue
    (folder / "october").mkdir()
    (one,) = open_requests(folder, datetime.now(UTC))
    assert "october is a folder, not a file of a request. If it holds requests, move" in one.why
    assert "Errno" not in one.why
    assert work_through(folder, run, "none").refused == ("october",)


def test_refusals_are_counted_while_they_stand(queue):
    folder, run = queue
    wrong = [ask(folder, name, withdraw="4711") for name in ("anna", "ben", "cem")]
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def refused() -> str:
        text = metrics_text(folder, work_through(folder, run, "none").waiting, now)
        return next(line for line in text.splitlines() if line.startswith("rescind_requests_ref"))

    assert refused() == "rescind_requests_refused 3"
    ask(folder, "anna", withdraw="3")  # mended, so it is answered
    wrong[1].unlink()  # withdrawn by the operator
    assert refused() == "rescind_requests_refused 1"


def test_the_command_for_cron(queue, monkeypatch, capsys, tmp_path):
    folder, run = queue
    ask(folder, "anna", withdraw="3", due="2020-01-01")
    ask(folder, "ben", withdraw="4711", due="2020-01-01")
    words = ["requests", "run", str(folder), "--run", str(run), "--audits", "none"]
    monkeypatch.setattr(sys, "argv", ["rescind", *words, "--metrics", str(tmp_path / "m.prom")])
    with pytest.raises(SystemExit) as stop:
        main()
    out = capsys.readouterr()
    assert stop.value.code == 1, "a request was refused, and it is overdue"
    assert "answered: anna" in out.out
    assert "late: anna; answered" in out.err
    assert re.search(r"overdue: ben; due 2020-01-01, overdue by [\d,]{5} days\n", out.err)
    first = [line.partition(":")[0] for line in out.err.splitlines()]
    assert first == ["late", "overdue", "refused"], "urgent lines come first"
    assert "rescind_requests_overdue 1" in (tmp_path / "m.prom").read_text()


def given(monkeypatch, capsys, *words: object) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["rescind", "requests", "run", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), capsys.readouterr().err


def test_metrics_for_a_folder_that_is_not_there_are_refused_before_an_answer(
    queue, monkeypatch, capsys, tmp_path
):
    folder, run = queue
    ask(folder, "anna", withdraw="3")
    there = tmp_path / "collector"
    words = (folder, "--run", run, "--audits", "none", "--metrics", there / "rescind.prom")
    code, said = given(monkeypatch, capsys, *words)
    assert code == 2
    assert f"there is no folder {there} for --metrics" in said
    assert not there.exists()
    assert (folder / "anna.json").is_file(), "nothing was answered"
    there.mkdir()
    assert given(monkeypatch, capsys, *words)[0] == 0
    assert (there / "rescind.prom").is_file()


@pytest.mark.parametrize("earlier", ["a finished run", "a first run", "a run that was replaced"])
def test_while_a_run_learns_its_requests_wait_and_the_command_says_so(
    queue, monkeypatch, capsys, earlier
):
    folder, run = queue
    words = (folder, "--run", run, "--audits", "none")
    if earlier == "a run that was replaced":
        ask(folder, "ben", withdraw="5")
        assert given(monkeypatch, capsys, *words)[0] == 0
    if earlier == "a first run":
        shutil.rmtree(run)
    ask(folder, "anna", withdraw="3")
    with rerunning(run):
        code, said = given(monkeypatch, capsys, *words)
    assert code == 2
    assert f"is in use by another rescind command (process {os.getpid()})" in said
    assert not (folder / "refused").exists(), "nothing is wrong with the request"
    code, said = given(monkeypatch, capsys, *words)  # the control: it has ended
    assert code == (2 if earlier == "a first run" else 0)
    if earlier == "a first run":
        begin_learning(run)
        assert "learning here was interrupted" in given(monkeypatch, capsys, *words)[1]


@pytest.mark.slow  # starts two processes
def test_two_processes_at_once_answer_each_request_once(queue):
    folder, run = queue
    for user in range(3, 8):
        ask(folder, f"u{user}", withdraw=str(user))
    words = [sys.executable, "-m", "rescind.cli", "requests", "run", str(folder), "--run", str(run)]
    words += ["--audits", "none"]
    both = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(one.wait() for one in both) in ([0, 0], [0, 2])
    subprocess.run(words, check=True)
    assert sorted(one["request"] for one in log_lines(folder)) == ["u3", "u4", "u5", "u6", "u7"]
    assert members(run) == 15


def bought_today(folder: Path) -> None:
    """Add rows that the run has not learnt yet: of c3, whom it knows, one item is new to all."""
    file = folder.parent / "today.csv"
    file.write_text("user,item\nc3,p7\nc3,p40\n")
    assert append_file("shop", file).rows == 2


@pytest.mark.parametrize(
    ("items", "of_run", "told"),
    [
        (("p7",), (), "the run has not learnt it; "),
        (("p7", "p40"), (), "the run has not learnt any of them; "),
        (("p9", "p40"), ("p9",), "the run had learnt 1 of the 2 items: receipt.json is about that"),
        (("p0", "p7", "p9"), ("p0", "p9"), "the run had learnt 2 of the 3 items: receipt.json is"),
        (("p0", "p9"), ("p0", "p9"), "deleted from 'shop'"),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
def test_rows_that_the_run_has_not_learnt_yet_can_be_asked_for(
    shop, monkeypatch, items, of_run, told, killed
):
    """As people do: about what they bought yesterday. Of a known user, too."""
    folder, run = shop
    bought_today(folder)
    ask(folder, "anna", erase={"user": "c3", "items": list(items)})
    if killed:  # after the run forgot, before its receipt is handed over
        with killed_at(monkeypatch, "after answer" if of_run else "after _answer_by_rows"):
            work_through(folder, run, "none")
    assert work_through(folder, run, "none").answered == ("anna",)
    place = folder / "answered" / "anna"
    assert json.loads((place / "about.json").read_text())["rows"].startswith(told)
    assert {*items_of("shop", "c3")} == {"p0", "p1", "p2", "p3", "p7", "p9", "p40"} - {*items}
    of_rows = json.loads((place / "receipt-shop.request.json").read_text())
    assert {*of_rows["item"]} == {*items}
    assert (place / "receipt.json").is_file() == bool(of_run)
    if of_run:
        assert {*json.loads((place / "request.json").read_text())["item"]} == {*of_run}
    learn(run)
    assert not still_has(run, {"c3": items}), "it is not learnt later"
    assert still_has(run, {"c3": ["p1"]}), "control: the others are"


def test_an_item_that_neither_the_run_nor_its_data_has_is_refused(shop):
    """The control: a request that cannot be carried out whole is still refused whole."""
    folder, run = shop
    bought_today(folder)
    for name, items in (("one", ["p5"]), ("some", ["p7", "p5"]), ("new", ["p7", "p41"])):
        ask(folder, name, erase={"user": "c3", "items": items})
    assert work_through(folder, run, "none").refused == ("new", "one", "some")
    assert "p7" in items_of("shop", "c3")


def test_the_command_says_that_the_data_has_what_the_run_has_not_learnt(shop):
    folder, run = shop
    bought_today(folder)
    for item in ("p7", "p40"):
        with pytest.raises(RescindError) as caught:
            answer(run, "erase", NamedRecords("c3", (item,)), audits="none")
        assert "'shop' has some of these items of this user" in str(caught.value)
    for items in (("p5",), ("p9", "p5"), ("p9", "p41")):
        with pytest.raises(RescindError) as caught:
            answer(run, "erase", NamedRecords("c3", items), audits="none")
        assert "has not learnt" not in str(caught.value), "control: p9 is in both, others in none"


@pytest.mark.parametrize("learnt_again", [False, True])
@pytest.mark.parametrize("kind", ["withdraw", "erase"])
def test_a_reminder_gets_the_receipt_of_an_answer_by_hand(shop, capsys, kind, learnt_again):
    """Also after the night that learnt again: an officer answers by hand beside the folder."""
    folder, run = shop
    few = NamedRecords("c3", ("p0", "p1"))
    by_hand = answer(run, kind, "c3" if kind == "withdraw" else few, audits="none").folder
    erase_imported("shop", ["c3"], [] if kind == "withdraw" else ["p0", "p1"])
    answer(by_hand, "withdraw", "c9", audits="none")
    if learnt_again:
        run_cell(SHOP, run)
        answer(run, "withdraw", "c8", audits="none")
    asked = {"user": "c3", "items": ["p0", "p1"]} if kind == "erase" else "c3"
    ask(folder, "reminder", **{kind: asked})
    ask(folder, "other", withdraw="c7")
    code, told = command(folder, run, capsys)
    assert code == 0, told
    assert told.count("answered before, by rescind forget: the receipt is that one") == 1
    mine = (folder / "answered" / "reminder" / "receipt.json").read_bytes()
    assert mine == (by_hand / "receipt.json").read_bytes()
    other = (folder / "answered" / "other" / "receipt.json").read_bytes()
    assert parse(other).previous, "control: somebody else's is a new one"


def test_who_came_back_after_an_answer_by_hand_is_answered_anew(shop):
    """The control: the receipt of then is not about what came since."""
    folder, run = shop
    by_hand = answer(run, "withdraw", "c3", audits="none").folder
    erase_imported("shop", ["c3"])
    words = ["data", "admit", "shop", "--user", "c3", "--run", str(by_hand)]
    assert CliRunner().invoke(app, words).exit_code == 0
    file = folder.parent / "back.csv"
    file.write_text("user,item\nc3,p4\n")
    assert append_file("shop", file).rows == 1
    run_cell(SHOP, run)
    ask(folder, "again", withdraw="c3")
    assert work_through(folder, run, "none").answered == ("again",)
    mine = (folder / "answered" / "again" / "receipt.json").read_bytes()
    assert mine != (by_hand / "receipt.json").read_bytes()
