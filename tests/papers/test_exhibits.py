"""Tables of the papers: the map, the verdicts, the formats."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from rescind.errors import ConfigError
from rescind.experiments.recipe import read
from rescind_papers.exhibits import as_csv, compared, latex, markdown, rows
from rescind_papers.index import (
    PLACES,
    Shelf,
    chosen,
    exhibits,
    looked_up,
    picked,
    shown,
)
from rescind_papers.tally import table as counted
from rescind_papers.verdicts import ABSENT, ALONE, BOTH_WORSE, LATER, QUICK, TRIVIAL, WORSE

ROOT = Path(__file__).resolve().parents[2]
WANTED = {
    "fedshare": ("table3", "table4", "fig4", "fig5a", "fig5b", "fig5c", "fig5d"),
    "f3crec": (*(f"table{n}" for n in range(2, 9)), "fig3", "fig4"),
    "fedgcv": ("table1", "fig2", "fig3"),
}

MAP = """
[one]
title = "One"
source = "Somebody, 2026"
absent = ["gowalla"]

[one.authors]
"one/*: */FedAvg" = "one/*: */two"

[one.reasons]
"one/table: ml-1m/*" = "We do not know why."

[[one.exhibit]]
name = "table1"
title = "Table 1: all"
says = "Ours is best."
[[one.exhibit.part]]
recipe = "one/table"
title = "Here"
against = ["ml-1m/FedAvg"]
lower = ["seconds.cpu"]
[one.exhibit.part.printed."ml-1m/nobody's"]
"HR@20" = 0.3
[one.exhibit.part.printed."gowalla/FedAvg"]
"NDCG@20" = 0.2
"""
RECIPE = """
[axes]
data = ["ml-1m", "gowalla"]
method = [
  "Popularity",
  "FedAvg",
  { label = "two", name = "FedAvg", negatives = 2 },
  { label = "four", name = "FedAvg", negatives = 4 },
]
seed = [0, 1, 2]
[table]
columns = ["HR@20", "NDCG@20", "seconds.cpu"]
[paper."ml-1m/FedAvg"]
"HR@20" = 0.45
"NDCG@20" = 0.25
"seconds.cpu" = 2.0
"""
RESULTS = {
    "ml-1m/Popularity": ((0.6, 0.1, 9), (0.7, 0.1, 9), (0.5, 0.1, 9)),
    "ml-1m/FedAvg": ((0.8, 0.20, 3), (0.9, 0.21, 3), (0.7, 0.19, 3)),
    "ml-1m/two": ((0.8, 0.1, 2), (0.8, 0.1, 2), (0.8, 0.11, 2.1)),
    "ml-1m/four": ((0.9, 0.30, 1), (0.9, 0.32, 1), (0.9, 0.28, 1)),
}


@pytest.fixture
def shelf(tmp_path) -> Shelf:
    (tmp_path / "papers.toml").write_text(MAP)
    (tmp_path / "one").mkdir()
    path = tmp_path / "one" / "table.toml"
    path.write_text(RECIPE)
    recipe = read(path)
    digests = {cell.name: cell.digest for cell in recipe.cells}
    lines = [
        {"cell": cell, "seed": seed, "digest": digests[cell],
         "test": {"HR@20": hr, "NDCG@20": ndcg}, "seconds": {"cpu": cpu}}
        for cell, seeds in RESULTS.items()
        for seed, (hr, ndcg, cpu) in enumerate(seeds)
    ]  # fmt: skip
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Shelf(tmp_path)


def test_the_map_has_every_table_and_figure_and_only_recipes_that_exist():
    found = exhibits(ROOT / "recipes")
    assert [e.place for e in found] == [f"{p}/{n}" for p, names in WANTED.items() for n in names]
    shelf = Shelf(ROOT / "recipes")
    for exhibit in found:
        for part in exhibit.parts:
            recipe = shelf.recipe(part.recipe)
            assert shown(recipe, part), f"{exhibit.place}: no cell of {part.recipe} fits"
            paths = {c.path for c in picked(recipe, part)}
            assert set(part.lower) <= paths
            assert all(base in recipe.names for base in part.against)
            assert not exhibit.figure or exhibit.derive or part.plot or recipe.plot


def test_rows_hold_every_number_with_its_verdict(shelf):
    (exhibit,) = chosen(shelf.folder, "one")
    found = {(r.entry.cell, r.entry.metric): r for r in rows(exhibit, shelf)}
    assert found["ml-1m/FedAvg", "HR@20"].verdict == TRIVIAL  # popularity has .6
    assert found["ml-1m/FedAvg", "NDCG@20"].verdict == BOTH_WORSE
    assert found["ml-1m/FedAvg", "seconds.cpu"].verdict == WORSE  # lower is better
    assert found["ml-1m/four", "HR@20"].verdict == ALONE
    # What is only printed is held against popularity, too, and has the verdict of its data.
    assert "below popularity" in found["ml-1m/nobody's", "HR@20"].entry.published()
    assert found["ml-1m/nobody's", "HR@20"].verdict == LATER
    assert found["gowalla/FedAvg", "NDCG@20"].verdict == ABSENT
    assert found["gowalla/FedAvg", "NDCG@20"].entry.paper == 0.2


def test_formats_say_the_same(shelf):
    (exhibit,) = chosen(shelf.folder, "one/table1")
    found = rows(exhibit, shelf)
    text = markdown(exhibit, found)
    assert (
        "| ml-1m/FedAvg | NDCG@20 | 0.2500 | 0.1033 ± 0.0058 | 0.2000 ± 0.0100 | 3 "
        "| worse, and so is the authors' method here |"
    ) in text
    assert "Why worse, or not comparable:\n\n- `ml-1m/*`: We do not know why." in text
    assert "`rescind run one/table`" in text
    assert "The paper: Ours is best." in text
    lines = list(csv.DictReader(io.StringIO(as_csv(exhibit, found))))
    assert len(lines) == len(found)
    mine = next(x for x in lines if (x["cell"], x["measure"]) == ("ml-1m/FedAvg", "NDCG@20"))
    assert (mine["mean"], mine["paper"], mine["runs"]) == ("0.2", "0.25", "3")
    assert mine["reason"] == "We do not know why."
    made = latex(exhibit, found)
    assert made.count(r"\begin{tabular}") == made.count(r"\end{tabular}") == 1
    assert r"0.2000 $\pm$ 0.0100" in made
    assert "±" not in made


def test_a_quick_number_says_so_and_is_not_judged(shelf):
    (exhibit,) = chosen(shelf.folder, "one/table1")
    found = rows(exhibit, shelf, quick={"one/table: ml-1m/FedAvg": "2 rounds on ml-100k"})
    mine = [r for r in found if r.entry.values]
    assert all(r.ours.endswith("(quick)") and r.verdict == QUICK for r in mine)
    assert {r.quick for r in mine if r.entry.cell == "ml-1m/FedAvg"} == {"2 rounds on ml-100k"}


def test_rows_are_tested_against_the_cell_that_is_named(shelf):
    (exhibit,) = chosen(shelf.folder, "one/table1")
    text = compared(exhibit, shelf)
    # Three other cells with three measures; three of these differ by the same at every seed.
    assert "9 comparisons, 6 of them tested" in text
    assert "| ml-1m/four | NDCG@20 | 3 | **+0.1000** |" in text


def test_a_summary_counts_what_is_printed(shelf):
    text = counted(chosen(shelf.folder, None), shelf)
    # reproduced, better, worse, both worse, not comparable, no verdict, not run yet
    assert text.endswith("| all | 5 | 0 | 0 | 1 | 1 | 2 | 0 | 1 |")


def test_the_map_names_places_that_are_shown():
    shelf, used = Shelf(ROOT / "recipes"), set()
    every = exhibits(shelf.folder)
    for exhibit in every:
        for part in exhibit.parts:
            for cell in shown(shelf.recipe(part.recipe), part):
                found = [
                    looked_up(getattr(exhibit, t), f"{part.recipe}: {cell.name}") for t in PLACES
                ]
                used |= {(exhibit.paper, t, f[0]) for t, f in zip(PLACES, found, strict=True) if f}
    given = {(e.paper, t, place) for e in every for t in PLACES for place in getattr(e, t)}
    assert given == used


def test_a_place_of_the_map_must_make_sense(shelf):
    def changed(old: str, new: str) -> None:
        (shelf.folder / "papers.toml").write_text(MAP.replace(old, new))

    changed('"one/table: ml-1m/*" =', '"one/*: *" =')
    with pytest.raises(ConfigError, match="for one recipe"):
        exhibits(shelf.folder)
    changed("[one.reasons]", '[one.apart]\n"one/table: *" = "other date"\n[one.reasons]')
    with pytest.raises(ConfigError, match="did you mean 'other data'"):
        exhibits(shelf.folder)
    changed('"one/*: */FedAvg" = "one/*: */two"', '"one/table: ml-1m/FedAvg" = "one/table: tow"')
    (exhibit,) = chosen(shelf.folder, None)
    with pytest.raises(ConfigError, match="has no cell 'tow'"):
        rows(exhibit, shelf)


def test_what_is_not_there_is_said(shelf, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'one/table1'"):
        chosen(shelf.folder, "one/tabel1")
    with pytest.raises(ConfigError, match="A checkout has it"):
        exhibits(tmp_path / "nowhere")
    (tmp_path / "papers.toml").write_text(MAP.replace("one/table", "one/tabel"))
    (exhibit,) = chosen(tmp_path, None)
    with pytest.raises(ConfigError, match="there is no"):
        rows(exhibit, Shelf(tmp_path))
    (tmp_path / "papers.toml").write_text(MAP.replace("lower =", "lowre ="))
    with pytest.raises(ConfigError, match="did you mean 'lower'"):
        exhibits(tmp_path)


def test_popularity_of_another_recipe_is_a_floor_where_the_map_says_so(shelf):
    floor = shelf.folder / "one" / "floor.toml"
    floor.write_text('[axes]\ndata = ["gowalla"]\nmethod = ["Popularity"]\nseed = [0]\n')
    digest = read(floor).cells[0].digest
    line = {"cell": "gowalla/Popularity", "seed": 0, "digest": digest, "test": {"NDCG@20": 0.3}}
    floor.with_suffix(".jsonl").write_text(json.dumps(line) + "\n")

    def published() -> str:
        (exhibit,) = chosen(shelf.folder, "one")
        found = {(r.entry.cell, r.entry.metric): r for r in rows(exhibit, Shelf(shelf.folder))}
        return found["gowalla/FedAvg", "NDCG@20"].entry.published()

    assert published() == "0.2000"
    text = MAP.replace('title = "Here"', 'title = "Here"\nfloors = ["one/floor"]')
    (shelf.folder / "papers.toml").write_text(text)
    assert published() == "0.2000 (below popularity)"
