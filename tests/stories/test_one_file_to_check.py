"""The .zip of an answer checks itself: receipt, request, key and place in the log."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rescind.cli import app, main
from rescind.requests.papers import EXACT, KEY, PROOF, RECEIPT, bundle


def rescind(*words: object) -> tuple[int, str]:
    told = CliRunner().invoke(app, [str(word) for word in words])
    return (2 if isinstance(told.exception, Exception) else told.exit_code), told.output


@pytest.fixture
def papers(tmp_path, monkeypatch) -> list[dict[str, bytes]]:
    """The members of two answers, in a home of their own."""
    monkeypatch.chdir(tmp_path)
    pairs = [f"c{user},p{(3 * user + k) % 10}" for user in range(12) for k in range(5)]
    Path("shop.csv").write_text("\n".join(["user,item", *pairs]) + "\n")
    assert rescind("data", "import", "shop.csv", "--name", "shop")[0] == 0
    assert rescind("run", "--data", "shop", "--method", "Gram", "--out", "run")[0] == 0
    found = []
    for user in ("c3", "c4"):
        before = {*tmp_path.rglob("*.zip")} | {*_answers()}
        assert rescind("forget", "--user", user)[0] == 0
        (made,) = {*_answers()} - before
        with zipfile.ZipFile(made) as packed:
            found.append({name: packed.read(name) for name in packed.namelist()})
    return found


def _answers() -> list[Path]:
    from rescind.core.home import home

    return list((home() / "answers").glob("*.zip"))


def checked(files: dict[str, bytes]) -> int:
    Path("answer.zip").write_bytes(bundle(files))
    return rescind("verify", "answer.zip")[0]


def test_an_answer_as_it_was_sent_is_valid(papers: list[dict[str, bytes]]) -> None:
    assert [checked(files) for files in papers] == [0, 0]
    assert {RECEIPT, EXACT, KEY, PROOF} <= papers[0].keys()


@pytest.mark.parametrize("member", [EXACT, KEY, PROOF, RECEIPT])
def test_a_file_of_another_answer_is_seen(papers: list[dict[str, bytes]], member: str) -> None:
    mine, other = papers
    assert checked({**mine, member: other[member]}) == 1


def test_a_changed_receipt_is_seen_and_what_is_no_answer_is_refused(papers) -> None:
    mine, _ = papers
    assert checked({**mine, RECEIPT: mine[RECEIPT].replace(b'"L3"', b'"L2"')}) == 1
    assert checked({EXACT: mine[EXACT]}) == 2
    assert checked({**mine, "../other": b""}) == 0, "what is no member is not unpacked"
    assert not Path("../other").exists()


def test_a_stranger_names_the_key_of_who_signed(papers, monkeypatch, tmp_path, capsys) -> None:
    from rescind.privacy import keys

    key = keys.own_public_key()
    Path("answer.zip").write_bytes(bundle(papers[0]))
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "nobody"))
    for more, code in (((), 1), (("--key", key), 0)):
        monkeypatch.setattr("sys.argv", ["rescind", "verify", "answer.zip", *more])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == code
    assert not (tmp_path / "nobody").exists()
