"""Strangers fetch the roster of a service and add it up offline; five fakes are found in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import Request

import numpy as np
import pytest
from typer.testing import CliRunner

from doors import Browser, House, log_key
from rescind.cli import app
from rescind.errors import DataError
from rescind.ledger import release_worker, releasing
from rescind.ledger.lending import TakeBack
from rescind.ledger.release_worker import make_here
from rescind.ledger.roster_audit import audit
from rescind.methods.additive._live_sum import Totals, added_up
from rescind.proof import fetching
from rescind.proof.pulling import Away
from rescind.proof.roster import LINES, STATED, SUM, Public, check, history
from rescind.proof.roster import added_up as lines_added_up
from rescind.service.chores import make_roster

TRIALS = 4


@pytest.fixture
def people(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Browser]:
    """Six people who lend; whatever is fetched comes from this service."""

    def sent(request: Request, most: int) -> bytes:
        path = request.full_url.removeprefix("http://localhost:8000")
        answer = house.caller().get(path)
        if answer.status_code >= 400:
            raise Away(answer.text)
        assert len(answer.content) <= most
        return answer.content

    monkeypatch.setattr(fetching, "sent", sent)
    return [house.person(tuple(range(n, n + 12))) for n in range(6)]


def listed(house: House) -> None:
    house.ledger.releases.make()
    assert make_roster(house.service)


def fetched(house: House, folder: Path) -> Public:
    fetching.fetch("http://localhost:8000/", folder)
    return Public.read(folder)


def leaves(house: House, person: Browser) -> None:
    house.do(TakeBack(person.id, "leave"))


def test_a_stranger_adds_up_what_the_service_publishes(
    house: House, people: list[Browser], tmp_path: Path
) -> None:
    assert house.caller().get(f"/log/roster/{STATED}").status_code == 404
    listed(house)
    public, key = fetched(house, tmp_path / "public"), log_key(house)
    told = check(public, key)
    assert "it is of release 1" in told[1]
    assert told[-1] == "they add up to the published sum"
    assert len(public.lines) == 6 * 8192
    assert audit(house.ledger, public)[1] == "the weights served follow from it"
    mine = people[2].get("/v1/me/lines").json()["lines"]
    leaves(house, people[2])
    listed(house)
    after = fetched(house, tmp_path / "public")
    told = check(after, key, since=public.log.note)
    assert "the 5 lines" in told[2]
    assert "revoked" in history(after.log, mine[0]["line"])
    assert house.caller().get("/v1/me/lines").status_code == 401


def test_the_command_line_fetches_and_checks(
    house: House, people: list[Browser], tmp_path: Path
) -> None:
    listed(house)
    (tmp_path / "mine.json").write_text(people[0].get("/v1/me/lines").text)
    public, key = str(tmp_path / "public"), str(log_key(house))
    runner = CliRunner()
    got = runner.invoke(app, ["roster", "fetch", "http://localhost:8000", "--out", public])
    assert (got.exit_code, "6 lines of release 1" in got.output) == (0, True), got.output
    asked = ["roster", "check", public, "--log-key", key, "--mine", str(tmp_path / "mine.json")]
    good = runner.invoke(app, asked)
    assert good.exit_code == 0, good.output
    assert "counted since" in good.output
    house.do(TakeBack(people[0].id, "unshare"))
    (tmp_path / "none.json").write_text(people[0].get("/v1/me/lines").text)
    none = runner.invoke(app, [*asked[:-1], str(tmp_path / "none.json")])
    assert (none.exit_code != 0, "has no line" in str(none.exception)) == (True, True)
    (tmp_path / "public" / SUM).write_bytes(b"\1" * 8192)
    assert runner.invoke(app, asked).exit_code == 1
    nowhere = runner.invoke(app, ["roster", "fetch", "ftp://there", "--out", public])
    assert "not the address of a service" in str(nowhere.exception)


def lying(
    house: House, monkeypatch: pytest.MonkeyPatch, change: Callable[[Totals], Totals]
) -> None:
    """Let the service use another sum than that of the loans, and not refuse it."""
    honest = house.ledger.live.settle

    def settled() -> Any:
        sums, loans, gone = honest()
        return change(sums), loans, gone

    monkeypatch.setattr(house.ledger.live, "settle", settled)
    monkeypatch.setattr(release_worker, "added_up", lambda *_: _Agreeing())


class _Agreeing:
    """Switches off the service's own check of its sum."""

    def digest(self, _: int) -> Any:
        return _Anything()


class _Anything(str):
    def __ne__(self, _: object) -> bool:
        return False


def plus(sums: Totals, items: Any, sign: int = 1) -> Totals:
    """Return a sum with somebody's part more, or less."""
    part = added_up([np.array(items, np.int32)], sums.items)
    return replace(
        sums, total=sums.total + sign * part.total, owners=sums.owners + sign * part.owners
    )


def refused(house: House, folder: Path, why: str) -> None:
    public = fetched(house, folder)
    with pytest.raises(DataError, match=why):
        check(public, log_key(house))


@pytest.mark.parametrize("fake", ["person kept", "record kept", "off by one"])
def test_a_sum_that_holds_anything_else_is_found(
    fake: str, house: House, people: list[Browser], tmp_path: Path, monkeypatch: Any
) -> None:
    listed(house)
    for trial in range(TRIALS):
        with monkeypatch.context() as patched:
            items = list(range(trial, trial + 12))
            if fake == "person kept":
                leaves(house, people[trial])
                lying(house, patched, lambda sums, items=items: plus(sums, items))
            elif fake == "record kept":
                house.do(TakeBack(people[trial].id, "unshare", (items[3],)))
                less = [n for n in items if n != items[3]]
                lying(house, patched, lambda sums, a=items, b=less: plus(plus(sums, a), b, -1))
            else:
                place = 97 * trial

                def changed(sums: Totals, place: int = place) -> Totals:
                    sums.total[place] += 1
                    return sums

                lying(house, patched, changed)
            listed(house)
        refused(house, tmp_path / "public", "do not add up")
    listed(house)  # the control: without the lie, the same service passes
    check(fetched(house, tmp_path / "public"), log_key(house))


def test_a_model_from_another_sum_is_found_by_whoever_may_rebuild(
    house: House, people: list[Browser], tmp_path: Path, monkeypatch: Any
) -> None:
    for trial in range(TRIALS):
        with monkeypatch.context() as patched:

            def other(copy: Any, *more: Any, trial: int = trial) -> Any:
                kept = copy.kept[:trial] + copy.kept[trial + 1 :]
                return make_here(replace(copy, sums=added_up(kept, 40), kept=kept), *more)

            patched.setattr(releasing, "make", other)
            listed(house)
        public = fetched(house, tmp_path / "public")
        check(public, log_key(house))  # a stranger cannot see it: docs/proof.md says so
        with pytest.raises(DataError, match="not solved from the published sum"):
            audit(house.ledger, public)
    listed(house)
    audit(house.ledger, fetched(house, tmp_path / "public"))


def test_an_edited_roster_is_found(house: House, people: list[Browser], tmp_path: Path) -> None:
    listed(house)
    public, folder = fetched(house, tmp_path / "public"), tmp_path / "public"
    for trial in range(TRIALS):
        lines = bytearray(public.lines)
        lines[trial * 8192 + 11 * trial] ^= 1 + trial
        total = lines_added_up(bytes(lines))
        stated = {**json.loads(public.stated), "sum": sha256(total).hexdigest()}
        for name, data in ((LINES, bytes(lines)), (SUM, total)):
            (folder / name).write_bytes(data)
        with pytest.raises(DataError, match="revoked, or never added"):
            check(Public.read(folder), log_key(house))
        (folder / STATED).write_text(json.dumps(stated, sort_keys=True, indent=1) + "\n")
        with pytest.raises(DataError, match="not the newest one in the log"):
            check(Public.read(folder), log_key(house))
        (folder / STATED).write_bytes(public.stated)
    for kept in (public.lines[8192:], public.lines + public.lines[:8192]):
        with pytest.raises(DataError, match=r"missing|twice"):
            check(replace(public, lines=kept), log_key(house))


def test_lines_that_cannot_be_opened_any_more_are_said_so(
    house: House, people: list[Browser], tmp_path: Path
) -> None:
    listed(house)
    public = fetched(house, tmp_path / "public")
    house.do(TakeBack(people[0].id, "unshare", (3,)))
    with pytest.raises(DataError, match="1 of 6 lines cannot be opened"):
        audit(house.ledger, public)
