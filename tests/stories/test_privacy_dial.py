"""The dial from a recipe to the receipt: set, run, written down, forgotten under, verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from requesting import newest_receipt
from rescind.cli import main
from rescind.experiments.recipe import read
from rescind.methods.additive.gram import Gram
from rescind.receipts.receipt import canonical
from rescind.storage.federations import load_federation

ROOT = Path(__file__).parents[2]
RECIPE = """
title = "A dial"

[data]
name = "synthetic"
users = 60
items = 40
interactions = 900

[sharing]
ratio = [1, 1, 1]
part = 0.5

[method]
name = "Gram"
release = "neighbours"
release_size = 10
noise = 2.0
longest_history = 4
release_every = 3
servers = 2

[run]
rounds = 1
evaluate_every = 1
"""


@pytest.fixture
def rescind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dial.toml").write_text(RECIPE, encoding="utf-8")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rescind", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_a_recipe_turns_the_dial_and_everything_says_so(rescind, tmp_path):
    assert rescind("run", "dial.toml", "--out", "run")[0] == 0
    (path,) = tmp_path.glob("run/**/run.json")
    run, facts = path.parent, json.loads(path.read_text("utf-8"))
    told = facts["settings"]["method"]
    assert (told["noise"], told["servers"], told["release_every"]) == (2.0, 2, 3)
    assert "10 largest weights" in facts["published"]["what"]
    assert facts["published"]["releases"] == 1
    assert facts["privacy"]["epsilon"] == facts["published"]["epsilon"] > 0
    assert "lent and kept" in facts["privacy"]["protects"]

    fed = load_federation(run / "model")
    assert fed.method.published(fed)["epsilon"] == facts["published"]["epsilon"]
    user = fed.labels.user_id(int(fed.world.announced.keeps.nonzero()[0]))
    code, out, _ = rescind("forget", str(run), "--user", user)
    assert code == 0, out
    receipt = newest_receipt(run)
    assert receipt.done.method["longest_history"] == 4
    assert receipt.done.level == "L1"
    assert receipt.claims["next release"] == "due when 2 more people have changed something"
    assert "at delta 1e-05, 1 releases" in receipt.claims["epsilon"]
    code, out, _ = rescind("verify", "--run", str(run), "--data", str(run))
    assert code == 0, out
    assert "bit for bit" in out

    assert rescind("release", str(run))[0] == 0
    again = json.loads((run / "run.json").read_text("utf-8"))
    assert again["published"]["releases"] == 2
    assert again["privacy"]["epsilon"] > facts["privacy"]["epsilon"]


def test_a_receipt_that_was_tampered_with_does_not_verify(rescind, tmp_path):
    assert rescind("run", "dial.toml", "--out", "run")[0] == 0
    (path,) = tmp_path.glob("run/**/run.json")
    fed = load_federation(path.parent / "model")
    user = fed.labels.user_id(int(fed.world.announced.keeps.nonzero()[0]))
    rescind("forget", str(path.parent), "--user", user)
    text = canonical(newest_receipt(path.parent)).decode()
    stated = json.loads(text)["claims"]["sum after"]
    other = stated[:-1] + ("0" if stated[-1] != "0" else "1")
    changed = tmp_path / "receipt.json"
    changed.write_text(text.replace(stated, other), encoding="utf-8")
    code, out, _ = rescind("verify", str(changed), "--data", str(path.parent))
    assert code == 1
    assert "NOT VALID" in out
    assert "its signature" in out
    assert "not to the stated sum" not in out, "nothing more is said of a file that was changed"


def test_contradictions_end_with_two_and_no_traceback(rescind):
    for change, said in (
        ("method.longest_history=0", "needs longest_history"),
        ("method.min_count=5", "exact counts"),
        ("method.servers=3", "servers"),
        ("method.release_every=0", "release_every"),
    ):
        code, _, err = rescind("run", "dial.toml", "--set", change)
        assert code == 2
        assert said in err
        assert "Traceback" not in err


def test_labels_of_the_cells_with_noise_state_their_epsilon():
    from rescind.privacy.gaussian import epsilon_of

    recipe = read(ROOT / "recipes" / "additive" / "releases.toml")
    noisy = [c for c in recipe.cells if isinstance(c.method, Gram) and c.method.noise]
    assert noisy
    for cell in noisy:
        stated = float(cell.name.rsplit("epsilon ", 1)[1].partition(",")[0])
        method = cell.method
        assert isinstance(method, Gram)
        assert epsilon_of(method.noise, method.delta) == pytest.approx(stated, rel=0.01)
