"""A list for one user, made from a few files of a saved federation without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import rescind as rs
from rescind.cli import app
from rescind.core import params
from rescind.core.digests import array_digest
from rescind.errors import DataError
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.quick_lists import open_saved, recommend

METHODS = {
    "gram": (rs.methods.Gram(), 1),
    "local": (rs.methods.LocalGram(model=rs.models.LocalWeights(many=20)), 1),
    "fedshare": (rs.methods.FedShare(), 1),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One saved federation of each kind; some people lend, one has withdrawn."""
    folder = tmp_path_factory.mktemp("runs")
    data = rs.load("synthetic", users=300, items=90, interactions=6000)
    for name, (method, rounds) in METHODS.items():
        fed = rs.simulate_lending(rs.Federation.start(data, method, seed=0)).run(rounds=rounds)
        save_federation(fed.apply(rs.Withdraw(fed.labels.user_id(7))), folder / name)
    return folder


@pytest.mark.parametrize("name", ["gram", "local"])
def test_lists_are_those_of_the_federation(runs, name):
    fed, saved = load_federation(runs / name), open_saved(runs / name)
    assert saved is not None
    for client in (*range(6), *range(8, 300, 17)):
        user = fed.labels.user_id(client)
        true, mine = fed.recommend(user, 12), recommend(saved, user, 12, None)
        assert mine is not None
        has = fed.now.vault.holdings.records.of_clients(torch.tensor([client])).item.tolist()
        assert not {r.item for r in mine} & {fed.labels.item_id(i) for i in has}
        assert [(r.item, r.title, r.because) for r in mine] == [
            (r.item, r.title, r.because) for r in true
        ]
        assert [r.score for r in mine] == pytest.approx([r.score for r in true], abs=1e-6)
    another = recommend(saved, fed.labels.user_id(8), 12, None)
    assert another != recommend(saved, fed.labels.user_id(9), 12, None)  # a list of one's own


@pytest.mark.parametrize("name", ["gram", "local"])
def test_a_history_is_scored_as_by_the_federation(runs, name):
    fed, saved = load_federation(runs / name), open_saved(runs / name)
    items = [fed.labels.item_id(i) for i in (40, 3, 11)]
    true, mine = fed.recommend(history=items), recommend(saved, None, 20, items)
    assert [(r.item, r.score) for r in mine] == [(r.item, r.score) for r in true]


def test_what_is_unusual_is_left_to_the_federation(runs):
    saved = open_saved(runs / "gram")
    gone = saved.labels.user_id(7)  # who has withdrawn, and whose id is gone, too
    assert recommend(saved, gone, 5, None) is None
    assert recommend(open_saved(runs / "fedshare"), "3", 5, None) is None
    with pytest.raises(DataError, match="no user 'nobody'"):
        recommend(saved, "nobody", 5, None)


def test_digests_are_those_of_a_loaded_federation(runs):
    for name in METHODS:
        fed, saved = load_federation(runs / name), open_saved(runs / name)
        assert saved.model_digest() == params.digest(fed.now.state.public)
        assert saved.data_digest() == fed.now.vault.holdings.digest()


def test_the_digest_of_a_number_by_itself_is_that_of_its_tensor():
    for value in (torch.tensor(3.0), torch.zeros(0), torch.arange(4).view(2, 2)):
        assert array_digest({"x": value.numpy()}) == params.digest({"x": value})


def test_a_changed_file_is_refused(runs, tmp_path):
    import shutil

    folder = shutil.copytree(runs / "gram", tmp_path / "gram")
    assert recommend(open_saved(folder), "3", 5, None)
    for path in (folder / "labels").iterdir():
        path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DataError, match="does not match the digest"):
        open_saved(folder)
    head = folder / "server.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x07")
    assert open_saved(folder) is None  # the load of the whole says what is wrong
    said = CliRunner().invoke(app, ["recommend", str(folder), "--user", "3"])
    assert isinstance(said.exception, DataError)


@pytest.mark.parametrize("name", ["gram", "local"])
def test_the_command_loads_no_torch(runs, name):
    look = """
import sys
from typer.testing import CliRunner
from rescind.cli import app
said = CliRunner().invoke(app, ["recommend", sys.argv[1], "--user", "3", "-k", "7", "--json"])
assert said.exit_code == 0, said.output
print(said.stdout)
heavy = ("torch", "numba", "scipy", "pyarrow", "cryptography")
print([name for name in heavy if name in sys.modules])
"""
    done = [sys.executable, "-c", look, str(runs / name)]
    out = subprocess.run(done, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[-1] == "[]"
    true = load_federation(runs / name).recommend("3", 7)
    found = json.loads(out[0])["items"]
    assert [one["item"] for one in found] == [r.item for r in true]
    assert np.isclose(found[0]["score"], true[0].score, atol=1e-6)
