"""Every list of who left names them by original id: data that grows may number people anew.

`min_user = 3` leaves the rare user out, who is the first of the file. Two more rows let them in,
and everybody else gets the next number. For silos: `tests/flower/test_numbered_anew.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from requesting import ask, ask_of
from rescind.data import Dataset, import_file, load, min_user
from rescind.data.blocklist import Blocklist
from rescind.data.importing import append_file
from rescind.experiments import stream_run
from rescind.experiments.cell import Cell, DataSettings, RunSettings
from rescind.experiments.learning_run import Result, run_cell
from rescind.home import Ledger
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.continual.f3crec import F3CRec
from rescind.models.mf import MF
from rescind.requests.adding import add_words
from rescind.requests.answer import answer
from rescind.requests.words import Words

RARE, EVE, OTHER = "rare", "user 4", "user 3"
"""Eve withdraws. When the rare user is let in, the number that was hers is the other's."""
USERS = [f"user {n}" for n in range(12)]
DATA = DataSettings(name="shop", min_user=3)
CELL = Cell("c", DATA, None, Gram(), RunSettings(rounds=1, evaluate_every=1))


@pytest.fixture(autouse=True)
def shop(tmp_path: Path) -> Path:
    """An imported dataset whose first user has too few rows to count."""
    rows = [f"{RARE},item 0,1", f"{RARE},item 1,2"]
    rows += [f"{u},item {(n * 5 + k) % 17},{100 * k + n + 3}" for n, u in enumerate(USERS)
             for k in range(8)]  # fmt: skip
    (tmp_path / "shop.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    import_file(tmp_path / "shop.csv", "shop")
    return tmp_path


def numbered_anew(shop: Path) -> None:
    """Let the rare user in: everybody else gets the next number."""
    then = _users()
    (shop / "later.csv").write_text(f"user,item,time\n{RARE},item 2,1\n{RARE},item 3,2\n")
    append_file("shop", shop / "later.csv")
    assert EVE not in then or _users()[then.index(EVE)] == OTHER, "her number is another's"


def _users() -> list[str]:
    """Return who passes the filter, in the order of numbers, with those who left."""
    data = load("shop", erased_too=True)
    assert isinstance(data, Dataset)
    return min_user(data, 3).users.tolist()


def learnt(result: Result) -> set[str]:
    """Return the users whose records a run has learnt from, in any block."""
    fed = result.fed
    past = fed.now.vault.holdings.records.client.unique().tolist()
    return {fed.labels.user_id(client) for client in past}


@pytest.mark.parametrize("control", [False, True], ids=["by id", "by number"])
def test_who_left_stays_away_from_later_runs(control: bool, shop: Path) -> None:
    run = shop / "run"
    assert EVE in learnt(run_cell(CELL, run))
    if control:
        Blocklist().with_withdrawn(str(USERS.index(EVE))).add_to("shop")
    else:
        ask("shop", "leave", EVE)
    numbered_anew(shop)
    assert (learnt(run_cell(CELL, shop / "later")) == {*USERS, RARE} - {EVE}) is not control


def test_who_left_a_stream_stays_away_from_every_block(shop: Path) -> None:
    data = replace(DATA, variant="blocks")
    method = F3CRec(model=MF(dim=4), top_n=4, negatives=2, batch_size=16)
    cell = Cell("c", data, None, method, RunSettings(rounds=1, evaluate_every=1, patience=1))
    run = shop / "run"
    stream_run.run_cell(cell, run)
    ask_of(run, "leave", EVE)
    numbered_anew(shop)
    result = stream_run.run_cell(cell, run)
    assert EVE not in result.fed.labels.users
    assert result.facts["data"]["users"] == len(USERS)


def test_a_request_that_waited_while_data_grew_is_about_the_same_person(shop: Path) -> None:
    run, cell = shop / "run", replace(CELL, method=FedAvg(model=MF(dim=4)))
    run_cell(cell, run)
    with Ledger.open() as ledger:
        (request,) = add_words(ledger, "shop", [Words("leave", {EVE: None})])
    numbered_anew(shop)
    trained = run_cell(cell, run)
    assert trained.fed.labels.user_id(USERS.index(EVE)) == OTHER, "the control"
    with Ledger.open() as ledger:
        assert answer(ledger, request.id).outcome == "ERASED"
    assert learnt(run_cell(cell, run)) == {*USERS, RARE} - {EVE}
