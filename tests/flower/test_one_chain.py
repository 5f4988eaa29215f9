"""Receipts over silos are one chain, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Exit

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory
from rescind.cli.flower_given import requests_named
from rescind.cli.verify import command
from rescind.core.claims import COMPLETES, CONFIRMED, WAITED_FOR
from rescind.core.records import Withdraw
from rescind.flower.run_request import RunRequest
from rescind.flower.server import receipts
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.receipts import receipt
from rescind.receipts.receipt import Done

pytestmark = pytest.mark.flower

RECIPE = """
[data]
name = "synthetic"
users = 24
items = 20
interactions = 220

[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
SILOS = 2
AWAY = 1
"""The silo that is away; who withdraws is on the other one."""


class Deployment:
    """Two silos with their disks, and a server that starts anew for each command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "out" / "receipts"
        (folder / "recipe.toml").write_text(RECIPE)
        self.asked = RunRequest(
            str(folder / "recipe.toml"), SILOS, str(folder / "out"), deadline=0.0, wait=0.0
        )

    def run(self, *leave: str, away: Iterable[int] = (), resume: bool = False) -> None:
        source = RecipeData(self.asked.recipe)
        grid = InMemory(
            {
                FIRST + silo: Node(
                    Store(self.folder / f"silo-{silo}"), source, silo, SILOS, single_updates=True
                )
                for silo in range(SILOS)
                if silo not in away
            }
        )
        requests = requests_named(None, None, [*leave])
        serve(grid, replace(self.asked, requests=requests, resume=resume))

    def read(self, name: str) -> receipt.Receipt:
        return receipt.parse((self.place / f"{name}.json").read_bytes())

    def chain(self) -> list[str]:
        """Return the names of the receipts, each after the one that it follows."""
        files = {p.stem: p.read_bytes() for p in self.place.glob("*.json") if "req" not in p.name}
        after = {receipt.parse(data).previous: name for name, data in files.items()}
        assert len(after) == len(files), "two follow the same one"
        names, last = [], ""
        while last in after:
            names.append(after[last])
            last = receipt.digest(files[names[-1]])
        assert len(names) == len(files), "some are on no chain"
        return names

    def completed(self, name: str) -> str:
        return self.read(name).claims.get(COMPLETES, "")

    def digest(self, name: str) -> str:
        return receipt.digest((self.place / f"{name}.json").read_bytes())


@pytest.fixture
def deployed(tmp_path: Path) -> Deployment:
    """A run that is trained with all silos."""
    made = Deployment(tmp_path)
    made.run()
    return made


def verified(capsys: pytest.CaptureFixture[str], path: Path, *chain: Path) -> tuple[int, str]:
    """Verify a folder, or a receipt with earlier ones; return the exit code and what it says."""
    with pytest.raises(Exit) as ended:
        command(path, chain=[*chain] or None)
    return ended.value.exit_code, capsys.readouterr().out


def test_receipts_that_complete_others_and_later_ones_are_one_chain(
    deployed: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.run("0")
    deployed.run("2", "4", away=[AWAY])
    assert COMPLETES not in deployed.read("3").claims, "the control: it completes nothing"
    deployed.run("6")
    deployed.run("8")
    names = deployed.chain()
    assert names == ["1", "2", "3", "2-complete", "3-complete", "4", "5"]
    for number in ("2", "3"):
        assert deployed.read(number).done.level == "L0"
        assert deployed.read(f"{number}-complete").done.level == "L3"
        assert deployed.completed(f"{number}-complete") == deployed.digest(number)
    code, said = verified(capsys, deployed.place)
    assert code == 0, said
    assert "7 receipts: 7 valid; the history does not fork" in said
    assert "it follows 3.json" in said
    assert "it completes 2.json" in said
    *before, last = (deployed.place / f"{name}.json" for name in names)
    code, said = verified(capsys, last, *before)
    assert code == 0, said
    assert "6 earlier receipts are in order, back to the first" in said
    code, said = verified(capsys, deployed.place / "3-complete.json", *before[:4])
    assert code == 0, said
    assert f"it completes {deployed.digest('3')}" in said
    assert f"completes: {deployed.digest('3')}" in said
    (deployed.place / "3.json").unlink()  # the control: the chain is looked at
    said = verified(capsys, deployed.place)[1]
    assert "the receipt before 2-complete.json is not here, but your own log has it" in said


def test_one_silo_that_is_waited_for_is_spoken_of_as_one(deployed: Deployment) -> None:
    deployed.run("2", away=[AWAY])
    (told,) = [s for s in deployed.read("1").not_covered if "not reached yet" in s]
    assert told.startswith("Records and private values on silo 1, which was not reached yet: ")
    assert told.endswith("before this silo does anything else.")
    both = receipts.on_silos([0, 1])
    assert "on silos 0, 1, which were not reached yet" in both
    assert "before these silos do anything" in both


def test_a_silo_that_is_back_for_one_request_of_two(deployed: Deployment) -> None:
    deployed.run("2", away=[AWAY])
    deployed.run(resume=True)
    deployed.run("4", away=[AWAY])
    deployed.run("6", away=[AWAY])
    deployed.run(resume=True)
    assert deployed.chain() == ["1", "1-complete", "2", "3", "2-complete", "3-complete"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "write", [1, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 5))]
)
def test_a_server_that_was_killed_between_receipts_forks_nothing_and_loses_none(
    write: int, moment: str, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, write_receipt = 0, receipt.write

    def interrupted(issued: receipt.Issued, path: Path) -> Path:
        nonlocal writes
        writes += 1
        if writes == write and moment == "before":
            raise KeyboardInterrupt
        key = write_receipt(issued, path)
        if writes == write:
            raise KeyboardInterrupt
        return key

    monkeypatch.setattr(receipts.receipt, "write", interrupted)
    killed = 0
    for leave, away in ((("2", "4"), [AWAY]), ((), []), (("6",), [])):
        try:
            deployed.run(*leave, away=away, resume=True)
        except KeyboardInterrupt:
            killed += 1
            deployed.run(*leave, resume=True)  # and the silo is back
    assert killed == 1
    names = deployed.chain()
    assert {name.partition("-")[0] for name in names} == {"1", "2", "3"}
    for number in ("1", "2", "3"):
        waited = deployed.read(number).claims[WAITED_FOR] != "none"
        assert (f"{number}-complete" in names) is waited, "whoever waits is told of the end"
        last = f"{number}-complete" if waited else number
        assert deployed.read(last).done.level == "L3"
        assert deployed.completed(last) == (deployed.digest(number) if waited else "")
    if write > 2:
        assert names == ["1", "2", "1-complete", "2-complete", "3"]


def as_before(place: Path, name: str, previous: bytes | None, waits: bool) -> bytes:
    """Write a receipt as earlier versions did: one that completes another does not say so."""
    done = Done({"name": "Gram"}, "Gram", "L0" if waits else "L3", *"abcd", 1, 1, {}, 0.5)
    claims = {CONFIRMED: "0" if waits else "0, 1", WAITED_FOR: "1" if waits else "none"}
    issued = receipt.issue(Withdraw(3), done, [], [], records=5, claims=claims, previous=previous)
    place.mkdir(parents=True, exist_ok=True)
    receipt.write(issued, place / f"{name}.json")
    return (place / f"{name}.json").read_bytes()


def test_a_folder_of_earlier_versions_goes_on_with_its_last_request(
    deployed: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    first = as_before(deployed.place, "9", None, waits=True)
    second = as_before(deployed.place, "10", first, waits=True)
    as_before(deployed.place, "9-complete", first, waits=False)
    as_before(deployed.place, "10-complete", second, waits=False)
    deployed.run("2")
    assert deployed.read("11").previous == deployed.digest("10-complete")
    code, said = verified(capsys, deployed.place)
    assert code == 0, said
    assert "note it completes 9.json" in said
    assert "FORK" not in said
    as_before(deployed.place, "12", first, waits=True)  # the control: a second history
    code, said = verified(capsys, deployed.place)
    assert code == 1
    assert "FORK: 10.json and 12.json" in said


def test_a_damaged_receipt_stops_no_request(deployed: Deployment) -> None:
    deployed.run("2")
    (deployed.place / "1.json").write_text("{}")
    deployed.run("4")
    assert deployed.read("2").previous == deployed.digest("1"), "a gap, and no second history"
