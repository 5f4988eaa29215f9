"""A second party solves a release again from the published sum, signs it, and tells leavers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from doors import Browser, House, log_key
from rescind.cli import app
from rescind.cli.witness import open_witness, pull
from rescind.errors import ConfigError, DataError
from rescind.ledger import rebuilding, releasing
from rescind.ledger.lending import TakeBack
from rescind.ledger.open_sum import EVERY_BYTE, OpenSum, near
from rescind.ledger.rebuilding import Rebuilding
from rescind.ledger.release_worker import make_here
from rescind.methods.additive._live_release import Form, release_of
from rescind.methods.additive._live_sum import added_up
from rescind.proof import fetching, pulling, rebuilt
from rescind.proof.notes import LOG, WITNESS, Checkpoint, Key
from rescind.proof.pulling import Away
from rescind.proof.rebuilt import FILE
from rescind.proof.roster import Public, check, history
from rescind.service.chores import make_roster

URL = "http://localhost:8000"


@pytest.fixture
def people(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Browser]:
    """Six people who lend; whatever is fetched comes from this service."""

    def sent(request: Request, most: int = 1 << 16) -> bytes:
        token = (request.get_header("Authorization") or "").removeprefix("Bearer ")
        caller = house.caller(bearer=token) if token else house.caller()
        path = request.full_url.removeprefix(URL)
        kind = {"content-type": request.get_header("Content-type") or ""}
        answer = caller.call(request.get_method(), path, content=request.data, headers=kind)
        if answer.status_code >= 400:
            raise Away(answer.text)
        # urllib leaves a body as it was sent; httpx unpacks it
        packed = "content-encoding" in answer.headers
        return house.ledger.releases.file() if packed else answer.content

    for module in (fetching, rebuilding, pulling):
        monkeypatch.setattr(module, "sent", sent)
    return [house.person(tuple(range(n, n + 12))) for n in range(6)]


@pytest.fixture
def auditor(house: House, people: list[Browser], tmp_path: Path) -> Iterator[Rebuilding]:
    """A witness that the operator admitted, with a token to rebuild."""
    log = log_key(house)
    witness = open_witness(tmp_path / "auditor", "auditor", [log])
    house.service.log.witnesses.admit(witness.key, None)
    token = house.script("rebuild").bearer
    return Rebuilding(URL, log, witness, tmp_path / "auditor", token)


def listed(house: House) -> None:
    house.ledger.releases.make()
    assert make_roster(house.service)


def test_a_release_is_rebuilt_once_and_everybody_sees_by_whom(
    house: House, people: list[Browser], auditor: Rebuilding, tmp_path: Path
) -> None:
    listed(house)
    assert people[0].get("/v1/release").json()["current"]["rebuilt"] == []
    told = auditor.once()
    assert told[-1] == "the weights of the release follow from it (every byte): signed"
    assert auditor.once() == [], "none twice"
    (note,) = people[0].get("/v1/release").json()["current"]["rebuilt"]
    assert json.loads(note.splitlines()[1])["agrees"] == EVERY_BYTE

    keys, folder = house.caller().get("/v1/keys").json(), tmp_path / "stranger"
    stated = fetching.fetch(URL, folder)
    key, data = Key.parse(keys["witnesses"][0], WITNESS), (folder / FILE).read_bytes()
    about = (Key.parse(keys["log"], LOG).name, stated, [key])
    (says,) = rebuilt.told(data, *about)
    assert "rebuilt by auditor on" in says
    assert rebuilt.told(data, about[0], stated, []) == [], (
        "control: who is not trusted says nothing"
    )
    other = replace(stated, weights="sha256:0")
    assert rebuilt.told(data, about[0], other, [key]) == [], "it is of other weights"
    with pytest.raises(DataError, match="does not fit what it signed"):
        rebuilt.told(data.replace(b"every byte", b"every bit."), *about)

    house.do(TakeBack(people[5].id, "leave"))
    house.ledger.releases.make()
    assert people[0].get("/v1/release").json()["current"]["rebuilt"] == [], "it is another release"


def another_sum(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Release weights of a sum that lacks one person, and publish the sum with them."""

    def other(copy: Any, *more: Any) -> Any:
        kept = copy.kept[1:]
        return make_here(replace(copy, sums=added_up(kept, 40), kept=kept), *more)

    with monkeypatch.context() as patched:
        patched.setattr(releasing, "make", other)
        listed(house)


def test_weights_of_another_sum_are_not_signed(
    house: House, people: list[Browser], auditor: Rebuilding, monkeypatch: Any, tmp_path: Path
) -> None:
    another_sum(house, monkeypatch)
    fetching.fetch(URL, tmp_path / "stranger")
    log = log_key(house)
    says = check(Public.read(tmp_path / "stranger"), log)
    assert says[-1] == "they add up to the published sum", "control: without a rebuild it passes"
    with pytest.raises(DataError, match="not solved from the published sum"):
        auditor.once()
    # The sum that gives these weights is not the published one.
    held = house.ledger.roster.open_sum
    loans = list(house.ledger.live.loans.values())[1:]
    house.ledger.roster.open_sum = replace(held, sums=added_up(loans, 40))
    with pytest.raises(DataError, match="the sum in use is not the published one"):
        auditor.once()
    assert people[0].get("/v1/release").json()["current"]["rebuilt"] == []
    listed(house)
    assert "every byte" in auditor.once()[-1]


def kept_under_a_new_line(house: House, monkeypatch: pytest.MonkeyPatch, items: Any) -> None:
    """Release a sum that still has a leaver's part, with a new line for it."""
    honest = house.ledger.live.settle

    def settled() -> Any:
        sums, loans, gone = honest()
        loans = {**loans, bytes(16): np.array(items, np.int32)}
        return added_up(loans.values(), sums.items), loans, gone

    with monkeypatch.context() as patched:
        patched.setattr(house.ledger.live, "settle", settled)
        listed(house)


def test_a_leaver_kept_under_a_new_line_is_not_shown_to_be_out(
    house: House, people: list[Browser], auditor: Rebuilding, monkeypatch: Any, tmp_path: Path
) -> None:
    listed(house)
    lines = people[2].get("/v1/me/lines").json()["lines"]
    house.do(TakeBack(people[2].id, "leave"))
    kept_under_a_new_line(house, monkeypatch, lines[0]["items"])
    fetching.fetch(URL, tmp_path / "stranger")
    public = Public.read(tmp_path / "stranger")
    log = log_key(house)
    assert check(public, log)[-1] == "they add up to the published sum", "strangers find nothing"
    assert "revoked" in history(public.log, lines[0]["line"]), "nor does the leaver alone"
    told = auditor.once({"mine.json": lines})
    assert "every byte" in told[-2], "the weights follow from a sum with the leaver in it"
    assert told[-1].startswith("mine.json: NOT SHOWN")
    listed(house)  # the control: an honest release, asked in the same way
    assert auditor.once({"mine.json": lines})[-1].startswith("mine.json: OUT: 1 pairs")


def test_the_sum_is_held_and_handed_out_for_a_token_only(
    house: House, people: list[Browser]
) -> None:
    listed(house)
    assert house.ledger.roster.open_sum is None, "nobody may rebuild"
    script = house.script("rebuild")
    assert script.get("/v1/operator/sum").status_code == 404
    house.do(TakeBack(people[0].id, "unshare", (3,)))
    listed(house)
    assert script.get("/v1/operator/sum").status_code == 200
    assert house.script("read", "witnesses").get("/v1/operator/sum").status_code == 403
    assert people[0].get("/v1/operator/sum").status_code == 404
    assert house.caller().get("/v1/operator/sum").status_code == 401


def test_a_note_of_anybody_else_or_about_anything_else_is_refused(
    house: House, people: list[Browser], auditor: Rebuilding, tmp_path: Path
) -> None:
    listed(house)
    auditor.once()
    (note,) = house.service.log.witnesses.rebuilt().values()
    house.do(TakeBack(people[0].id, "leave"))
    listed(house)
    text = note.rpartition("\n\n")[0] + "\n"
    stranger = open_witness(tmp_path / "stranger", "auditor", [])
    kind = {"content-type": "text/plain"}
    for sent, why in (
        (note, "not about the roster"),
        (stranger.signed(text), "no witness that this log knows"),
        (auditor._witness.signed("rescind\n5\n" + "A" * 43 + "=\n"), "no note about a release"),
    ):
        answer = house.caller().call("POST", "/log/rebuilt", content=sent, headers=kind)
        assert answer.status_code >= 400, sent
        assert why in answer.text


def test_what_a_service_sends_as_its_sum_is_read_with_care(
    house: House, people: list[Browser], auditor: Rebuilding
) -> None:
    listed(house)
    good = house.ledger.roster.open_sum.to_bytes()
    assert OpenSum.read(good, 40).form == house.ledger.releases.form
    for sent in (
        good[:-1],
        good + b"0",
        b"[" * 100_000,
        b"{}" + good,
        good.replace(b"<i4", b"|O8"),
        good.replace(b'"neighbours": ', b'"neighbours": -'),
        good.replace(b'"ridge": ', b'"ridge": -'),
        good.replace(b'"form": {', b'"form": {"more": 1, '),
    ):
        with pytest.raises(DataError, match="not an open sum"):
            OpenSum.read(sent, 40)


def test_another_machines_last_digits_are_no_fault_and_others_are() -> None:
    loans = [np.arange(n, n + 12, dtype=np.int32) for n in range(28)]
    solved = release_of(added_up(loans, 40), Form(min_count=1))
    assert near(replace(solved, weight=np.nextafter(solved.weight, np.float32(1))), solved)
    for wrong in (
        {"weight": solved.weight * np.float32(1.00001)},
        {"popular": solved.popular[::-1]},
        {"target": solved.target[::-1]},
        {"weight": solved.weight[1:], "target": solved.target[1:]},
    ):
        assert not near(replace(solved, **wrong), solved), wrong


def test_the_command_stops_at_what_does_not_hold(
    house: House, people: list[Browser], auditor: Rebuilding, monkeypatch: Any, tmp_path: Path
) -> None:
    key = house.caller().get("/v1/keys").json()["log"]
    with pytest.raises(ConfigError, match="rescind tokens make rebuild"):
        pull(tmp_path / "auditor", "auditor", [key], URL, 0.0, 1, rebuild=True)
    monkeypatch.setenv("RESCIND_TOKEN", auditor._token)
    monkeypatch.setattr(pulling.Pulling, "once", lambda self: Checkpoint("a", 1, b""))
    runner = CliRunner()
    listed(house)
    (tmp_path / "mine.json").write_text(people[0].get("/v1/me/lines").text)
    given = ["witness", str(tmp_path / "auditor"), "--name", "auditor", "--key", key]
    pull(*_given(tmp_path, key), looks=1, rebuild=True, leavers=[tmp_path / "mine.json"])
    lines = json.loads((tmp_path / "mine.json").read_text())["lines"]
    lines[0]["items"][0] += 30
    (tmp_path / "mine.json").write_text(json.dumps(lines))
    with pytest.raises(ConfigError, match="not made of its items"):
        pull(*_given(tmp_path, key), looks=1, rebuild=True, leavers=[tmp_path / "mine.json"])
    another_sum(house, monkeypatch)
    with pytest.raises(typer.Exit):
        pull(*_given(tmp_path, key), looks=1, rebuild=True)
    got = runner.invoke(app, [*given, "--rebuild"])
    assert "--rebuild reads a service" in str(got.exception)


def _given(folder: Path, key: str) -> tuple[Any, ...]:
    return folder / "auditor", "auditor", [key], URL, 0.0
