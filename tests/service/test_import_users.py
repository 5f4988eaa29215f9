"""Users whom an operator has already come with their loans, and claim their accounts by a code."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rescind as rs
from authenticator import Authenticator
from doors import House, opened
from requesting import erase_rows
from rescind.errors import ConfigError, DataError
from rescind.ledger.book import Ledger
from rescind.ledger.failpoints import VARIABLE
from rescind.ledger.options import Options
from rescind.service import demonstration, import_users, recovery, running
from rescind.service.import_users import bring, items_of, users_of
from rescind.service.running import Doorway, Wanted, run

SLOW = pytest.mark.slow  # a process and a service for each place of a kill
ROWS = [(f"c{u}", f"p{(u + k) % 9}") for u in range(7) for k in range(6)]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(recovery, "MEMORY_KIB", 64)
    lines = ["user,item,title", *(f"{u},{i},Title of {i}" for u, i in ROWS)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    rs.import_file(tmp_path / "a.csv", "mine")
    return tmp_path / "codes.csv"


def brought(state: Path, codes: Path, items: Path | None = None) -> list[str]:
    said: list[str] = []
    people = users_of("mine", codes, said.append, items)
    ledger = Ledger.open(state, catalogue=people.catalogue)
    try:
        bring(ledger, "mine", people, codes, said.append)
    finally:
        ledger.close()
    return said


def code_of(codes: Path, user: str) -> str:
    with open(codes, newline="", encoding="utf-8") as file:
        return {row["user"]: row["code"] for row in csv.DictReader(file)}[user]


def claim(house: House, code: str) -> tuple[int, object]:
    browser = house.caller()
    return browser.post("/v1/account/recover", {"code": code}, None).status_code, browser


def followed(
    script: str, base: str, answer: str, folder: Path, refused: str = "nothing"
) -> subprocess.CompletedProcess[str]:
    """Run a script of the page in which curl says this. refused: of what the service has none"""
    says = '[[ $* != */requests ]] || printf %s "$ANSWER"'
    curl = f"curl() {{ {says}; [[ $* != */{refused} ]] || return 22; }}\n"
    env = os.environ | {"ANSWER": answer, "BASE": base, "CODE": "none"}
    words = ["bash", "-c", curl + script]
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)


def test_each_user_finds_their_loans_and_makes_a_passkey(tmp_path: Path, mine: Path) -> None:
    assert "7 users lend 42 records" in brought(tmp_path / "state", mine)[-1]
    assert os.stat(mine).st_mode & 0o777 == 0o600
    assert b"\r" not in mine.read_bytes(), "a loop in a shell would send it with the code"
    with opened(tmp_path / "state", items=0) as house:
        status, browser = claim(house, code_of(mine, "c3"))
        assert status == 200
        lent = {one["id"] for one in browser.get("/v1/me/loans").json()["items"]}
        assert lent == {item for user, item in ROWS if user == "c3"}
        assert browser.get("/v1/me/recommendations").json()["kind"] == "release"
        device = Authenticator()
        assert browser.register(device).status_code == 201
        assert house.caller().sign_in(device).status_code == 200, "from now on with the passkey"
        assert claim(house, code_of(mine, "c3"))[0] == 404, "a code works once"
        assert claim(house, code_of(mine, "c4"))[0] == 200, "control: another one is good"


def test_somebody_who_never_comes_is_taken_out_by_their_code(tmp_path: Path, mine: Path) -> None:
    said = brought(tmp_path / "state", mine)[-1]
    assert "keep the file, sealed, until all are used" in said
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")
    script = re.findall(r'```bash title="leave.sh"\n(.*?)```', page, re.S)[0]
    lines = [line for line in script.splitlines() if line.startswith("curl")]
    with opened(tmp_path / "state", items=0) as house:
        browser = house.caller()
        for line, sent in zip(
            lines, ({"code": code_of(mine, "c3")}, {"kind": "leave"}), strict=True
        ):
            assert json.dumps(sent).split(":")[0] in line.replace("\\", "")
            path = re.findall(r'"\$BASE(/v1/[^"]+)"(?: \||$)', line)[0]
            answer = browser.post(path, sent)
            assert answer.status_code in (200, 202)
        base, left = "https://lend.example.org", answer.json()
        said = followed(script, base, answer.text, tmp_path)
        (file,) = tmp_path.glob("left-*.json")
        assert file.name in said.stdout, "it says what to give"
        assert json.loads(file.read_text()) == {**left, "link": base + left["link"]}, "to pass on"
        assert file.stat().st_mode & 0o777 == 0o600
        assert len(left["acknowledgement"]["items"]) == 6, "with what shows what it is about"
        assert said.returncode == 0
        for what, shown in (("recover", ""), ("requests", '{"code":"busy"}')):
            refused = followed(script, base, '{"code":"busy"}', tmp_path, refused=what)
            assert (refused.returncode, refused.stdout, refused.stderr) == (22, "", shown)
            assert [*tmp_path.glob("left-*")] == [file], "nothing that looks like an answer"
        assert house.ledger.reading.overview()["people"] == 6


def test_the_service_keeps_no_id_of_theirs(tmp_path: Path, mine: Path) -> None:
    brought(tmp_path / "state", mine)
    kept = b"".join(p.read_bytes() for p in (tmp_path / "state").rglob("*") if p.is_file())
    assert code_of(mine, "c3").encode() not in kept
    assert b'"c3"' not in kept
    assert b'"p3"' in kept, "control: items are public, in the catalogue"


def test_an_import_begins_a_new_service(tmp_path: Path, mine: Path) -> None:
    brought(tmp_path / "state", mine)
    again = Wanted(users="mine", codes=mine)
    with pytest.raises(ConfigError, match=r"exists already.*Name a new file"):
        run(tmp_path / "other", Doorway(port=0), again, Options(), say=lambda text: None)
    assert not (tmp_path / "other").exists(), "refused before anything is made"
    Ledger.open(tmp_path / "nobody", catalogue=items_of(table_of_items(tmp_path, 12))).close()
    with pytest.raises(ConfigError, match=r"exists already.*Name a new file"):
        run(tmp_path / "nobody", Doorway(port=0), again, Options(), say=lambda text: None)
    with pytest.raises(ConfigError, match=r"has its data already \(7 people\).*Leave --import"):
        brought(tmp_path / "state", mine.with_name("more.csv"))
    assert not mine.with_name("more.csv").exists()
    with pytest.raises(ConfigError, match="needs --codes"):
        users_of("mine", None, print)


def test_the_command_of_a_complete_import_starts_the_service(tmp_path: Path, mine: Path) -> None:
    state, kept = tmp_path / "state", tmp_path / "kept.csv"
    first = start(state, users="mine", codes=mine)
    assert "complete already" not in first, "control"
    codes = mine.read_bytes()
    with opened(state, items=0) as house:  # codes are used and loans change meanwhile
        _, browser = claim(house, code_of(mine, "c3"))
        assert browser.register(Authenticator()).status_code == 201
        assert browser.post("/v1/me/loans", {"items": ["p0"]}).status_code < 300
    again = start(state, users="mine", codes=mine)
    assert "the import of mine is complete already" in again
    assert "of 7 people opened" in again
    assert "it serves" in again
    assert mine.read_bytes() == codes
    mine.rename(kept)
    assert "complete already" in start(state, users="mine", codes=kept), "it may lie elsewhere"


@pytest.mark.parametrize("changed", ["the codes", "no codes", "rows", "users", "the name"])
def test_another_command_than_that_of_a_complete_import_is_refused(
    tmp_path: Path, mine: Path, changed: str
) -> None:
    state, name, table = tmp_path / "state", "mine", tmp_path / "a.csv"
    brought(state, mine)
    if changed == "the codes":
        mine.write_text(mine.read_text().replace(code_of(mine, "c3"), recovery.new_text()))
    elif changed == "no codes":
        mine.write_text("nothing")
    elif changed == "rows":
        table.write_text(table.read_text() + "c0,p7,Title of p7\n")
        rs.import_file(table, "mine", replace=True)
    elif changed == "users":
        table.write_text(table.read_text().replace("c6,", "c7,"))
        rs.import_file(table, "mine", replace=True)
    else:
        rs.import_file(table, name := "other")
    told = r"has its data already \(7 people\).*Leave --import and --codes out"
    before = mine.read_bytes()
    with pytest.raises(ConfigError, match=told):
        start(state, users=name, codes=mine)
    assert mine.read_bytes() == before
    assert "it serves" in start(state), "control: what the refusal says to give"


def test_an_id_that_is_listed_twice_is_named_with_its_lines(tmp_path: Path) -> None:
    films = tmp_path / "films.csv"
    films.write_text('id,title\n7,"Up,\nagain"\n8,Heat\n7,Ran\n')
    told = r"films\.csv: the id '7' is in line \d+ and again in line 5\."
    with pytest.raises(DataError, match=told):
        items_of(films)
    films.write_text("id,title\n7,Up\n8,Heat\n7,Ran\n")
    with pytest.raises(DataError, match="'7' is in line 2 and again in line 4"):
        items_of(films)
    films.write_text("id,title\n7,Up\n8,Heat\n")
    assert items_of(films).ids == ("7", "8"), "control"


def test_users_come_into_a_service_that_has_items_and_nobody_yet(
    tmp_path: Path, mine: Path
) -> None:
    wide = items_of(table_of_items(tmp_path, 12))
    Ledger.open(tmp_path / "state", catalogue=wide).close()
    ledger = Ledger.open(tmp_path / "state")
    bring(ledger, "mine", users_of("mine", mine, print), mine, print)
    ledger.close()
    with opened(tmp_path / "state", items=0) as house:
        _, browser = claim(house, code_of(mine, "c3"))
        lent = {one["id"] for one in browser.get("/v1/me/loans").json()["items"]}
        assert lent == {item for user, item in ROWS if user == "c3"}


KILLED = """
import os, signal, sys
from pathlib import Path
from rescind.ledger.book import Ledger
from rescind.service import import_users, recovery
import_users.TOGETHER, recovery.MEMORY_KIB = 2, 64
state, codes = map(Path, sys.argv[1:3])
if sys.argv[3:]:
    name, nth = sys.argv[3], int(sys.argv[4])
    called, real = [], getattr(import_users, name)
    def counting(*given, **named):
        called.append(name)
        return os.kill(os.getpid(), signal.SIGKILL) if len(called) == nth else real(*given, **named)
    setattr(import_users, name, counting)
users = import_users.users_of("mine", codes, print)
import_users.bring(Ledger.open(state, catalogue=users.catalogue), "mine", users, codes, print)
"""


def killed(state: Path, codes: Path, where: str) -> None:
    """Bring the users in, in a process that ends by SIGKILL at a place.

    where: a failpoint, or `call` and the name of something that is called for the n-th time
    """
    called = where.split()[1:] if where.startswith("call ") else []
    env = os.environ | ({} if called else {VARIABLE: where})
    command = [sys.executable, "-c", KILLED, str(state), str(codes), *called]
    ended = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def start(state: Path, **wanted: object) -> str:
    """Start and end a service; return what it said."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_serve", lambda *_: said.append("it serves"))
        run(state, Doorway(port=0), Wanted(**wanted), Options(), say=said.append)
    return "\n".join(said)


@pytest.mark.parametrize(
    ("where", "noted", "written"),
    [
        pytest.param("call Keep 1", False, False, marks=SLOW),  # nothing is noted yet
        ("call _write_codes 1", True, False),
        pytest.param("call BringIn 1", True, True, marks=SLOW),  # nobody is in yet
        pytest.param("call BringIn 4", True, True, marks=SLOW),
        pytest.param("inside commit:5", True, True, marks=SLOW),
        pytest.param("release committed", True, True, marks=SLOW),
        ("call Keep 2", True, True),  # all but the note that it is complete
    ],
)
def test_an_import_that_was_killed_goes_on(
    tmp_path: Path, mine: Path, where: str, noted: bool, written: bool
) -> None:
    state = tmp_path / "state"
    killed(state, mine, where)
    assert mine.exists() == written
    before = mine.read_bytes() if written else b""
    if noted:
        with pytest.raises(ConfigError, match=rf"of its 7 users .*--import mine --codes {mine}\."):
            start(state)
    told = start(state, users="mine", codes=mine)
    assert "7 users lend 42 records" in told
    assert "it serves" in told
    assert mine.read_bytes().startswith(before), "codes that may be sent already"
    assert "42 loans of 7 people opened" in start(state), "a later start"
    with opened(state, items=0) as house:
        assert house.ledger.releases.current.number == 1
        for user in {user for user, _ in ROWS}:
            status, browser = claim(house, code_of(mine, user))
            assert status == 200
            lent = {one["id"] for one in browser.get("/v1/me/loans").json()["items"]}
            assert lent == {item for one, item in ROWS if one == user}


def test_an_import_goes_on_with_its_own_codes_and_data_only(tmp_path: Path, mine: Path) -> None:
    state = tmp_path / "state"
    killed(state, mine, "call BringIn 4")
    with pytest.raises(ConfigError, match=r"the file has the codes of 0 of them\. Give it as"):
        start(state, users="mine", codes=tmp_path / "more.csv")
    kept = mine.read_text()
    mine.write_text(kept.replace("c6", "c7"))
    with pytest.raises(ConfigError, match="codes of other users than the data"):
        start(state, users="mine", codes=mine)
    mine.write_text("nothing")
    with pytest.raises(DataError, match="is not a file of codes"):
        start(state, users="mine", codes=mine)
    mine.write_text(kept)
    erase_rows("mine", "c0", ["p0"])
    with pytest.raises(ConfigError, match=r"the data changed since.*To begin anew"):
        start(state, users="mine", codes=mine)
    assert mine.read_text() == kept
    assert not (tmp_path / "more.csv").exists()


def test_the_instant_form_needs_no_release(tmp_path: Path, mine: Path) -> None:
    people = users_of("mine", mine, print)
    options = Options(instant=True)
    ledger = Ledger.open(tmp_path / "state", catalogue=people.catalogue, options=options)
    bring(ledger, "mine", people, mine, print)
    import_users.check_complete(ledger)
    ledger.close()
    people = demonstration.people_of("synthetic", print)
    ledger = Ledger.open(tmp_path / "demo", catalogue=people.catalogue, options=options)
    demonstration.fill(ledger, people, print)
    assert ledger.reading.overview()["people"] == len(people.names)
    ledger.close()


def table_of_items(folder: Path, count: int) -> Path:
    path = folder / "items.csv"  # another order than that of the rows, and a name as imports take
    lines = [f"p{n},Film {n}" for n in reversed(range(count))]
    path.write_text("\n".join(["item_id,title", *lines]) + "\n")
    return path


def test_items_that_nobody_had_are_in_the_catalogue_if_a_table_names_them(
    tmp_path: Path, mine: Path
) -> None:
    said = brought(tmp_path / "state", mine, table_of_items(tmp_path, 12))
    assert any("the catalogue is the 12 items of" in line for line in said)
    with opened(tmp_path / "state", items=0) as house:
        _, browser = claim(house, code_of(mine, "c3"))
        lent = {one["id"] for one in browser.get("/v1/me/loans").json()["items"]}
        assert lent == {item for user, item in ROWS if user == "c3"}
        catalogue = house.ledger.catalogue
        assert len(catalogue) == 12
        assert catalogue.titles[catalogue.index_of("p11")] == "Film 11", "nobody had it"
        added = browser.post("/v1/me/loans", {"items": ["p11"]})
        assert added.status_code < 300
        lent = {one["id"] for one in browser.get("/v1/me/loans").json()["items"]}
        assert "p11" in lent


def test_a_table_that_lacks_items_of_users_is_refused(tmp_path: Path, mine: Path) -> None:
    with pytest.raises(DataError, match=r"lacks 2 of the 9 items .*such as 'p[78]'"):
        users_of("mine", mine, print, table_of_items(tmp_path, 7))
    assert len(users_of("mine", mine, print, table_of_items(tmp_path, 9)).catalogue) == 9, "control"


def test_what_stands_for_erased_ids_does_not_come(tmp_path: Path, mine: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(path.read_text() + "gone,q1,Title of q1\ngone,q2,Title of q2\ngone,p0,\n")
    rs.import_file(path, "mine", replace=True)
    assert len(users_of("mine", mine, print).catalogue) == 11, "control"
    erase_rows("mine", "gone")
    assert "(removed 9)" in rs.load("mine").items, "control: the places are there"
    said: list[str] = []
    alone = users_of("mine", mine, said.append)
    assert said[0].startswith("mine: 7 people, 9 items")
    assert {*alone.catalogue.ids} == {item for _, item in ROWS}
    assert {*alone.names} == {user for user, _ in ROWS}
    brought(tmp_path / "state", mine, table_of_items(tmp_path, 12))  # it lacks q1 and q2
    with opened(tmp_path / "state", items=0) as house:
        _, browser = claim(house, code_of(mine, "c3"))
        lent = {one["id"] for one in browser.get("/v1/me/loans").json()["items"]}
        assert lent == {item for user, item in ROWS if user == "c3"}


def test_a_mirror_without_a_folder_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    state, mirror = tmp_path / "state", tmp_path / "away" / "keys.bin"
    wanted = Wanted(demo="synthetic")
    with pytest.raises(ConfigError, match=f"there is no folder {mirror.parent}"):
        run(state, Doorway(port=0), wanted, Options(), keys_mirror=mirror)
    assert not state.exists()
    with pytest.raises(ConfigError, match="leave --import and --items out"):
        run(state, Doorway(port=0), replace(wanted, items=tmp_path / "items.csv"), Options())
