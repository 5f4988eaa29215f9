"""`rescind request` and `rescind forget`: exit codes, and what they print as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from requesting import Shop, write_rows
from rescind.cli import app
from rescind.core.home import home, ledger_file
from rescind.errors import RescindError
from rescind.home import Ledger

FACTS = {
    "id", "dataset", "kind", "received", "due", "case", "outcome", "code", "reason", "answered",
    "late", "receipt",
}  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop.opened(tmp_path / "shop")


def rescind(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def good(*words: object) -> str:
    done = rescind(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def code_of(*words: object) -> str:
    """Return the code of an error, which ends with exit code 2."""
    done = rescind(*words)
    assert isinstance(done.exception, RescindError), (done.output, done.exception)
    return done.exception.code


def listed(*words: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(good("request", "list", "--json", *words))
    return found


def added(*words: object) -> str:
    """Add one request; return its id."""
    return good("request", "add", *words).split()[0]


def test_a_request_is_added_listed_answered_and_shown(shop: Shop) -> None:
    name = added("--user", "c3", "--case", "DSR-117")
    (waiting,) = listed("--open")
    assert {*waiting} == FACTS
    assert (waiting["id"], waiting["kind"], waiting["outcome"]) == (name, "leave", "open")
    assert (waiting["dataset"], waiting["case"], waiting["late"]) == ("shop", "DSR-117", False)
    assert "c3" not in json.dumps(waiting)
    (done,) = json.loads(good("request", "answer", "--json"))
    assert (done["id"], done["outcome"], done["code"]) == (name, "ERASED", "")
    assert done["receipt"].startswith("sha256:")
    assert listed("--open") == []
    assert listed() == [done]
    shown = json.loads(good("request", "show", name, "--json"))
    assert {n: shown[n] for n in FACTS} == done
    assert "logged" in shown["steps"]
    assert (home() / "answers" / f"{name}.zip").is_file()
    assert shop.learnt("c3") == ()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--user", "c3"), "leave"),
        (("--user", "c3", "--item", "p0"), "erase"),
        (("--user", "c3", "--kind", "erase"), "erase"),
        (("--user", "c3", "--kind", "unshare"), "unshare"),
    ],
)
def test_a_kind_follows_from_what_is_named(shop: Shop, words: tuple[str, ...], kind: str) -> None:
    added(*words)
    assert [one["kind"] for one in listed()] == [kind]


def test_a_table_is_a_request_for_each_person_or_one_for_all(shop: Shop) -> None:
    write_rows(Path("asked.csv"), [("c3", "p0"), ("c4", "p2"), ("c3", "p1")])
    assert len(good("request", "add", "--file", "asked.csv").splitlines()) == 2
    assert len(good("request", "add", "--file", "asked.csv", "--together").splitlines()) == 1
    assert len(listed()) == 3


def test_a_folder_of_requests_is_taken_in_and_what_is_wrong_stays(shop: Shop) -> None:
    Path("inbox").mkdir()
    Path("inbox/a.json").write_text('{"leave": "c3"}')
    Path("inbox/b.json").write_text('{"erase": {"user": "c4", "items": ["p2"]}, "received": "2'
                                    '026-01-31", "due": "2026-04-30"}')  # fmt: skip
    Path("inbox/c.json").write_text('{"erase": {"user": "c4", "item": ["p2"]}}')
    done = rescind("request", "add", "--folder", "inbox")
    assert done.exit_code == 20
    assert [path.name for path in Path("inbox").iterdir()] == ["c.json"]
    told = sorted((one["case"], one["outcome"]) for one in listed())
    assert told == [("a", "open"), ("b", "open"), ("c", "REFUSED")], "somebody may have sent it"
    Path("inbox/c.json").unlink()
    assert rescind("request", "add", "--folder", "inbox").exit_code == 0
    assert [one["outcome"] for one in listed()] == ["open", "open"]
    assert rescind("request", "add", "--folder", "nowhere").exit_code != 0


def test_the_most_urgent_is_answered_first_and_only_as_many_as_asked(shop: Shop) -> None:
    later = added("--user", "c3")
    urgent = added("--user", "c4", "--received", f"{datetime.now(UTC) - timedelta(9):%Y-%m-%d}")
    assert [one["id"] for one in listed()] == [urgent, later]
    done = rescind("request", "answer", "--most", "1", "--json")
    assert done.exit_code == 10, "one still waits"
    assert [one["id"] for one in json.loads(done.stdout)] == [urgent]
    assert [one["id"] for one in listed("--open")] == [later]
    assert rescind("request", "answer", later).exit_code == 0


def test_a_refusal_stays_open_until_it_is_withdrawn_and_hinders_nobody(shop: Shop) -> None:
    wrong, right = added("--user", "nobody"), added("--user", "c3")
    done = rescind("request", "answer", "--json")
    assert done.exit_code == 20
    told = {one["id"]: (one["outcome"], one["code"]) for one in json.loads(done.stdout)}
    assert told == {wrong: ("REFUSED", "unknown-person"), right: ("ERASED", "")}
    assert [one["id"] for one in listed("--open")] == [wrong]
    good("request", "withdraw", wrong)
    assert listed("--open") == []
    assert code_of("request", "withdraw", right) == "begun"
    assert code_of("request", "show", wrong) == "unknown-request"


def test_a_refusal_is_answered_once_its_reason_is_gone(shop: Shop) -> None:
    name = added("--user", "n1")
    assert rescind("request", "answer").exit_code == 20
    shop.arrive("n1", ("p1",))
    (done,) = json.loads(good("request", "answer", "--json"))
    assert (done["id"], done["outcome"]) == (name, "ROWS_ONLY")


def test_more_time_is_given_within_three_months_and_with_a_reason(shop: Shop) -> None:
    name = added("--user", "c3", "--received", f"{datetime.now(UTC) - timedelta(5):%Y-%m-%d}")
    (before,) = listed()
    good("request", "extend", name, "--days", "30", "--reason", "many requests")
    (after,) = listed()
    days = datetime.fromisoformat(after["due"]) - datetime.fromisoformat(before["due"])
    assert (days.days, after["reason"]) == (30, "many requests")
    assert code_of("request", "extend", name, "--days", "90", "--reason", "again") == "date"
    good("request", "answer")
    assert code_of("request", "extend", name, "--days", "1", "--reason", "late") == "answered"


def test_a_late_request_is_told_by_its_exit_code_and_marked(shop: Shop) -> None:
    added("--user", "c3", "--received", f"{datetime.now(UTC) - timedelta(50):%Y-%m-%d}")
    added("--user", "c4")
    (late, _) = listed()
    assert late["late"]
    assert rescind("request", "answer", "--most", "1").exit_code == 10, "the late one is answered"
    added("--user", "c5", "--received", f"{datetime.now(UTC) - timedelta(50):%Y-%m-%d}")
    added("--user", "c6", "--received", f"{datetime.now(UTC) - timedelta(49):%Y-%m-%d}")
    assert rescind("request", "answer", "--most", "1").exit_code == 20, "one is late and waits"
    (answered,) = [one for one in listed() if one["late"] and one["outcome"] == "ERASED"][:1]
    assert answered["late"], "answered after its day"


def test_who_left_is_let_in_again(shop: Shop) -> None:
    assert code_of("request", "readmit", "--user", "c3") == "has-not-left"
    good("forget", "--user", "c3")
    good("request", "readmit", "--user", "c3")
    shop.arrive("c3", ("p8",))
    assert shop.stored("c3") == ("p8",)
    assert code_of("request", "readmit", "--user", "zz") == "unknown-person"


def test_forget_adds_and_answers(shop: Shop) -> None:
    (done,) = json.loads(good("forget", "--user", "c3", "--json"))
    assert {*done} == FACTS
    assert (done["outcome"], done["dataset"]) == ("ERASED", "shop")
    (again,) = json.loads(good("forget", "--user", "c3", "--json"))
    assert (again["outcome"], again["receipt"]) == ("REPEATED", done["receipt"])


def test_forget_of_a_run_on_imported_data_answers_in_all_of_them(shop: Shop) -> None:
    shop.learn("second")
    good("forget", shop.run(), "--user", "c3")
    assert [shop.learnt("c3", name) for name in ("run", "second")] == [(), ()]
    assert shop.stored("c3") == ()


def test_a_refused_command_leaves_no_request(shop: Shop) -> None:
    assert code_of("forget", "--user", "nobody") == "unknown-person"
    assert code_of("forget", "--user", "c3", "--item", "p8") == "not-held"
    assert listed() == []
    done = rescind("forget", "--user", "nobody", "--user", "c3")
    assert done.exception is not None
    assert [one["outcome"] for one in listed()] == ["ERASED"], "the other one is answered"


def test_a_word_beside_a_file_is_not_overlooked(shop: Shop) -> None:
    write_rows(Path("asked.csv"), [("c3", "p0")])
    for words in (("--user", "c4"), ("--item", "p1")):
        assert rescind("request", "add", "--file", "asked.csv", *words).exception is not None
    assert rescind("request", "list", "--json").stdout in ("", "[]\n")


def test_data_must_be_named_where_there_are_several(shop: Shop) -> None:
    write_rows(Path("b.csv"), [(f"c{n}", f"p{k}") for n in range(5) for k in range(4)])
    good("data", "import", "b.csv", "--name", "other")
    assert rescind("forget", "--user", "c3").exception is not None
    assert rescind("forget", "--user", "c3", "--data", "nothing").exception is not None
    good("forget", "--user", "c3", "--data", "shop")


def test_what_only_looks_makes_no_ledger() -> None:
    for words in (("list",), ("show", "x"), ("withdraw", "x")):
        assert isinstance(rescind("request", *words).exception, RescindError)
    assert not ledger_file().exists()


def test_a_wrong_run_makes_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "home"))
    assert isinstance(rescind("forget", tmp_path / "none", "--user", "7").exception, RescindError)
    assert not home().exists()


def test_a_begun_answer_cannot_be_taken_back(shop: Shop) -> None:
    name = added("--user", "c3")
    with Ledger.open() as ledger:
        ledger.done(ledger.request(name), "asked", {"outcome": "ERASED"})
    assert code_of("request", "withdraw", name) == "begun"
