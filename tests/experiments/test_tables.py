"""Tables and figures of results that were written down: floors, pairs, sweeps."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
import tomli_w

from rescind.errors import ConfigError, DataError
from rescind.experiments.recipe import Recipe, read
from rescind.experiments.significance import (
    ENOUGH,
    Difference,
    differences,
    on_few_seeds,
    remark,
)
from rescind.experiments.sweeps import draw, sweeps
from rescind.experiments.table_forms import markdown
from rescind.experiments.tables import _floor_of_print, collect, remarks

RECIPE = """
[axes]
data = ["ml-100k", "ml-1m"]
method = ["Popularity", "EASE", "FedAvg", { label = "four", name = "FedAvg", negatives = 4 }]
seed = [0, 1, 2]
[paper."ml-1m/FedAvg"]
"HR@20" = 0.45
"NDCG@20" = 0.25
[paper."ml-100k/FedAvg"]
"HR@20" = 0.45
"""

SWEEP = """
[axes]
method = [
  { label = "a", name = "FedAvg" },
  { label = "b", name = "FedAvg", loss = "bce" },
]
sharing = [{ label = "few", ratio = [1, 1, 8] }, { label = "many", ratio = [5, 5, 0] }]
seed = [0, 1]
[plot]
x = "sharing.ratio"
"""


def written(folder: Path, text: str, values: dict[str, dict[int, tuple[float, float]]]) -> Recipe:
    """A recipe with results: (HR, NDCG) by cell and seed."""
    path = folder / "table.toml"
    path.write_text(text)
    recipe = read(path)
    digests = {cell.name: cell.digest for cell in recipe.cells}
    lines = [
        {"cell": cell, "seed": seed, "digest": digests[cell], "test": {"HR@20": hr, "NDCG@20": n}}
        for cell, seeds in values.items()
        for seed, (hr, n) in seeds.items()
    ]
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return recipe


RESULTS = {
    "ml-1m/Popularity": {0: (0.6, 0.1), 1: (0.7, 0.1), 2: (0.5, 0.1)},
    "ml-1m/FedAvg": {0: (0.8, 0.2), 1: (0.9, 0.2), 2: (0.7, 0.2)},
    "ml-1m/four": {2: (0.74, 0.05), 0: (0.82, 0.3)},
    "ml-100k/FedAvg": {0: (0.4, 0.3)},
}


def test_a_papers_number_below_popularity_on_the_same_data_is_marked(tmp_path):
    table = collect(written(tmp_path, RECIPE, RESULTS))
    found = {(e.cell, e.metric): e for e in table.entries}
    # Popularity has a mean of .6 HR and .1 NDCG on ml-1m; on ml-100k it was not run.
    assert found["ml-1m/FedAvg", "HR@20"].published() == "0.4500 (below popularity)"
    assert found["ml-1m/FedAvg", "NDCG@20"].published() == "0.2500"
    assert found["ml-100k/FedAvg", "HR@20"].published() == "0.4500"
    assert found["ml-1m/Popularity", "HR@20"].floor is None
    assert markdown(table).count("(below popularity)") == 1


def test_popularity_of_another_preparation_of_the_data_is_no_floor(tmp_path):
    other = """
    [axes]
    data = [{ label = "cored", name = "ml-1m", core = 5 }, { label = "raw", name = "ml-1m" }]
    method = ["Popularity", "FedAvg"]
    [paper."raw/FedAvg"]
    "HR@20" = 0.1
    """
    recipe = written(tmp_path, other, {"cored/Popularity": {0: (0.9, 0.9)}})
    assert not any(e.paper_below_floor for e in collect(recipe).entries)


def test_controls_and_what_could_not_be_compared_are_told(tmp_path):
    table = collect(written(tmp_path, RECIPE, RESULTS))
    assert table.controls == ("ml-100k/Popularity", "ml-100k/EASE", "ml-1m/Popularity",
                              "ml-1m/EASE")  # fmt: skip
    said = "\n".join(remarks(table))
    assert "Of the paper's 3 numbers, 1 lie below" in said
    assert "1 are not held against it" in said
    assert "'ml-1m/EASE'" in said


def test_differences_are_paired_by_seed_on_the_same_data(tmp_path):
    table = collect(written(tmp_path, RECIPE, RESULTS))
    found = {(d.cell, d.metric): d for d in differences(table, "ml-1m/FedAvg")}
    assert found.keys() == {
        (c, m) for c in ("ml-1m/Popularity", "ml-1m/four") for m in ("HR@20", "NDCG@20")
    }
    # Seeds 0 and 2 are common: .82 - .80 and .74 - .70, mean .03, deviation .01 sqrt(2), error .01.
    four = found["ml-1m/four", "HR@20"]
    assert four.values == pytest.approx((0.02, 0.04))
    assert (four.mean, four.error) == pytest.approx((0.03, 0.01))
    # .1 and -.15 around -.025, error .125.
    assert found["ml-1m/four", "NDCG@20"].error == pytest.approx(0.125)
    assert found["ml-1m/Popularity", "HR@20"].values == pytest.approx((-0.2,) * 3)


def test_a_sweep_has_a_line_for_each_other_label_in_the_recipes_order(tmp_path):
    results = {
        "a/many": {0: (0.6, 0.1), 1: (0.8, 0.1)},
        "a/few": {0: (0.5, 0.1)},
        "b/many": {1: (0.9, 0.4)},
    }
    hr, ndcg = sweeps(collect(written(tmp_path, SWEEP, results)))
    assert hr.ticks == {0.0: "1:1:8", 1.0: "5:5:0"}
    assert hr.lines.keys() == {"a", "b"}
    assert hr.lines["a"][0] == (0.0, 0.5, 0.0)
    assert hr.lines["a"][1] == pytest.approx((1.0, 0.7, 0.2 / 2**0.5))
    assert ndcg.lines["b"] == ((1.0, 0.4, 0.0),)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_sweep_is_drawn_the_same_every_time(tmp_path, ending):
    table = collect(written(tmp_path, SWEEP, {"a/few": {0: (0.5, 0.1)}, "b/few": {0: (0.4, 0.2)}}))
    one, two = tmp_path / f"one.{ending}", tmp_path / f"two.{ending}"
    draw(table, one)
    draw(table, two)
    assert one.read_bytes() == two.read_bytes()
    assert len(one.read_bytes()) > 5000


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("recipes/fedshare/fig*.toml")), ids=lambda p: p.stem
)
def test_every_recipe_of_a_figure_says_what_it_sweeps(path, tmp_path):
    recipe = read(path)
    assert recipe.plot is not None
    results = {name: {0: (0.5, 0.1), 1: (0.6, 0.1)} for name in recipe.names}
    table = tomllib.loads(path.read_text())
    table.pop("table", None)  # HR@20 and NDCG@20, and results of this test alone
    hr, _ = sweeps(collect(written(tmp_path, tomli_w.dumps(table), results)))
    assert sum(len(points) for points in hr.lines.values()) == len(recipe.names)
    lengths = {len(points) for points in hr.lines.values()}
    assert len(lengths) == 1
    assert lengths.pop() > 1


def test_the_command_prints_differences_and_draws(tmp_path, monkeypatch, capsys):
    from rescind.cli import table as door

    recipe = written(tmp_path, SWEEP, {f"a/{n}": {0: (0.5, 0.1), 1: (0.6, 0.3)} for n in
                                       ("few", "many")})  # fmt: skip
    door.command(str(recipe.path), against="a/few", plot=tmp_path / "x.svg")
    out = capsys.readouterr().out
    assert "2 comparisons, 0 of them tested" in out, "both are the same in every seed"
    assert "+0.0000" in out
    assert (tmp_path / "x.svg").is_file()
    door.command(str(recipe.path), against="a/few", as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert [d["pairs"] for d in facts["differences"]] == [2, 2]
    with pytest.raises(ConfigError, match="did you mean 'a/few'"):
        door.command(str(recipe.path), against="a/fwe")


COLUMNS = """
[axes]
method = ["FedAvg", "EASE"]
seed = [0, 1]
[table]
columns = ["NDCG@20", { path = "seconds.cpu", title = "CPU s", digits = 1 }, "forget.verdict"]
[paper."FedAvg"]
"NDCG@20" = 0.25
"""


def with_more(recipe: Recipe, cell: str, more: list[dict]) -> Recipe:
    """Write values beside the metrics into the lines of a cell, seed by seed."""
    lines = [json.loads(text) for text in recipe.results.read_text().splitlines()]
    mine = [line for line in lines if line["cell"] == cell]
    for line, values in zip(mine, more, strict=True):
        line.update(values)
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return recipe


def test_a_recipe_says_which_values_of_a_line_its_table_shows(tmp_path):
    results = {"FedAvg": {0: (0.5, 0.1), 1: (0.5, 0.3)}, "EASE": {0: (0.9, 0.4)}}
    recipe = written(tmp_path, COLUMNS, results)
    more = [
        {"seconds": {"cpu": 1000.0}, "forget": {"verdict": "PASS"}},
        {"seconds": {"cpu": 2000.0}, "forget": {"verdict": "FAIL"}},
    ]
    text = markdown(collect(with_more(recipe, "FedAvg", more))).splitlines()
    # Only what the paper published has a column for the paper.
    assert text[0] == "| cell | seeds | NDCG@20 ours | NDCG@20 paper | CPU s | forget.verdict |"
    assert text[2] == (
        "| FedAvg | 2 | 0.2000 ± 0.1414 | 0.2500 | 1,500.0 ± 707.1 | PASS 1, FAIL 1 |"
    )
    # What a result has no value for does not apply to it; "not run" is for cells without results.
    assert text[3] == "| EASE | 1 | 0.4000 |  |  |  |"
    recipe.results.unlink()
    assert markdown(collect(recipe)).count("not run") == 6


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ('["NDCG@20", "NDCG@20"]', "two columns have the same title"),
        ('[{ title = "x" }]', "needs a path"),
        ('[{ path = "x", digit = 1 }]', "did you mean 'digits'"),
        ('"NDCG@20"\nalso = ["no/such"]', "columns must be a list"),
        ('["NDCG@20"]\nalso = ["no/such"]', "`also` names the recipe 'no/such'"),
        ('["NDCG@20"]\nalos = []', "did you mean 'also'"),
    ],
)
def test_columns_that_cannot_be_shown_are_refused(tmp_path, columns, said):
    with pytest.raises(ConfigError, match=said):
        written(tmp_path, f"[table]\ncolumns = {columns}\n", {})


def test_results_of_another_recipe_count_where_the_settings_are_the_same(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    axes = '[axes]\nmethod = [{ label = "LABEL", name = "FedAvg" }, "EASE"]\nseed = [0, 1]\n'
    written(tmp_path / "one", axes.replace("LABEL", "theirs"), {"theirs": {0: (0.5, 0.1)},
                                                             "EASE": {0: (0.7, 0.2)}})  # fmt: skip
    mine = axes.replace("LABEL", "mine").replace(', "EASE"', "")
    also = mine + '[table]\nalso = ["one/table"]\n'
    recipe = written(tmp_path / "two", also, {"mine": {1: (0.6, 0.2)}})
    table = collect(recipe)
    found = {(e.cell, e.metric): e for e in table.entries}
    assert found["mine", "HR@20"].values == (0.5, 0.6)
    assert found["mine", "HR@20"].seeds == (0, 1)
    assert table.stale == ()
    (tmp_path / "two" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "two" / "below")
    again = collect(read(Path("../table.toml")))
    assert {(e.cell, e.metric): e for e in again.entries} == found, "named from below it"


def test_columns_can_be_added_up_and_shown_in_another_unit(tmp_path):
    columns = '[{ path = "a.x + a.y", per = 10 }, "a.x + b"]'
    text = f'[axes]\nmethod = ["FedAvg"]\n[table]\ncolumns = {columns}\n'
    recipe = written(tmp_path, text, {"FedAvg": {0: (0.5, 0.1)}})
    assert collect(recipe).entries[0].values == ()
    with_more(recipe, "FedAvg", [{"a": {"x": 2, "y": 3}, "b": "word"}])
    total, nonsense = collect(recipe).entries
    assert total.values == (0.5,)
    assert (nonsense.values, nonsense.words) == ((), ())


def test_a_line_belongs_to_the_cell_of_its_settings_whatever_it_was_called(tmp_path):
    text = '[axes]\nmethod = [{ label = "old", name = "FedAvg" }]\n'
    recipe = written(tmp_path, text, {"old": {0: (0.5, 0.1)}})
    now = '[{ label = "old", name = "FedAvg", rate = 0.3 }, { label = "new", name = "FedAvg" }]'
    recipe.path.write_text(f"[axes]\nmethod = {now}\n")
    found = {(e.cell, e.metric): e for e in collect(read(recipe.path)).entries}
    assert found["new", "HR@20"].values == (0.5,)
    assert found["old", "HR@20"].values == ()


def test_printed_numbers_of_other_blocks_are_not_held_against_popularity_on_ours():
    recipe = read(Path(__file__).parents[2] / "recipes/f3crec/table2-fedmf.toml")
    bounds = {c.data.name: _floor_of_print(c) for c in recipe.cells}
    assert bounds == {"ml-100k": None, "ml-latest-small": None, "lastfm-2k": -math.inf}


def test_seeds_of_other_rows_of_the_data_are_named(tmp_path):
    recipe = written(tmp_path, RECIPE, RESULTS)
    lines = [json.loads(line) for line in recipe.results.read_text().splitlines()]
    for line in lines:
        line["data"] = "sha256:before"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    recipe.results.write_text(text)
    assert not collect(recipe).mixed, "the control: one version of the rows"
    lines[4]["data"] = "sha256:after"  # ml-1m/FedAvg, seed 1
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (said,) = collect(recipe).mixed
    assert "rows of 'ml-1m' were erased" in said
    assert "compare ml-1m/FedAvg seed 1 with the rest" in said
    assert remarks(collect(recipe))[0] == said


def test_one_seed_on_different_rows_is_no_pair(tmp_path):
    text = '[axes]\nmethod = ["FedAvg", "EASE"]\nseed = [0, 1, 2]\n'
    results = {"FedAvg": {s: (0.5 + s / 10, 0.1) for s in range(3)},
               "EASE": {s: ((0.6, 0.5, 0.8)[s], 0.2) for s in range(3)}}  # fmt: skip
    recipe = written(tmp_path, text, results)
    lines = [json.loads(line) for line in recipe.results.read_text().splitlines()]
    for line in lines:
        line["data"] = "sha256:before"
    (whole, clear) = differences(collect(_kept(recipe, lines)), "FedAvg")
    assert (len(whole.values), whole.apart) == (3, 0), "control"
    assert "--resume --record" in on_few_seeds([whole, clear])
    assert on_few_seeds([clear]) == "", "no row says 'no'"
    lines[0]["data"] = "sha256:after"  # FedAvg, seed 0
    found = differences(collect(_kept(recipe, lines)), "FedAvg")
    assert [(len(one.values), one.apart) for one in found] == [(2, 1), (2, 1)]
    assert "2 pairs on different rows left out" in remark(found)
    assert "--resume" not in on_few_seeds(found)


def _kept(recipe, lines):
    recipe.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return recipe


def test_results_of_other_settings_are_named_with_what_changed(tmp_path):
    text = '[axes]\nmethod = ["FedAvg", "EASE"]\nseed = [0, 1]\n'
    recipe = written(tmp_path, text, {"FedAvg": {0: (0.5, 0.1), 1: (0.6, 0.1)},
                                      "EASE": {0: (0.7, 0.2)}})  # fmt: skip
    lines = [json.loads(line) for line in recipe.results.read_text().splitlines()]
    for line, cell in zip(lines, (recipe.cells[0], recipe.cells[0], recipe.cells[-1]), strict=True):
        line["settings"] = cell.settings
    assert collect(_kept(recipe, lines)).stale == (), "control"
    for line in lines[:2]:
        line["settings"] = {**line["settings"], "method": {**line["settings"]["method"], "rate": 7}}
    assert {*collect(_kept(recipe, lines)).stale} == {"FedAvg seed 0", "FedAvg seed 1"}
    newer = {**lines[0], "settings": recipe.cells[0].settings}
    table = collect(_kept(recipe, [*lines, newer]))
    assert table.stale == ("FedAvg seed 1",), "seed 0 was run since"
    assert f"(FedAvg seed 1). Run them again: rescind run {recipe.path}" in remarks(table)[-1]


def test_a_table_of_ones_own_has_no_columns_of_a_paper(tmp_path):
    own = RECIPE.split("[paper", maxsplit=1)[0]
    head = markdown(collect(written(tmp_path, own, RESULTS))).splitlines()[0]
    assert head == "| cell | seeds | HR@20 | NDCG@20 |"
    (tmp_path / "other").mkdir()
    control = markdown(collect(written(tmp_path / "other", RECIPE, RESULTS))).splitlines()[0]
    assert "NDCG@20 paper" in control


def test_few_seeds_are_told(tmp_path):
    table = collect(written(tmp_path, RECIPE, RESULTS))
    said = on_few_seeds(differences(table, "ml-1m/Popularity"))
    assert "'no' means not shown" in said
    enough = Difference("a", "HR@20", (0.1,) * ENOUGH)
    assert on_few_seeds([enough]) == ""
    alone = on_few_seeds([Difference("a", "HR@20", (0.1,))])
    assert alone.startswith("With fewer than 5 seeds"), "the row says 'one seed', none says 'no'"
    assert alone.endswith("Run more: --seeds 5 --resume --record.")


def test_a_table_shows_what_its_cells_measure(tmp_path, capsys):
    """With lists of 10, results were there and the table said that none are recorded."""
    from rescind.cli import table as door

    axes = '[axes]\nmethod = ["FedAvg", "EASE"]\nseed = [0, 1]\n'
    recipe = written(tmp_path, f"[run]\nk = [10]\n{axes}", {
        name: {0: (0.5, 0.1), 1: (0.6, 0.2)} for name in ("FedAvg", "EASE")})  # fmt: skip
    lines = [json.loads(line) for line in recipe.results.read_text().splitlines()]
    for line in lines:
        line["test"] = {name.replace("20", "10"): value for name, value in line["test"].items()}
    _kept(recipe, lines)
    door.command(str(recipe.path), against="EASE")
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["cell", "seeds", "HR@10", "NDCG@10"]
    assert "4 comparisons" not in out
    assert "2 comparisons" in out
    assert "No results" not in out
    door.command(str(recipe.path), as_json=True)
    assert {e["seeds"] for e in json.loads(capsys.readouterr().out)["entries"]} == {2}


@pytest.mark.parametrize(
    ("run", "method", "columns"),
    [
        ("", "FedAvg", ["HR@20", "NDCG@20"]),
        ("k = [10, 20]", "FedAvg", ["HR@10", "NDCG@10", "HR@20", "NDCG@20"]),
        ('k = [5]\nmeasure = "Recall@5"', "FedAvg", ["HR@5", "NDCG@5", "Recall@5"]),
        ("", "GraphFedSGD", ["accuracy"]),
    ],
)
def test_columns_that_nobody_named_are_what_is_measured(tmp_path, run, method, columns):
    path = tmp_path / "table.toml"
    path.write_text(f'[method]\nname = "{method}"\n[run]\n{run}\n')
    assert [column.path for column in read(path).shown] == columns
    path.write_text(f'{path.read_text()}[table]\ncolumns = ["seconds.cpu"]\n')
    assert [column.path for column in read(path).shown] == ["seconds.cpu"], "the control"


def test_results_without_the_columns_of_the_table_are_not_called_missing(tmp_path, capsys):
    from rescind.cli import table as door

    text = '[axes]\nmethod = ["FedAvg"]\n[table]\ncolumns = ["NDCG@5"]\n[plot]\nx = "method.rate"\n'
    recipe = written(tmp_path, text, {"FedAvg": {0: (0.5, 0.1)}})
    door.command(str(recipe.path), against="FedAvg")
    out = capsys.readouterr().out
    assert "nothing of NDCG@5. Give --metric with what they have: HR@20, NDCG@20." in out
    assert "No results" not in out
    assert "shares a seed" not in out
    with pytest.raises(DataError, match="Give --metric"):
        sweeps(collect(recipe))
    with pytest.raises(ConfigError, match=r"Other lengths: \[run\] k"):
        door.command(str(recipe.path), metric=["NDCG@5"])
    recipe.results.unlink()
    door.command(str(recipe.path))
    assert "No results are recorded yet" in capsys.readouterr().out, "the control"


def test_a_table_is_printed_for_a_spreadsheet_and_for_a_paper(tmp_path, capsys):
    from rescind.cli import table as door

    results = {"FedAvg": {0: (0.5, 0.1), 1: (0.5, 0.3)}}
    recipe = with_more(written(tmp_path, COLUMNS, results), "FedAvg",
                       [{"forget": {"verdict": "PASS"}}] * 2)  # fmt: skip
    door.command(str(recipe.path), as_csv=True)
    rows = capsys.readouterr().out.splitlines()
    assert rows[:2] == [
        "cell,metric,mean,spread,seeds,paper,words", "FedAvg,NDCG@20,0.2,0.141421,2,0.25,",
    ]  # fmt: skip
    assert rows[3] == "FedAvg,forget.verdict,,,2,,PASS; PASS"
    door.command(str(recipe.path), metric=["HR@20"], as_latex=True)
    assert capsys.readouterr().out.splitlines() == [
        r"\begin{tabular}{lrr}", r"\hline", r"cell & seeds & HR@20 \\", r"\hline",
        r"FedAvg & 2 & 0.5000 $\pm$ 0.0000 \\", r"EASE & 0 & not run \\", r"\hline",
        r"\end{tabular}",
    ]  # fmt: skip


def test_a_row_says_which_method_was_chosen_for_the_data(tmp_path):
    text = '[axes]\nmethod = ["auto", "EASE"]\nseed = [0]\n'
    results = {"auto": {0: (0.5, 0.1)}, "EASE": {0: (0.5, 0.1)}}
    recipe = written(tmp_path, text, results)
    assert markdown(collect(recipe)).splitlines()[2].startswith("| auto | 1 |"), "an older line"
    table = collect(with_more(recipe, "auto", [{"method": "LocalGram"}]))
    rows = markdown(table).splitlines()[2:]
    assert rows[0].startswith("| auto: LocalGram | 1 |")
    assert rows[1].startswith("| EASE | 1 |")


def test_a_run_that_finds_what_an_older_one_found_within_a_second_is_a_new_line(tmp_path):
    from rescind.experiments.results import ALONE, append_line

    path = tmp_path / "r.jsonl"
    plain = {"cell": "Gram", "seed": 0, "test": {"HR@20": 0.5}, "date": "2026-11-18T12:00:00"}
    for line in (plain, plain, {**plain, ALONE: True}, {**plain, "seed": 1}, plain, plain):
        append_line(path, line)
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert found == [plain, {**plain, ALONE: True}, {**plain, "seed": 1}, plain]
