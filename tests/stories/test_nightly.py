"""docs/operate.md as it stands: the commands of the page, night after night."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rescind.cli import main
from rescind.data.importing import load_imported
from rescind.errors import DataError
from rescind.experiments import learning_run
from rescind.forgetting import succession
from rescind.privacy import keys

PAGE = Path(__file__).parents[2] / "docs" / "operate.md"
NIGHTS = 2


def script(name: str) -> list[str]:
    """Return the lines of a script on the page."""
    found = re.search(rf'```bash title="{name}"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S)
    assert found, name
    return re.sub(r"\\\n +", "", found[1]).splitlines()


(REQUESTS,) = (
    line.partition(" || ")[0] for line in script("nightly.sh") if line.startswith("rescind req")
)
MOMENTS = {
    "it has learnt": (learning_run, "save_federation"),
    "the model is saved": (learning_run, "finish_learning"),
    "the model counts": (succession, "_put_in_place"),
}
"""While a night learns: what would come next."""


class Killed(BaseException):
    """Ends a command as a kill does: nothing after it is run."""


def killed(*_: object) -> None:
    raise Killed


def table(path: Path, rows: list[tuple[int, int, int]]) -> None:
    lines = [f"c{user},p{item},{when}" for user, item, when in rows]
    path.write_text("\n".join(["customer,product,when", *lines]) + "\n")


class Shop:
    """A folder in which the commands of the page are given."""

    def __init__(self, folder: Path, monkeypatch, capsys) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.setenv("RESCIND_CACHE", str(folder / "cache"))
        monkeypatch.chdir(folder)
        (folder / "in" / "requests").mkdir(parents=True)

    def rescind(self, line: str) -> tuple[int, str]:
        """Give one command; return its exit code and what it said."""
        self.monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stop:
            main()
        said = self.capsys.readouterr()
        return int(stop.value.code or 0), said.out + said.err

    def follow(self, name: str) -> dict[str, int]:
        """Carry out a script of the page; return the exit code of each of its commands."""
        codes = {}
        for line in script(name):
            if line.startswith(("rm ", "for ", "mkdir -p receipts")):
                subprocess.run(["bash", "-e", "-c", line], cwd=self.folder, check=True)
                continue
            command = line
            if line.startswith("[ ! -e "):
                condition, _, command = line.partition(" || ")
                if not (self.folder / condition.split()[3]).exists():
                    continue
            if line == '[ -n "$learnt" ] || exit $wrong' and codes["run"]:
                return codes
            if command.startswith("rescind "):
                asked = re.split(r" && | \|\| ", command)[0]
                code, said = self.rescind(asked)
                assert " || " in command or not code, said
                codes[asked.split()[1]] = code
        return codes

    def killed_in_the_night(self, moment: str) -> None:
        """Carry out the nightly script up to a moment of its learning."""
        with self.monkeypatch.context() as patch:
            patch.setattr(*MOMENTS[moment], killed)
            with pytest.raises(Killed):
                self.follow("nightly.sh")

    def ask(self, name: str, text: str) -> None:
        (self.folder / "in" / "requests" / f"{name}.json").write_text(text)

    def about(self, name: str) -> dict[str, object]:
        """Return what is noted of an answer."""
        place = self.folder / "in" / "requests" / "answered" / name / "about.json"
        told: dict[str, object] = json.loads(place.read_text())
        return told

    def lists(self) -> set[tuple[str, str]]:
        rows = pq.read_table(self.folder / "lists" / "top-k.parquet").to_pylist()
        return {(row["user"], row["item"]) for row in rows}


@pytest.fixture
def shop(tmp_path, monkeypatch, capsys) -> Shop:
    made = Shop(tmp_path, monkeypatch, capsys)
    first = [(u, (3 * u + k) % 10, 100 + k) for u in range(12) for k in range(5)]
    table(tmp_path / "in" / "first.csv", first)
    made.follow("first.sh")
    return made


def test_the_commands_of_the_page_run_for_several_nights(shop: Shop) -> None:
    answered = shop.folder / "in" / "requests" / "answered"
    for night in range(NIGHTS):
        new = [(u, 20 + night, 200 + night) for u in range(4, 10)]
        table(shop.folder / "in" / "today.csv", new)
        shop.ask(f"night-{night}", json.dumps({"withdraw": f"c{night}"}))
        assert shop.follow("nightly.sh")["requests"] == 0
        assert any(item == f"p{20 + night}" for _, item in shop.lists()), "new rows reach the lists"
        assert not any(user == f"c{night}" for user, _ in shop.lists())
        assert (answered / f"night-{night}" / "receipt-mine.json").is_file()
        assert f"c{night}" not in load_imported("mine").users
        assert not list((shop.folder / "runs").glob("mine-forgot-*"))
    code, said = shop.rescind(f"rescind verify {answered}")
    assert code == 0, said
    assert said.count("it follows") == NIGHTS - 1, "learning again does not break the chain"
    told = (shop.folder / "rescind.prom").read_text()
    assert f"rescind_requests_answered_total {NIGHTS}\n" in told


def test_each_receipt_of_the_night_gets_a_new_proof_where_a_witness_signs(shop: Shop) -> None:
    def given() -> list[str]:
        return subprocess.run(
            ["bash", "-e", "-c", told], cwd=shop.folder, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    off = [line.removeprefix("# ") for line in script("nightly.sh") if line.startswith("# ")][1:]
    told = "\n".join(["rescind() { echo rescind $*; }", *off])
    assert len(given()) == 1, "nothing was answered yet: no proof is asked for"
    shop.ask("anna", json.dumps({"withdraw": "c1"}))
    shop.follow("nightly.sh")
    first, *proofs = given()
    assert first == "rescind log cosign URL --key witness-0.pub"
    place = "in/requests/answered/anna"
    assert sorted(proofs) == [f"rescind log prove {place}/receipt{of}.json" for of in ("-mine", "")]
    for line in proofs:
        code, said = shop.rescind(line)
        assert (code, "Written: in/requests/answered/anna/receipt" in said) == (0, True), said


def test_what_was_answered_by_hand_outlives_the_night(shop: Shop) -> None:
    code, said = shop.rescind(
        "rescind forget runs/mine --withdraw c1 --audits none --request request.json"
    )
    assert code == 0, said
    by_hand = shop.folder / "runs" / "mine-forgot-1"
    kept = {name: (by_hand / name).read_bytes() for name in ("receipt.json", "receipt.key")}
    shop.ask("anna", '{"withdraw": "c2"}')
    for _ in range(2):
        assert shop.follow("nightly.sh")["requests"] == 0
        assert {name: (by_hand / name).read_bytes() for name in kept} == kept
        assert not (by_hand / "model").exists()
        assert {one.name for one in (shop.folder / "runs").iterdir()} == {"mine", by_hand.name}
        assert not {"c1", "c2"} & {user for user, _ in shop.lists()}
    receipts = shop.folder / "receipts"
    assert kept["receipt.json"] not in [one.read_bytes() for one in receipts.iterdir()], "control"
    for name in ("receipt.key", "receipt.html"):  # as the officer's page says, when it was sent
        (by_hand / name).unlink()
    shop.follow("nightly.sh")
    assert not by_hand.exists()
    stays = [one for one in receipts.iterdir() if one.read_bytes() == kept["receipt.json"]]
    assert len(stays) == 1
    code, said = shop.rescind(f"rescind verify {stays[0]}")
    assert code == 0, said


def test_every_receipt_of_the_nights_stays_without_ids(shop: Shop) -> None:
    """The names of runs come again after each night: no receipt is written over."""
    answered = shop.folder / "in" / "requests" / "answered"
    for night in range(NIGHTS):
        shop.ask(f"night-{night}", json.dumps({"withdraw": f"c{night}"}))
        shop.follow("nightly.sh")
    kept = list((shop.folder / "receipts").iterdir())
    given = {(answered / f"night-{night}" / "receipt.json").read_bytes() for night in range(NIGHTS)}
    assert len(kept) == len(given) == NIGHTS
    assert {one.read_bytes() for one in kept} == given
    assert all(one.suffix == ".json" for one in kept), "no key, no page with exact numbers"


def test_if_learning_fails_who_left_is_off_the_lists_all_the_same(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.follow("nightly.sh")
    assert any(user == "c1" for user, _ in shop.lists()), "control"
    shop.ask("anna", '{"withdraw": "c1"}')

    def full(*_: object) -> None:
        raise DataError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(learning_run, "save_federation", full)
        assert shop.follow("nightly.sh") == {"requests": 0, "run": 2, "export": 0}
    assert {user for user, _ in shop.lists()} == {f"c{user}" for user in range(12)} - {"c1"}
    shop.ask("ben", '{"withdraw": "c2"}')
    assert shop.follow("nightly.sh") == {"requests": 0, "run": 0, "export": 0}
    assert {user for user, _ in shop.lists()} == {f"c{user}" for user in range(12)} - {"c1", "c2"}
    assert [one.name for one in (shop.folder / "runs").iterdir()] == ["mine"]


NEW = ({"withdraw": "c40"}, {"erase": {"user": "c40", "items": ["p2"]}})


@pytest.mark.parametrize("asked", NEW)
def test_who_is_new_and_asks_at_once_is_never_learnt(shop: Shop, asked: dict[str, object]) -> None:
    table(shop.folder / "in" / "today.csv", [(40, 2, 300), (4, 3, 300)])
    shop.ask("new", json.dumps(asked))
    assert shop.follow("nightly.sh")["requests"] == 0
    answered = shop.folder / "in" / "requests" / "answered" / "new"
    told = {path.name for path in answered.iterdir()}
    assert {"receipt-mine.json", "receipt-mine.key", "receipt-mine.request.json"} <= told
    assert "receipt.json" not in told, "the run had nothing to forget"
    assert str(shop.about("new")["rows"]).startswith("the run has nothing of theirs; deleted")
    code, said = shop.rescind(f"rescind verify {answered}")
    assert code == 0, said
    assert "c40" not in load_imported("mine").users
    assert "c40" not in {user for user, _ in shop.lists()}
    shop.ask("again", json.dumps(asked))
    _, said = shop.rescind(REQUESTS)
    assert "answered before, as new: send" in said
    table(shop.folder / "in" / "today.csv", [(40, 3, 301), (4, 4, 301)])
    shop.follow("nightly.sh")
    stays = "withdraw" in asked
    assert ("c40" in load_imported("mine").users) != stays, "who withdrew, in a later file"


def test_of_a_stranger_nothing_is_answered(shop: Shop) -> None:
    """The control of the test above: neither the run nor the data has the user, or not the item."""
    shop.ask("stranger", '{"withdraw": "c50"}')
    table(shop.folder / "in" / "today.csv", [(40, 2, 300)])
    shop.ask("item", '{"erase": {"user": "c40", "items": ["p2", "p3"]}}')
    assert shop.follow("nightly.sh")["requests"] == 1
    assert not (shop.folder / "in" / "requests" / "answered").exists()


def test_a_refusal_does_not_stop_the_night_and_is_told(shop: Shop) -> None:
    table(shop.folder / "in" / "today.csv", [(u, 20, 300) for u in range(6)])
    shop.ask("broken", '{"withdraw":')
    assert shop.follow("nightly.sh") == {"requests": 1, "data": 0, "run": 0, "export": 0}
    assert "rescind_requests_open 1\n" in (shop.folder / "rescind.prom").read_text()


@pytest.mark.parametrize(
    "orders", ["no file", pytest.param("no rows", marks=pytest.mark.slow), "broken"]
)
def test_a_night_without_orders_takes_who_left_off_the_lists(shop: Shop, orders: str) -> None:
    table(shop.folder / "in" / "today.csv", [(u, 20, 300) for u in range(6)])
    shop.follow("nightly.sh")
    assert any(user == "c1" for user, _ in shop.lists())
    today = shop.folder / "in" / "today.csv"
    today.write_text({"no file": "", "no rows": "customer,product,when\n", "broken": "a\n"}[orders])
    if orders == "no file":
        today.unlink()
    shop.ask("anna", '{"withdraw": "c1"}')
    codes = shop.follow("nightly.sh")
    assert codes.get("data", 0) == (0 if orders == "no file" else 2), "cron tells of it"
    assert not any(user == "c1" for user, _ in shop.lists())


@pytest.mark.parametrize(
    "before", [pytest.param("no request", marks=pytest.mark.slow), "a request"]
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_after_a_night_that_was_killed_while_it_learnt_requests_are_answered(
    shop: Shop, moment: str, before: str
) -> None:
    table(shop.folder / "in" / "today.csv", [(u, 20, 300) for u in range(4, 10)])
    if before == "a request":
        shop.ask("zoe", '{"withdraw": "c3"}')
    shop.killed_in_the_night(moment)
    assert not (shop.folder / "lists").exists(), "control: the night ended there"
    shop.ask("anna", '{"withdraw": "c1"}')
    table(shop.folder / "in" / "today.csv", [(u, 21, 301) for u in range(4, 10)])
    assert shop.follow("nightly.sh")["requests"] == 0
    gone = {"c1"} | ({"c3"} if before == "a request" else set())
    assert {user for user, _ in shop.lists()} == {f"c{user}" for user in range(12)} - gone
    assert any(item == "p21" for _, item in shop.lists())
    left = (shop.folder / "runs").rglob("*")
    assert not [path for path in left if path.name in (".learning", "checkpoints", "moved.json")]
    code, said = shop.rescind("rescind verify in/requests/answered")
    assert code == 0, said
    assert said.count("it follows") == len(gone) - 1


def test_a_request_after_a_killed_learning_leaves_nothing_that_it_had_begun(shop: Shop) -> None:
    shop.ask("zoe", '{"withdraw": "c3"}')
    shop.killed_in_the_night("the model is saved")
    runs = shop.folder / "runs"

    def known(user: str) -> list[Path]:
        name = json.dumps(user).encode()
        return [path for path in runs.rglob("*.json") if name in path.read_bytes()]

    assert any(".learning" in path.parts for path in known("c1")), "control: it was begun with her"
    shop.ask("anna", '{"withdraw": "c1"}')
    assert shop.rescind(REQUESTS)[0] == 0
    assert known("c2"), "control: others are found"
    assert not known("c1")


def test_own_receipts_stay_valid_after_a_new_key(shop: Shop) -> None:
    shop.ask("anna", '{"withdraw": "c1"}')
    assert shop.rescind(REQUESTS)[0] == 0
    receipt = shop.folder / "in" / "requests" / "answered" / "anna" / "receipt.json"
    for _ in range(2):
        assert shop.rescind("rescind keys rotate --yes")[0] == 0
        code, said = shop.rescind(f"rescind verify {receipt}")
        assert code == 0, said
        assert "your own key until" in said
    for statement in keys.folder().glob("rotated-*.json"):
        statement.unlink()
    assert shop.rescind(f"rescind verify {receipt}")[0] == 1, "control: without the statements"


def test_a_customer_who_left_gets_no_new_place_when_a_file_has_her_again(shop: Shop) -> None:
    shop.ask("anna", '{"withdraw": "c7"}')
    here = {f"c{user}" for user in range(12) if user != 7}
    for night in range(NIGHTS):
        new = [(3, 20 + night, 300 + night), (7, 1, 300 + night), (7, 30 + night, 300 + night)]
        table(shop.folder / "in" / "today.csv", new)
        shop.follow("nightly.sh")
        assert {user for user, _ in shop.lists()} == here
        known = {f"p{item}" for item in (*range(10), *range(20, 21 + night))}
        assert {item for _, item in shop.lists()} == known, "c7 alone had p30 and p31"
        size = f"11 users, {11 + night} items, {56 + night} rows"
        assert size in shop.rescind("rescind data describe mine")[1]
    facts = json.loads((shop.folder / "runs" / "mine" / "run.json").read_text())
    assert facts["data"]["users"] == 11
    said = shop.rescind("rescind export runs/mine --out lists -k 50")[1]
    assert "lists of 11 users" in said
    table(shop.folder / "in" / "today.csv", [(3, 25, 400), (7, 1, 400), (7, 40, 400)])
    said = shop.rescind("rescind data append mine in/today.csv")[1]
    assert "1 row added, 2 withheld" in said
    table(shop.folder / "in" / "today.csv", [(7, 1, 401)])
    said = shop.rescind("rescind data append mine in/today.csv")[1]
    assert "0 rows added, 1 withheld" in said
    said = shop.rescind("rescind data append mine in/today.csv")[1]
    assert "this file was added before" in said


def test_a_customer_who_returns_is_let_in_with_what_is_new_and_can_leave_again(shop: Shop) -> None:
    shop.ask("anna", '{"withdraw": "c7"}')
    shop.ask("bert", '{"withdraw": "c2"}')

    def night(when: int) -> str:
        new = [(user, item, when) for user in (2, 3, 7) for item in (1, when)]
        table(shop.folder / "in" / "today.csv", new)
        assert shop.follow("nightly.sh")["requests"] == 0
        return shop.rescind("rescind data describe mine")[1]

    assert "10 users," in night(300)
    admit = next(line for line in script("return.sh") if " data admit " in line)
    code, said = shop.rescind(admit.replace("c7", "c8"))
    assert code == 2, "c8 did not leave"
    assert shop.rescind(admit.replace("runs/mine", "runs/mien"))[0] == 2, "nothing is half done"
    code, said = shop.rescind(admit)
    assert code == 0, said
    assert "mine, runs/mine;" in said
    assert "11 users," in night(301)
    users = {user for user, _ in shop.lists()}
    assert "c7" in users
    assert "c2" not in users, "the control: nobody else came back"
    held = load_imported("mine")
    mine = held.items[held.item[held.users[held.user] == "c7"]].tolist()
    assert mine == ["p301"], "p1 was hers before, and p300 came while she was away"
    assert shop.rescind(admit)[0] == 2, "she is in"
    shop.ask("anna-again", '{"withdraw": "c7"}')
    assert "10 users," in night(302)
    assert "c7" not in {user for user, _ in shop.lists()}
    assert "same_as" not in shop.about("anna-again"), "it is about what she had since"
    shop.ask("anna-reminds", '{"withdraw": "c7"}')
    night(303)
    assert shop.about("anna-reminds")["same_as"] == "anna-again", "the last answer counts"
    code, said = shop.rescind("rescind verify in/requests/answered")
    assert code == 0, said


def test_a_second_letter_nights_later_is_answered_by_the_first(shop: Shop) -> None:
    shop.ask("x1", '{"withdraw": "c7"}')
    shop.ask("y1", '{"erase": {"user": "c2", "items": ["p6"]}}')
    for _ in range(NIGHTS):
        assert shop.follow("nightly.sh")["requests"] == 0
    shop.ask("x3", '{"withdraw": "c7"}')
    shop.ask("y3", '{"erase": {"user": "c2", "items": ["p6"]}}')
    shop.ask("z", '{"withdraw": "c8"}')
    assert shop.follow("nightly.sh")["requests"] == 0
    told = [shop.about(name).get("same_as") for name in ("x3", "y3", "z")]
    assert told == ["x1", "y1", None], "z is the control"
    assert not list((shop.folder / "in" / "requests").glob("*.json"))


@pytest.mark.parametrize("leaves", [True, False])
def test_who_was_let_in_and_leaves_before_she_has_rows_is_not_learnt_with_the_next_file(
    shop: Shop, leaves: bool
) -> None:
    shop.ask("x1", '{"withdraw": "c7"}')
    assert shop.follow("nightly.sh")["requests"] == 0
    assert shop.rescind(next(line for line in script("return.sh") if " admit " in line))[0] == 0
    if leaves:
        shop.ask("x2", '{"withdraw": "c7"}')
    assert shop.follow("nightly.sh")["requests"] == 0
    if leaves:
        assert "same_as" not in shop.about("x2"), "the old answer is not about what comes now"
        assert shop.about("x2")["no_receipt"] is True
    table(shop.folder / "in" / "today.csv", [(7, 20, 300), (4, 20, 300)])
    assert shop.follow("nightly.sh")["requests"] == 0
    assert ("c7" in load_imported("mine").users) != leaves, "the control: she stays"
    assert ("c7" in {user for user, _ in shop.lists()}) != leaves


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ({}, 0),
        ({"data": 2, "requests": 1}, 2),
        ({"data": 1, "requests": 2}, 2),
        ({"requests": 1}, 1),
        ({"data": 2, "requests": 1, "run": 1}, 2),
        ({"run": 1}, 1),
    ],
)
def test_the_night_ends_with_the_highest_exit_code_of_its_commands(
    tmp_path: Path, codes: dict[str, int], ends: int
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "today.csv").touch()
    (tmp_path / "runs" / "mine-forgot-1" / "model").mkdir(parents=True)
    fails = "".join(f"{name}) return {code};; " for name, code in codes.items())
    stand_in = f'rescind() {{ echo "$1" >> given; case "$1" in {fails}*) return 0;; esac; }}'
    text = "\n".join([stand_in, *script("nightly.sh")])
    done = subprocess.run(
        ["bash", "-e", "-c", text], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (ends, "")
    given = (tmp_path / "given").read_text().split()
    assert given == ["data", "requests", "run", "export"], "all the same"
    kept = (tmp_path / "runs" / "mine-forgot-1").is_dir()
    assert kept == ("run" in codes), "nothing is deleted if nothing was learnt"


def test_cron_finds_the_command_with_the_lines_of_the_page(tmp_path: Path) -> None:
    found = re.search(r"```cron\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert found
    lines = found[1].replace("/srv/", f"{tmp_path}/").splitlines()
    settings = dict(line.split("=", 1) for line in lines[:-1])
    command = lines[-1].split(maxsplit=5)[5]
    installed = tmp_path / "rescind" / "bin" / "rescind"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "nightly.sh").write_text("rescind requests run in/requests\n")
    of_cron = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    for given, code in ((of_cron | settings, 0), (of_cron, 127)):
        done = subprocess.run(["/bin/sh", "-c", command], env=given, check=False)
        assert done.returncode == code
