"""Broken recipes, results, runs and folders: exit code 2 and a sentence, never a traceback."""

from __future__ import annotations

import copy
import errno
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from command_line import rescind
from rescind.errors import RescindError
from rescind.experiments import recipe_file
from rescind.experiments.recipe import read
from rescind.experiments.table_forms import markdown
from rescind.experiments.tables import collect, remarks

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*/*.toml"))
Ask = Callable[..., tuple[int, str]]

WRONG: list[Any] = [
    True, 0, -1, 10**30, 2**63, -(2**62), 1e308, 1e-300, float("nan"), float("inf"), 0.5, "", "x",
    "none", "1 s", "\0", "a" * 5000, [], [1], ["x"], [[]], {}, {"name": 1}, {"x": {}}, [{}],
    [{"name": []}], [{"name": "FedAvg", "run": 1}], [{"where": 1, "name": "a"}],
    [{"label": [], "method": "x"}], date(2024, 5, 1),
]  # fmt: skip
NUMBERS: list[Any] = [0, -1, 1, 7, 10**6, 2**62, -(2**62), 1e-30, 1e-300, -0.5, 0.5, 1e30, 1e300]
TINY: dict[str, Any] = {
    "title": "tiny",
    "data": {"name": "synthetic", "users": 30, "items": 40, "interactions": 400, "core": 2},
    "sharing": {"ratio": [1, 2, 7], "part": 0.3},
    "method": {
        "name": "FedAvg", "negatives": 2, "rate": 0.1, "epochs": 1, "clients_per_round": 8,
        "weight_decay": 0.01, "private_rate": 0.1, "model": {"name": "MF", "dim": 4},
    },
    "guards": {"clip": 1.0, "gaussian": 0.5, "delta": 1e-5},
    "run": {"rounds": 1, "evaluate_every": 1, "k": [5], "measure": "NDCG@5", "valid_users": 5},
}  # fmt: skip


@dataclass
class Dice:
    """Numbers from a seed and a counter, the same on every machine."""

    seed: int
    rolled: int = 0

    def pick(self, choices: list[Any]) -> Any:
        self.rolled += 1
        digest = sha256(f"{self.seed}/{self.rolled}".encode()).digest()
        return choices[int.from_bytes(digest[:8], "big") % len(choices)]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and every index of a table, as a path."""
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else listed:
        yield (*at, key)
        yield from places(one, (*at, key))


def mutated(table: dict[str, Any], dice: Dice, values: list[Any], numbers: bool) -> dict[str, Any]:
    """A table with one or two places removed, replaced, scaled or added."""
    table = copy.deepcopy(table)
    for _ in range(dice.pick([1, 1, 1, 2])):
        path = dice.pick([p for p in places(table) if not numbers or is_number(table, p)])
        *parents, last = path
        place: Any = table
        for key in parents:
            place = place[key]
        act = "replace" if numbers else dice.pick(["replace"] * 5 + ["remove", "add", "more"])
        if act == "remove":
            del place[last]
        elif act == "add" and isinstance(place, dict):
            place[dice.pick(["x", "name", "seed", "where", "run", "label", "columns"])] = 3
        elif act == "more" and isinstance(place[last], str):
            place[last] += dice.pick(["x", " s", "/../..", "\n"])
        else:
            place[last] = copy.deepcopy(dice.pick(values))
    return table


def is_number(table: Any, path: tuple[Any, ...]) -> bool:
    for key in path:
        table = table[key]
    return isinstance(table, int | float) and not isinstance(table, bool)


def mutate_recipes(folder: Path, seed: int, count: int) -> int:
    """Read mutated recipes and make their tables; return how many are refused."""
    dice, refused, path = Dice(seed), 0, folder / "mutated.toml"
    known = {one: tomllib.loads(one.read_text("utf-8")) for one in RECIPES}
    for _ in range(count):
        table = mutated(known[dice.pick(RECIPES)], dice, WRONG, numbers=False)
        path.write_text(tomli_w.dumps(table), "utf-8")
        try:
            recipe_file.check(path, (), None)
            made = collect(read(path), ())
            markdown(made), remarks(made)
        except RescindError:
            refused += 1
    return refused


def test_a_mutated_recipe_is_read_or_refused_in_words(tmp_path):
    assert 40 <= mutate_recipes(tmp_path, seed=1, count=100) < 100


@pytest.mark.slow
@pytest.mark.security
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_1500_mutated_recipes_are_read_or_refused_in_words(tmp_path, seed):
    assert 200 <= mutate_recipes(tmp_path, seed, count=500) < 500


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Run a command as a user does; whatever is no clean end fails here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESCIND_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))

    return rescind


def refused(answer: tuple[int, str], *words: str) -> None:
    code, text = answer
    assert code == 2, text
    assert "error: " in text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


@pytest.mark.slow
@pytest.mark.security
@pytest.mark.parametrize("seed", [1, 2])
def test_runs_of_mutated_numbers_end_well_or_with_two(ask, tmp_path, seed):
    dice, codes = Dice(seed), set()
    for _ in range(80):
        table = mutated(TINY, dice, NUMBERS, numbers=True)
        if not 0 < table["run"]["rounds"] < 9 or table["method"]["epochs"] > 9:
            continue  # as long as it was asked for
        (tmp_path / "tiny.toml").write_text(tomli_w.dumps(table), "utf-8")
        code, text = ask("run", "tiny.toml", "--out", "out")
        codes.add(code)
        assert code in (0, 2), (table, text)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert codes == {0, 2}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"method": {"model": {"name": "MF", "dim": -(2**62)}}}, ["MF.dim", "1 to"]),
        ({"guards": {"clip": 1.0, "gaussian": 1e-300}}, ["guards.gaussian", "1e-30"]),
        ({"run": {"rounds": date(2024, 5, 1)}}, ["run.rounds", "date"]),
        ({"axes": {"data": ["synthetic"] * 200, "method": ["FedAvg"] * 200}}, ["40000 cells"]),
    ],
)
def test_a_setting_that_no_run_can_have_is_named(ask, tmp_path, table, words):
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps({**TINY, **table}), "utf-8")
    refused(ask("run", "tiny.toml", "--out", "out"), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line",
    [
        b"[]", b"\xff\xfe", b"[" * 50_000,
        b'{"cell": "tiny", "seed": "0", "digest": "x", "test": {}}',
        b'{"cell": "tiny", "seed": 0, "digest": "x", "test": {}, "settings": 3}',
    ],
)  # fmt: skip
def test_broken_results_are_named_by_table(ask, tmp_path, line):
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(TINY), "utf-8")
    (tmp_path / "tiny.jsonl").write_bytes(line + b"\n")
    refused(ask("table", "tiny.toml"), "tiny.jsonl")
    refused(ask("table", "tiny.toml", "--json", "--metric", "HR@20"), "tiny.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    from rescind.experiments.recipe import read as read_recipe
    from rescind.experiments.unlearning_run import TrialCache, run_one

    home = tmp_path_factory.mktemp("finished")
    table = {**TINY, "guards": {}, "sharing": {"ratio": [1, 2, 7]}}
    (home / "tiny.toml").write_text(tomli_w.dumps(table), "utf-8")
    (cell,) = read_recipe(home / "tiny.toml").cells
    run_one(cell, home / "run", TrialCache(home, False, 1), False)
    return home / "run"


BROKEN = [
    b"", b"\0\0", b"[]", b"3", b"null", b"{}", b'{"users"', b"\xff\xfe{}", b"[" * 100_000,
    b'{"users": 3, "items": {"a": 1}}', b'{"users": [1, [2]], "items": ["a"], "titles": 5}',
]  # fmt: skip


@pytest.mark.parametrize("file", ["model/labels/*.json", "run.json"])
def test_a_run_with_a_broken_file_is_refused_in_words(ask, finished, tmp_path, file):
    run = tmp_path / "copy"
    shutil.copytree(finished, run)
    path = next(run.glob(file), run / file)
    named = path.stem
    for content in BROKEN:
        path.write_bytes(content)
        refused(ask("forget", run, "--user", "1"), named)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_to_is_named(ask, finished, tmp_path, monkeypatch, code):
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(TINY), "utf-8")
    mkdir = Path.mkdir

    def refuses(path: Path, *given: Any, **more: Any) -> None:
        if "locked" in path.parts:  # what the operating system answers; root may write anywhere
            raise OSError(code, os.strerror(code), str(path))
        mkdir(path, *given, **more)

    monkeypatch.setattr(Path, "mkdir", refuses)
    refused(ask("run", "tiny.toml", "--out", "locked/out"), "locked")
    monkeypatch.setenv("RESCIND_HOME", str(tmp_path / "locked" / "home"))
    run = tmp_path / "copy"
    shutil.copytree(finished, run)
    refused(ask("forget", run, "--user", "1"), "locked")
    assert json.loads((run / "run.json").read_text())["model"], "the run is as it was"


def test_memory_that_is_not_there_is_said_and_a_defect_still_shows(ask, monkeypatch):
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 TB")):
        monkeypatch.setattr("rescind.cli._ask", lambda error=error: _raise(error))
        refused(ask("demo"), "not enough memory")
    for defect in (RuntimeError("shapes differ"), KeyError("x"), OSError("no code")):
        monkeypatch.setattr("rescind.cli._ask", lambda error=defect: _raise(error))
        with pytest.raises(type(defect)):
            ask("demo")


def _raise(error: Exception) -> None:
    raise error
