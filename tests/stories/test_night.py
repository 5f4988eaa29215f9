"""Nights of a small shop: killed between any two writes, a night ends as if it had not been."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rescind.cli import app
from rescind.core import home as homes
from rescind.data import importing
from rescind.data.blocklist import Blocklist
from rescind.home import Ledger
from rescind.night import config, sinks, sources, steps
from rescind.night.checking import problems
from rescind.night.steps import work
from rescind.requests.answer import answer
from rescind.storage.federations import load_federation

FIRST = date(2026, 3, 2)
PEOPLE, ITEMS = 12, 10
FILES = '[new]\nfrom = "in/*.csv"\n[requests]\nfrom = "in/requests"\n'
SQL = """
[new]
sql = "sqlite:///shop.db"
query = "select customer, product from sale where day = :yesterday"
[requests]
sql = "sqlite:///shop.db"
query = "select kind, user, item, received from asked"
"""
REST = '[export]\nto = "lists"\nk = 3\nexclude = ["p9"]\n'
ASKED = {
    1: [("leave", "c1", "")],
    2: [("erase", "c2", ""), ("erase", "c3", "p9")],
    3: [("leave", "c2", "")],
    4: [("leave", "c11", ""), ("leave", "c5", "")],
}
"""What people ask, by night."""


def bought(night: int) -> list[tuple[str, str]]:
    """Rows of a night; those who left go on buying."""
    return [
        (f"c{user}", f"p{(3 * user + 4 * night + k) % ITEMS}")
        for user in range(PEOPLE)
        for k in range(5 if night == 0 else 1)
    ]


class Shop:
    """A folder with the file of its nights, and a home beside it."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.way = folder, way
        (folder / "in" / "requests").mkdir(parents=True)
        head = '[data]\nname = "shop"\ncolumns = { user = "customer", item = "product" }\n'
        (folder / "shop.toml").write_text(head + (FILES if way == "files" else SQL) + REST)
        if way == "sql":
            self.write("create table sale (customer, product, day)")
            self.write("create table asked (kind, user, item, received)")

    @property
    def file(self) -> Path:
        return self.folder / "shop.toml"

    def write(self, statement: str, *rows: tuple[Any, ...]) -> None:
        with closing(sqlite3.connect(self.folder / "shop.db")) as database, database:
            database.executemany(statement, rows) if rows else database.execute(statement)

    def day(self, night: int) -> None:
        """Let people buy, and ask, before a night."""
        when = str(FIRST + timedelta(days=night - 1))
        if self.way == "sql":
            sales = [(*row, when) for row in bought(night)]
            self.write("insert into sale values (?, ?, ?)", *sales)
            for kind, user, item in ASKED.get(night, ()):
                today = str(datetime.now(UTC).date())
                self.write("insert into asked values (?, ?, ?, ?)", (kind, user, item, today))
            return
        lines = ["customer,product", *(",".join(row) for row in bought(night))]
        (self.folder / f"in/{when}.csv").write_text("\n".join(lines) + "\n")
        for number, (kind, user, item) in enumerate(ASKED.get(night, ())):
            asked = {"kind": kind, "user": user, **({"items": [item]} if item else {})}
            path = self.folder / f"in/requests/{night}-{number}.json"
            path.write_text(json.dumps(asked))

    def work(self, night: int) -> int:
        with Ledger.open() as ledger:
            settings = config.read(self.file)
            return work(settings, ledger, lambda _: None, FIRST + timedelta(days=night))

    def seen(self) -> dict[str, Any]:
        """All that must not depend on having been killed."""
        fed, listed = load_federation(self.folder / "runs/shop"), Blocklist.of_dataset("shop")
        stored = importing.load_imported("shop")
        lists = pq.read_table(self.folder / "lists/top-k.parquet").to_pydict()
        with Ledger.open() as ledger:
            asked = sorted((one.kind, one.outcome) for one in ledger.requests())
            log = len(ledger._rows("SELECT * FROM receipt"))
        return {
            "rows": sorted(zip(stored.users[stored.user].tolist(),
                               stored.items[stored.item].tolist(), strict=True)),
            "model": str(fed.method.rebuilt(fed)), "lists": lists, "requests": asked, "log": log,
            "away": [n for n in range(PEOPLE) if listed.has_withdrawn(f"c{n}")],
            "litter": sorted(p.name for p in steps.spool().iterdir()),
        }  # fmt: skip


def killed_at(touch: int, call: Callable[[], int]) -> int | None:
    """Call in a child that is killed before its n-th write; return its code, None if killed."""
    child = os.fork()
    if child == 0:
        count = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def act(*args: Any, **more: Any) -> Any:
                nonlocal count
                count += 1
                if count == touch:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **more)

            return act

        code = 99
        try:
            for name in ("replace", "unlink", "rmdir", "mkdir"):
                setattr(os, name, counted(getattr(os, name)))
            Ledger.writing = counted(Ledger.writing)  # type: ignore[method-assign]
            code = call()
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (-signal.SIGKILL, 0, 1, 10, 20), ended
    return None if ended < 0 else ended


def through_killed(shop: Shop, night: int, first: int, further: int) -> int:
    """Give the command of a night again and again, killed later each time; return how often."""
    touch, times = first, 0
    while (code := killed_at(touch, lambda: shop.work(night))) is None:
        touch, times = touch + further, times + 1
    assert code == 0, night
    return times


def undisturbed(folder: Path, way: str, nights: int, monkeypatch: Any) -> list[dict[str, Any]]:
    monkeypatch.setenv(homes.HOME, str(folder / "home"))
    shop, seen = Shop(folder, way), []
    for night in range(nights):
        shop.day(night)
        assert shop.work(night) == 0
        seen.append(shop.seen())
    return seen


@pytest.mark.parametrize(("way", "nights", "further"), [("files", 5, 7), ("sql", 3, 9)])
def test_killed_between_writes_each_night_ends_as_if_it_had_not_been(
    way: str, nights: int, further: int, tmp_path, monkeypatch
) -> None:
    expected = undisturbed(tmp_path / "calm", way, nights, monkeypatch)
    assert [one["log"] for one in expected] == [0, 1, 3, 3, 5][:nights]
    assert expected[-1]["away"] == {5: [1, 2, 5, 11], 3: [1]}[nights]
    assert "p9" not in expected[-1]["lists"]["item"]
    monkeypatch.setenv(homes.HOME, str(tmp_path / "killed/home"))
    shop, kills = Shop(tmp_path / "killed", way), 0
    for night in range(nights):
        shop.day(night)
        kills += through_killed(shop, night, 1 + night, further)
        assert shop.seen() == expected[night], night
    assert kills > 4 * nights


def test_a_step_that_is_done_twice_with_another_result_is_seen(tmp_path, monkeypatch) -> None:
    """The control: if rows are not known again, a night that is killed has them twice."""
    monkeypatch.setattr(importing, "_mark", lambda path: secrets.token_hex(8))
    expected = undisturbed(tmp_path / "calm", "sql", 2, monkeypatch)
    monkeypatch.setenv(homes.HOME, str(tmp_path / "killed/home"))
    shop = Shop(tmp_path / "killed", "sql")
    shop.day(0)
    assert shop.work(0) == 0
    assert shop.seen() == expected[0]
    shop.day(1)
    through_killed(shop, 1, 1, 1)
    assert len(shop.seen()["rows"]) > len(expected[1]["rows"])


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Shop:
    """A shop after its first night."""
    monkeypatch.setenv(homes.HOME, str(tmp_path / "home"))
    shop = Shop(tmp_path / "shop", "files")
    shop.day(0)
    assert shop.work(0) == 0
    return shop


def status() -> dict[str, Any]:
    told = CliRunner().invoke(app, ["night", "--status", "--json"], catch_exceptions=False)
    return json.loads(told.stdout)


def test_a_file_that_is_no_request_is_refused_and_open_until_it_is_mended(shop: Shop) -> None:
    path = shop.folder / "in/requests/anna.json"
    for broken in ('{"leave": 7}', "{", '{"leave": "c1"'):
        path.write_text(broken)
        assert shop.work(1) == 20
    (one,) = _open()
    assert (one.outcome, one.code, one.case, one.records) == ("REFUSED", "form", "anna", {})
    assert 27 < (one.due - datetime.now(UTC)).days < 32
    (shop.folder / "in/requests/bert.json").write_text("{")
    assert shop.work(2) == 20
    assert (status()["open"], status()["refused"]) == (2, 2)
    path.write_text('{"leave": "c1"}')
    assert shop.work(3) == 20
    (shop.folder / "in/requests/bert.json").unlink()
    assert shop.work(4) == 0
    assert not _open()
    assert not path.exists()
    assert status()["nights"]["shop"]["steps"]["append"]["rows"] == 0


def _open() -> list[Any]:
    with Ledger.open() as ledger:
        return ledger.requests(open_only=True)


def test_a_request_of_nobody_is_refused_and_ends_with_20(shop: Shop) -> None:
    (shop.folder / "in/requests/x.json").write_text('{"leave": "zz"}')
    assert shop.work(1) == 20
    assert _open()[0].code == "unknown-person"
    assert status()["nights"]["shop"]["code"] == 20


def test_a_request_that_was_answered_late_ends_with_20(shop: Shop) -> None:
    now = datetime.now(UTC)
    due = {"received": str((now - timedelta(days=5)).date()),
           "due": str((now - timedelta(days=1)).date())}  # fmt: skip
    (shop.folder / "in/requests/x.json").write_text(json.dumps({"leave": "c1", **due}))
    assert shop.work(1) == 20
    assert shop.work(2) == 0


def test_what_is_due_within_a_week_and_waits_ends_with_10(shop: Shop, monkeypatch) -> None:
    """A holder that is away is not there for models of this machine, so the answer is held back."""
    (shop.folder / "in/requests/x.json").write_text('{"leave": "c1"}')
    with monkeypatch.context() as patched:
        patched.setattr("rescind.requests.answer.answer", _waiting)
        assert shop.work(1) == 10
    assert shop.work(2) == 0


def _waiting(ledger: Ledger, name: str, _: Any) -> Any:
    return ledger.end(ledger.request(name), "WAITING")


def test_a_step_that_fails_ends_with_1_and_the_rest_goes_on(shop: Shop) -> None:
    (shop.folder / "in/bad.csv").write_text("customer,product\nc1\n")
    shop.day(1)
    assert shop.work(1) == 1
    steps_of = status()["nights"]["shop"]["steps"]
    assert "bad.csv" in steps_of["append"]["failed"]
    assert (steps_of["append"]["rows"], steps_of["answer"]["ERASED"]) == (PEOPLE, 1)
    assert "model" in steps_of["learn"]
    (shop.folder / "in/bad.csv").unlink()
    assert shop.work(2) == 0


def test_a_day_on_which_the_database_was_away_is_asked_for_later(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(homes.HOME, str(tmp_path / "home"))
    shop = Shop(tmp_path / "shop", "sql")
    for night in range(3):
        shop.day(night)
    assert shop.work(0) == 0
    database = shop.folder / "shop.db"
    database.rename(away := shop.folder / "away.db")
    assert shop.work(1) == 1
    away.rename(database)
    assert shop.work(2) == 0
    stored = importing.load_imported("shop")
    rows = {*zip(stored.users[stored.user].tolist(), stored.items[stored.item].tolist(),
                 strict=True)}  # fmt: skip
    came = {row for night in (1, 2) for row in bought(night) if row[0] not in ("c1", "c2", "c3")}
    assert came <= rows


def test_rows_of_one_person_are_one_request_and_are_taken_once(shop: Shop, tmp_path) -> None:
    table = (["kind", "user", "item", "received", "case"],
             [("erase", "c4", "p2", "", "7"), ("erase", "c4", "p3", "", "7"),
              ("leave", "c6", None, "", "8"), ("lend", "c6", "", "", "")])  # fmt: skip
    with Ledger.open() as ledger:
        added, refused = sources.add_rows(ledger, "shop", "asked.csv", table, "none")
        assert [dict(one.records) for one in added] == [{"c4": ("p2", "p3")}, {"c6": None}]
        assert [one.code for one in refused] == ["form"]
        for one in added:
            answer(ledger, one.id)
        assert sources.add_rows(ledger, "shop", "asked.csv", table, "none") == ([], [])
        assert len(ledger.requests(open_only=True)) == 1


def test_the_same_rows_give_the_same_file_in_whichever_order(tmp_path) -> None:
    rows = [("c2", None), ("c1", 'a "b", c'), ("c1", 3)]
    for name, order in (("a", rows), ("b", rows[::-1])):
        sources.write_csv(tmp_path / name, ["user", "item"], order)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sources.read_csv(tmp_path / "a")[1] == [["c1", "3"], ["c1", 'a "b", c'], ["c2", ""]]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[data]\nname = "s"\n[learn]\nmetod = "Gram"', "learn.metod"),
        ('[data]\nname = "s"\n[lists]\nto = "x"', "lists"),
        ('[data]\nname = "s"\n[export]\nk = "50"', "export.k"),
        ('[data]\nname = "s"\n[export]\nk = 0', "export.k"),
        ('[data]\nname = "s"\n[export]\nk = true', "export.k"),
        ("[learn]", "data.name"),
        ('[data]\nname = "s"\ncolumns = ["a"]', "data.columns"),
        ('[data]\nname = "s"\n[new]\nsql = "sqlite:///x"', "new"),
        ('[data]\nname = "s"\n[new]\nsql = "sqlite:///x"\nquery = "select 1"', ":yesterday"),
        ('[data]\nname = "s"\n[requests]\naudit = "some"', "requests.audit"),
        ('[data]\nname = "s"\n[log]\nwitnesses = ["x"]', "log.witnesses"),
        ('[data]\nname = "s"\n[log]\nwitnesses = [{ url = "x" }]', "log.witnesses"),
        ("[data", "TOML"),
        ('base = "x"\n[data]\nname = "s"', "base"),
    ],
)
def test_each_mistake_in_the_file_is_named(text: str, word: str, tmp_path) -> None:
    (file := tmp_path / "shop.toml").write_text(text)
    _, wrong = config.parsed(file)
    assert len(wrong) == 1
    assert word in wrong[0]
    told = CliRunner().invoke(app, ["night", str(file), "--check"])
    assert told.exit_code == 1


def test_what_the_file_names_is_checked_too(shop: Shop) -> None:
    assert problems(shop.file) == []
    for old, new in (
        ('"in/*.csv"', '"nowhere/*.csv"'),
        ("k = 3", 'k = 3\nsink = "paper"'),
        ('exclude = ["p9"]', 'exclude = "out.csv"'),
        ("[export]", '[learn]\nmethod = "Gramm"\n[export]'),
        ("[export]", '[log]\nwitnesses = [{ url = "http://w", key = "w.pub" }]\n[export]'),
        (FILES, SQL),
    ):
        text = shop.file.read_text()
        shop.file.write_text(text.replace(old, new))
        assert len(problems(shop.file)) in (1, 2), new
        shop.file.write_text(text)


def test_a_sink_of_another_package_gets_the_tables(shop: Shop, monkeypatch) -> None:
    got = {}
    monkeypatch.setitem(sinks.BUILT_IN, "mine", lambda tables, to: got.update(tables))
    text = shop.file.read_text().replace('to = "lists"', 'to = "x"\nsink = "mine"')
    shop.file.write_text(text + 'items = ["p1", "p2"]\n')
    assert shop.work(1) == 0
    assert {*got["top-k"]["item"].tolist()} <= {"p1", "p2"}
    assert {*got} == {"top-k", "neighbours"}


def test_the_home_is_named_before_the_command(shop: Shop, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(homes.HOME, str(tmp_path / "another"))
    words = ["--home", str(tmp_path / "home"), "night", "--status", "--json"]
    assert json.loads(CliRunner().invoke(app, words).stdout)["nights"]["shop"]["code"] == 0
