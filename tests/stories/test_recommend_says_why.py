"""`rescind recommend` says why somebody gets what is popular, and it is true."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

import rescind as rs
from rescind.cli import app
from rescind.core.labels import Labels
from rescind.core.records import Arrive, Erase, Records
from rescind.storage.federations import save_federation
from worlds import tiny_holdings

CLIENTS, ITEMS = 8, 12


def told(fed: rs.Federation, folder: Path, user: int) -> str:
    save_federation(fed, folder)
    said = CliRunner().invoke(app, ["recommend", str(folder), "--user", str(user)])
    assert said.exit_code == 0, said.output
    return said.output.splitlines()[0].partition(", from ")[2]


def test_a_list_of_popular_items_says_why_it_is_one(tmp_path: Path) -> None:
    names = Labels(tuple(map(str, range(CLIENTS))), tuple(f"film {n}" for n in range(ITEMS)))
    holdings = tiny_holdings(CLIENTS, ITEMS)
    fed = rs.Federation.start(holdings, rs.methods.Gram(), labels=names).run(1)
    learnt, one, three = (holdings.part(torch.tensor([n])) for n in (2, 3, 3))
    assert told(fed, tmp_path / "1", 3) == "Gram", "control: something of theirs was learnt"
    fed = fed.apply(Erase(one.records[one.split == 0]))
    rows = int((three.split != 0).sum())
    assert rows > 1
    why = f"popularity: all {rows} rows of this user are held out to measure the run"
    assert told(fed, tmp_path / "2", 3) == why
    fed = fed.apply(Erase(one.records[one.split == 1]))
    only = "popularity: the only row of this user is held out to measure the run"
    assert told(fed, tmp_path / "3", 3) == only
    fed = fed.apply(Erase(learnt.records))
    assert told(fed, tmp_path / "4", 2) == "popularity: this user has no data"
    new = Records.of(torch.tensor([0, 1]), torch.tensor([5, 6]))
    fed = fed.apply(Arrive(new, torch.zeros(2, dtype=torch.int8), CLIENTS, ITEMS))
    earlier = "popularity: what this user has came with earlier blocks, and lists are made from the"
    assert told(fed, tmp_path / "5", 3) == f"{earlier} newest"
