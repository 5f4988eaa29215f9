"""What is sent to a person: one file, whose members `rescind verify` checks."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from requesting import LENDING, Shop, elsewhere, items_of, papers, unpacked
from rescind.cli import app
from rescind.core.home import home
from rescind.home import Ledger
from rescind.privacy import keys
from rescind.receipts.receipt import canonical, opened, parse
from rescind.requests.papers import bundle, papers_of

ALL = ["receipt.html", "receipt.json", "receipt.key", "receipt.tlog-proof", "request.json"]
WHO = "c3"


def verified(*words: object) -> int:
    """Return the exit code of `rescind verify`."""
    done = CliRunner().invoke(app, ["verify", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 2
    return done.exit_code


def public(folder: Path) -> tuple[object, ...]:
    """Return the options with the keys that an operator publishes."""
    signing = folder / "operator.pub"
    signing.write_bytes((keys.folder() / "signing.pub").read_bytes())
    log = CliRunner().invoke(app, ["log", "key"]).output.strip()
    return "--key", signing, "--log-key", log


def changed(path: Path) -> bytes:
    """Return a receipt that states a better level than it was signed with, or a worse one."""
    data = path.read_bytes()
    level = parse(data).done.level.encode()
    return data.replace(b'"' + level + b'"', b'"L0"')


@pytest.mark.parametrize(
    ("kind", "user", "items"),
    [("leave", WHO, ()), ("erase", WHO, items_of(3)[:2]), ("unshare", WHO, ())],
)
def test_a_stranger_checks_every_member(
    kind: str, user: str, items: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.opened(tmp_path / "shop", cell=LENDING)
    done = shop.ask(kind, user, items=items, audit="none")
    theirs = unpacked(done.id, tmp_path / "theirs")
    other = shop.ask("leave", "c5")
    wrong = unpacked(other.id, tmp_path / "of another")
    trusted = public(tmp_path)
    assert sorted(path.name for path in theirs.iterdir()) == ALL
    with elsewhere(monkeypatch, tmp_path / "a stranger"):
        given = {
            "--event": "request.json",
            "--event-key": "receipt.key",
            "--proof": "receipt.tlog-proof",
        }
        words = [word for option, name in given.items() for word in (option, theirs / name)]
        assert verified(theirs / "receipt.json", *trusted, *words) == 0
        for option, name in given.items():
            swapped = [
                word
                for one, called in given.items()
                for word in (one, (wrong if one == option else theirs) / called)
            ]
            assert verified(theirs / "receipt.json", *trusted, *swapped) == 1, f"control: {name}"
        (theirs / "receipt.json").write_bytes(changed(theirs / "receipt.json"))
        assert verified(theirs / "receipt.json", *trusted[:2]) == 1
    exact = json.loads(papers(done.id)["request.json"])
    assert exact["user"] == (user if kind == "leave" else [user] * len(exact["item"]))


def test_the_key_opens_the_exact_numbers_and_is_nowhere_else(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    done = shop.ask("leave", WHO)
    sent = papers(done.id)
    receipt, key = parse(sent["receipt.json"]), bytes.fromhex(sent["receipt.key"].decode())
    assert (opened(receipt, key).asked.people, opened(receipt, key).asked.records) == (1, 5)
    assert receipt.asked.people != 1, "a stranger sees a band"
    papers_of(done.id).unlink()  # it was sent
    for path in [*home().rglob("*"), *shop.folder.rglob("*")]:
        if path.is_file():
            assert key not in path.read_bytes(), path
            assert key.hex().encode() not in path.read_bytes(), path


def test_the_file_is_for_its_owner_and_its_page_says_the_case(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    request = shop.add("leave", WHO)
    done = shop.answer(request.id)
    assert stat.S_IMODE(papers_of(done.id).stat().st_mode) == 0o600
    assert b"<html" in papers(done.id)["receipt.html"]


def test_the_same_members_give_the_same_bytes() -> None:
    assert bundle({"a": b"1", "b": b"2"}) == bundle({"b": b"2", "a": b"1"})


def test_people_who_asked_together_have_a_part_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.opened(tmp_path / "shop")
    done = shop.ask("erase", "c3", "c4", "c5")
    sent = unpacked(done.id, tmp_path / "sent")
    parts = {path.stem: path for path in (sent / "parts").glob("*.json")}
    assert sorted(parts) == ["c3", "c4", "c5"]
    assert (sent / "parts" / "receipt.html").is_file()
    for user, path in parts.items():
        text = path.read_text()
        others = {"c3", "c4", "c5"} - {user}
        assert json.loads(text)["user"] == user
        assert not any(f'"{other}"' in text for other in others)
        assert (sent / "receipt.key").read_text().strip() not in text
    alone = unpacked(shop.ask("erase", "c6").id, tmp_path / "alone")
    assert not (alone / "parts").exists()
    trusted = public(tmp_path)[:2]
    with elsewhere(monkeypatch, tmp_path / "a stranger"):
        for path in parts.values():
            assert verified(sent / "receipt.json", *trusted, "--part", path) == 0
            assert verified(alone / "receipt.json", *trusted, "--part", path) == 1, "control"


def test_rows_alone_have_a_receipt_that_a_stranger_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.opened(tmp_path / "shop")
    shop.arrive("n1", ("p1", "p2"))
    done = shop.ask("leave", "n1")
    theirs = unpacked(done.id, tmp_path / "theirs")
    receipt = parse((theirs / "receipt.json").read_bytes())
    key = bytes.fromhex((theirs / "receipt.key").read_text())
    assert (receipt.done.level, opened(receipt, key).asked.records) == ("L1", 2)
    trusted = public(tmp_path)
    with elsewhere(monkeypatch, tmp_path / "a stranger"):
        words = ("--proof", theirs / "receipt.tlog-proof", "--event-key", theirs / "receipt.key")
        assert verified(theirs / "receipt.json", *trusted, *words) == 0


def test_the_ledger_has_the_receipt_that_was_sent_and_the_next_follows_it(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    first, second = shop.ask("leave", "c3"), shop.ask("erase", "c4")
    with Ledger.open() as ledger:
        bodies = [ledger.receipt(one.receipt) for one in (first, second)]
    for done, (body, proof) in zip((first, second), bodies, strict=True):
        sent = papers(done.id)
        assert (sent["receipt.json"], sent["receipt.tlog-proof"].decode()) == (body, proof)
        assert canonical(parse(body)) == body
    assert parse(bodies[1][0]).previous == first.receipt
    assert parse(bodies[0][0]).previous in ("", None)


def test_an_answer_again_writes_no_papers_again(tmp_path: Path) -> None:
    shop = Shop.opened(tmp_path / "shop")
    done = shop.ask("leave", WHO)
    papers_of(done.id).unlink()
    again = shop.ask("leave", WHO)
    assert (again.outcome, again.receipt) == ("REPEATED", done.receipt)
    assert not papers_of(done.id).exists()
    assert not papers_of(again.id).exists()


def test_two_ids_that_a_disk_takes_for_one_have_two_parts(tmp_path: Path) -> None:
    rows = [(f"{who}", f"p{item}") for who in ("bo@x", "Bo@x", "a/b", "../x") for item in range(4)]
    rows += [(f"c{n}", f"p{item}") for n in range(4) for item in range(4)]
    shop = Shop.opened(tmp_path / "shop", rows)
    done = shop.ask("erase", "bo@x", "Bo@x", "a/b", "../x", items=("p1",))
    with zipfile.ZipFile(papers_of(done.id)) as packed:
        names = [one for one in packed.namelist() if one.endswith(".json") and "/" in one]
    assert len({name.casefold() for name in names}) == 4
    assert all(name.startswith("parts/") and ".." not in name for name in names)
