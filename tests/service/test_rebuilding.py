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

from doors import Browser, House
from rescind.cli import app
from rescind.cli.witness import open_witness, pull, rebuilder
from rescind.errors import ConfigError, DataError
from rescind.ledger import rebuilding, releasing
from rescind.ledger.lending import TakeBack
from rescind.ledger.open_sum import EVERY_BYTE, OpenSum, edges
from rescind.ledger.rebuilding import Rebuilding
from rescind.ledger.release_worker import make_here
from rescind.methods.additive._live_release import Form, read, release_of, unpacked
from rescind.methods.additive._live_sum import added_up
from rescind.proof import fetching, pulling
from rescind.proof.notes import LOG, WITNESS, Key
from rescind.proof.pulling import Away
from rescind.proof.rebuilt import FILE
from rescind.proof.roster import Public, check, history
from rescind.proof.witness import Witness
from rescind.service.chores import make_roster
from typer.testing import CliRunner

URL = "http://localhost:8000"


@pytest.fixture
def people(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Browser]:
    """Six people who lend; whatever is fetched comes from this service."""

    def sent(request: Request, most: int = 1 << 16) -> bytes:
        token = (request.get_header("Authorization") or "").removeprefix("Bearer ")
        caller = house.caller(bearer=token) if token else house.caller()
        path = request.full_url.removeprefix(URL)
        answer = caller.call(request.get_method(), path, content=request.data)
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
    log = Key.parse(house.caller().get("/v1/keys").json()["log"], LOG)
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

    runner, public = CliRunner(), str(tmp_path / "stranger")
    assert runner.invoke(app, ["roster", "fetch", URL, "--out", public]).exit_code == 0
    keys = house.caller().get("/v1/keys").json()
    asked = ["roster", "check", public, "--log-key", keys["log"]]
    said = runner.invoke(app, asked).output
    assert "which sum is in use" in said, "control: without the witness's key nothing is covered"
    # the checkpoint itself is not cosigned here, so only the notes are asked for
    from rescind.proof import rebuilt, roster

    data = Path(public, FILE).read_bytes()
    folder = Public.read(Path(public))
    stated = roster.Stated.parse(folder.stated)
    key = Key.parse(keys["witnesses"][0], WITNESS)
    origin = folder.log.checkpoint.origin
    (says,) = rebuilt.told(data, origin, stated, [key])
    assert "rebuilt by auditor on" in says
    assert rebuilt.told(data, origin, replace(stated, weights="sha256:other"), [key]) == []
    forged = data.replace(b"every byte", b"every bit!")
    with pytest.raises(DataError, match="does not fit what it signed"):
        rebuilt.told(forged, origin, stated, [key])

    house.do(TakeBack(people[5].id, "leave"))
    house.ledger.releases.make()
    assert people[0].get("/v1/release").json()["current"]["rebuilt"] == [], "it is another release"
