"""The notebooks run from top to bottom, in small, and are committed without outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rescind.errors import ConfigError
from rescind.experiments.recipe import read

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code(path: Path, quick: bool) -> list[str]:
    """The code cells; in small, the cell of parameters is what the notebook says is quick."""
    notebook = json.loads(path.read_text("utf-8"))
    small, out = notebook["metadata"]["rescind"]["quick"], []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            chosen = quick and "parameters" in cell["metadata"].get("tags", ())
            out.append(small if chosen else "".join(cell["source"]))
    return out


def played(path: Path) -> dict[str, Any]:
    """Everything that is defined after the last cell of a quick run."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(code(path, quick=True), 1):
        exec(compile(cell, f"{path.name}, cell {number}", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_carries_nothing_that_could_be_stale(path):
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    first = [ast.parse(text) for text in (code(path, False)[0], code(path, True)[0])]
    full, quick = ({ast.unparse(n.targets[0]) for n in tree.body} for tree in first)
    assert full == quick, "the quick form sets other parameters than the notebook has"


def test_fit_add_forget_runs(capsys):
    names = played(ROOT / "notebooks" / "fit-add-forget.ipynb")
    told = capsys.readouterr().out
    assert "the same as never there: True" in told
    assert "there is no user 'visitor'" in told
    assert names["scores"]["HR@20"] > 0
    assert names["loaded"].users == names["model"].users


def test_what_comes_next_runs(capsys):
    names = played(ROOT / "notebooks" / "what-comes-next.ipynb")
    told = capsys.readouterr().out
    assert "the same as never there: True" in told
    assert "the same with the record left in: False" in told
    assert names["forwards"] != names["backwards"], "the order counts"
    assert names["scores"]["SeqGram"]["HR@10"] > 0


def test_the_method_of_the_notebook_is_a_file_that_its_recipe_reads(tmp_path):
    path = ROOT / "notebooks" / "add-your-own-method.ipynb"
    (mine,) = (text for text in code(path, True) if "class TowardsTheMean" in text)
    cells = json.loads(path.read_text("utf-8"))["cells"]
    (recipe,) = re.findall(r"```toml\n(.*?)```", "".join("".join(c["source"]) for c in cells), re.S)
    (tmp_path / "mine.toml").write_text(recipe)
    with pytest.raises(ConfigError, match=r"mean\.py"):
        read(tmp_path / "mine.toml")  # the control: the file is not there yet
    (tmp_path / "mean.py").write_text(mine)
    found = {type(cell.forget.unlearner).__name__ for cell in read(tmp_path / "mine.toml").cells}
    assert "TowardsTheMean" in found
    assert len(found) == 3


@pytest.mark.slow
def test_erasure_in_production_runs(capsys):
    names = played(ROOT / "notebooks" / "erasure-in-production.ipynb")
    assert (names["code"], names["again"]) == (0, 0), capsys.readouterr().out
    assert set(names["checks"].values()) == {0}
    assert set(names["own"].values()) == {0}
    assert all(names["controls"].values()), "a forged receipt and a foreign proof are refused"
    assert not list(names["here"].rglob("*.zip")), "what was sent is deleted"


def test_share_regret_forget_runs(capsys):
    names = played(ROOT / "notebooks" / "share-regret-forget.ipynb")
    assert "the audit says" in capsys.readouterr().out
    assert len(names["gone"].world.shared) < len(names["fed"].world.shared)
    assert names["evidence"].report.findings


def test_a_method_of_one_file_is_judged(capsys):
    path = ROOT / "notebooks" / "add-your-own-method.ipynb"
    names = played(path)
    assert set(names["reports"]) == {"Retrain", "TowardsTheMean", "Nothing"}
    assert all(report.findings for report in names["reports"].values())
    (source,) = [text for text in code(path, False) if "class TowardsTheMean" in text]
    (made,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
    assert made.end_lineno - made.lineno < 35
    # It does what it says: rows move as far as their loans went, and nothing else does.
    before, after = names["fed"].world, names["fed"].apply(names["event"]).world
    table = names["fed"].now.state.public["item"]
    moved = names["TowardsTheMean"]().server_blur(before, after, {"item": table})["item"]
    gone = before.shared[~before.shared.among(after.shared)].item.unique()
    still = [i for i in range(len(table)) if i not in set(gone.tolist())]
    assert (moved[still] == table[still]).all()
    assert (moved[gone] != table[gone]).any(1).all()
