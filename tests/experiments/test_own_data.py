"""A stranger's data: which method, how much memory, which settings."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace

import pytest

from rescind.cli import main
from rescind.core.federation import Federation
from rescind.core.settings import find
from rescind.errors import ConfigError
from rescind.experiments import advice, needs, tuning
from rescind.experiments.advice import advise, recipe_for
from rescind.experiments.cell import Cell, DataSettings, RunSettings, SharingSettings
from rescind.experiments.learning_run import run_cell
from rescind.experiments.needs import Sizes, needed
from rescind.experiments.recipe import read
from rescind.methods.additive._solve import seconds_to_solve
from rescind.methods.additive.gram import DENSE_ITEMS, Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.methods.additive.local_seq_gram import LocalSeqGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.storage.kinds import METHODS

GIGA = 10**9
SMALL = DataSettings(name="synthetic", users=60, items=50, interactions=1200)


@pytest.fixture
def rescind(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))

    def ask(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rescind", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return code, out.out + out.err

    return ask


def test_few_items_get_all_pairs_and_many_get_neighbours():
    assert advise(Sizes(1000, 2000, 50_000, 10**7), None, 8 * GIGA).method == "Gram"
    many = advise(Sizes(1000, 17_632, 50_000, 10**7), None, 16 * GIGA)
    assert many.method == "LocalGram"
    assert "17,632 items are many" in " ".join(many.why)
    slow = advise(Sizes(1892, 12_517, 71_000, 10**7), None, 64 * GIGA)
    assert slow.method == "LocalGram", "memory is there, but a solve takes more than 30 CPU s"
    assert "about 59 CPU s to solve" in " ".join(slow.why)
    assert seconds_to_solve(DENSE_ITEMS) == pytest.approx(30)
    tight = advise(Sizes(1000, 9_000, 50_000, 10**6), None, 2 * GIGA)
    assert tight.method == "LocalGram", "all pairs of 9,000 items do not fit into 2 GB"


def test_the_next_item_is_asked_of_a_method_that_fits_and_of_times_that_have_an_order():
    few, many = Sizes(1000, 2000, 50_000, 10**7), Sizes(1892, 12_510, 71_000, 10**7)
    assert _next(few, 0.1, 16 * GIGA) == "SeqGram --set method.preset=sequences"
    assert _next(many, 0.1, 16 * GIGA) == "LocalSeqGram", "Gram was too large, so SeqGram is, too"
    assert _next(few, 0.1, GIGA * 7 // 10) is None, "Gram fits, its ordered pairs do not"
    months = advise(many, 0.94, 16 * GIGA).why[-1]
    assert "94 % of the rows" in months
    assert "split=last" not in months


def _next(sizes: Sizes, ties: float, free: int) -> str | None:
    """Return the method that is named for the next item, with its settings."""
    found = re.search(r"--method (.+) --set data.split=last", advise(sizes, ties, free).why[-1])
    return found and found.group(1)


def test_ordered_pairs_take_more_than_pairs_and_sparse_ones_less():
    sizes = Sizes(1892, 12_510, 71_000, 10**7)
    need = {name: needed(find(*METHODS, name)(), sizes) for name in ("Gram", "SeqGram")}
    assert need["SeqGram"] > 2.5 * need["Gram"]
    assert needed(LocalSeqGram(), sizes) < need["Gram"]


def test_a_dense_sum_grows_with_the_square_of_items_and_a_sparse_one_with_what_was_met():
    small, large = Sizes(100, 1000, 5000, 10**5), Sizes(100, 10_000, 5000, 10**5)
    dense = needed(Gram(), large) - needed(Gram(), small)
    sparse = needed(LocalGram(), large) - needed(LocalGram(), small)
    assert dense > 2.5 * GIGA > 100 * sparse / 10
    wide = needed(FedAvg(model=MF(dim=64)), large) - needed(FedAvg(model=MF(dim=32)), large)
    assert wide == needs.VALUE * 32 * (100 + 10_000)


def test_a_run_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    cell = Cell("c", SMALL, None, FedAvg(model=MF(dim=2)), RunSettings(rounds=1, evaluate_every=1))
    monkeypatch.setattr(needs, "free_memory", lambda: 2 * GIGA)
    run_cell(cell, tmp_path / "fits")  # control
    monkeypatch.setattr(needs, "free_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"needs up to .* of memory, and 0 MB are free"):
        run_cell(cell, tmp_path / "large")
    assert not (tmp_path / "large" / "model").exists()


@pytest.mark.parametrize(("says", "usual"), [("enough_rounds = 3", False), ("pass", True)])
def test_a_file_that_says_how_many_rounds_are_enough_is_run_with_them(tmp_path, says, usual):
    path = tmp_path / "mine.py"
    path.write_text(f"import rescind as rs\n\nclass Says{usual}(rs.methods.FedAvg):\n    {says}\n")
    (cell,) = recipe_for("synthetic", str(path)).cells
    assert cell.run.rounds == (RunSettings().rounds if usual else 3)
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[data]\nname = "synthetic"\n[method]\nname = "mine.py"\n')
    (same,) = read(recipe).cells
    assert same.run == cell.run
    (more,) = read(recipe, ["run.rounds=7"]).cells
    assert (more.run.rounds, more.run.evaluate_every) == (7, RunSettings().evaluate_every)


def test_a_name_in_another_case_is_the_same_run():
    assert recipe_for("synthetic", "gram").place == recipe_for("synthetic", "Gram").place


def test_a_run_without_a_method_says_which_and_why(rescind, monkeypatch):
    code, said = rescind("data", "describe", "ml-100k")
    assert "Gram         up to" in said
    sized = [f"--set={k}" for k in ("data.users=60", "data.items=50", "data.interactions=900")]
    monkeypatch.setattr("rescind.experiments.advice.load", lambda _: _small())
    code, said = rescind("run", "--data", "synthetic", *sized)
    assert code == 0, said
    assert "method: Gram, because: 60 users, 50 items, 15 rows per user" in said
    code, said = rescind("run", "ml-100k")
    assert (code, "rescind run --data ml-100k" in said) == (2, True)
    code, said = rescind("run")
    assert (code, "give a recipe" in said) == (2, True)


def _small():
    from rescind.data.sources.synthetic import synthetic

    return synthetic(users=60, items=50, interactions=900)


def test_the_best_of_all_candidates_goes_to_the_end_and_its_recipe_reads_back(tmp_path):
    method = FedAvg(model=MF(dim=4), rate=0.3)
    cell = Cell("c", SMALL, SharingSettings(), method, RunSettings(rounds=6, evaluate_every=2))
    found = tuning.tune(cell)
    every = tuning.ranked(found)
    assert found.best.value == max(one.value for one in every)
    assert max(one.rounds for one in every) == 6
    again = Federation.start(found.best.fed.now.vault.holdings, found.best.method)
    again = again.run(found.best.best_round)
    assert again.evaluate("valid", cell.run.k)[found.measure] == found.best.value
    assert {one.method.clients_per_round for one in every} == {16, 60}
    assert 0 < sum(one.rounds < 6 for one in every) < len(every)
    path = tmp_path / "tuned.toml"
    path.write_text(tuning.recipe_text(cell, found))
    tomllib.loads(path.read_text())
    assert read(path).cells[-1].method == found.best.method


def test_what_overfits_counts_by_its_best_round_as_a_run_of_the_recipe_does(monkeypatch):
    """The best rate falls after round 10 and is not among those that go on to the end."""
    seen, method = [], FedAvg(model=MF(dim=4), rate=0.3)
    cell = Cell("c", SMALL, SharingSettings(), method, RunSettings(rounds=100))

    def evaluated(fed, split, k):
        reached = fed.now.state.round
        seen.append(reached)
        slow = {0.1: 0.005, 0.3: 0.004, 0.9: 0.003}
        rate = getattr(fed.method, "rate", None)  # popularity has none
        if rate in slow:
            return {cell.run.measure: 0.2 + slow[rate] * reached / 100}
        return {cell.run.measure: 0.4 if reached == 10 else 0.0}

    def jumps(fed, rounds):
        state = replace(fed.now.state, round=fed.now.state.round + rounds)
        return replace(fed, now=replace(fed.now, state=state))

    monkeypatch.setattr(Federation, "evaluate", evaluated)
    monkeypatch.setattr(Federation, "run", jumps)
    best = tuning.tune(cell).best
    assert (best.method.rate, best.best_round, best.value) == (3.0, 10, 0.4)
    assert {10, 20, 30, 40, 50, 100} <= set(seen), "as often as the recipe that is written"


def test_a_tuned_recipe_is_of_the_data_that_was_tuned_on(rescind, tmp_path):
    table = tmp_path / "listens.csv"
    rows = [(u, (u * 7 + n * n) % 40) for u in range(40) for n in range(9)]
    table.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in sorted(set(rows))))
    assert rescind("data", "import", str(table), "--name", "listens")[0] == 0
    given = ("data.core=6", "sharing.part=0.5", "run.k=[10, 20]", "method.model.dim=4")
    words = [word for one in given for word in ("--set", one)]
    code, said = rescind("tune", "listens", "--method", "FedAvg", "--rounds", "3", *words)
    assert code == 0, said
    assert "item popularity: 0." in said
    at_the_end = said.splitlines()[1].split()[3] == "3"
    assert ("still growing at round 3: try --rounds 9." in said) == at_the_end
    cells = read(tmp_path / "tuned-listens.toml").cells
    assert {cell.data for cell in cells} == {DataSettings(name="listens", core=6)}
    assert {cell.sharing for cell in cells} == {SharingSettings(part=0.5)}
    assert {cell.run.k for cell in cells} == {(10, 20)}
    assert cells[-1].method.model.dim == 4
    assert "Gram" in {type(cell.method).__name__ for cell in cells}, "as rescind run would choose"
    everybody = next(cell for cell in cells if cell.name == "EASE, everybody")
    assert everybody.method.source == "everyone", "all records in one place"
    assert said.count("Next: ") == 1, "also if no setting lies above popularity"
    assert rescind("tune", "listens", "--rounds", "3")[0] == 2, "it does not overwrite"


def test_memory_is_told_of_methods_that_can_learn_from_the_data(rescind, tmp_path):
    table = tmp_path / "visits.csv"
    rows = [(u, (u * 7 + n * n) % 40, n) for u in range(40) for n in range(9)]
    for columns, width in (("user,item", 2), ("user,item,time", 3)):
        lines = dict.fromkeys(",".join(map(str, row[:width])) for row in rows)
        table.write_text("\n".join([columns, *lines]) + "\n")
        name = f"visits-{width}"
        assert rescind("data", "import", str(table), "--name", name)[0] == 0
    for timeless, timed in (("visits-2", "visits-3"), ("gowalla", "ml-100k")):
        said = {name: rescind("data", "describe", name)[1] for name in (timeless, timed)}
        assert "  times      none\n" in said[timeless]
        assert _told(said[timeless]) == [m for m in advice.COMPARED if m not in advice.ORDERED]
        assert _told(said[timed]) == [*advice.COMPARED], "control: here they can learn"


def _told(text: str) -> list[str]:
    """Return the methods whose memory is told."""
    return re.findall(r"^  memory     (\w+) +up to", text, re.M)


def test_pairs_that_nobody_can_hit_are_told_once_and_only_where_the_split_of_the_file_is_measured(
    rescind, tmp_path
):
    rows = [f"u{n % 12},i{n % 7},train" for n in range(84)][::2]
    rows += [f"u{n},i{n % 7},test" for n in range(12)] + [f"u{n},new{n},test" for n in range(5)]
    rows += [f"u{n},v{n % 3},valid" for n in range(12)]
    (tmp_path / "plays.csv").write_text("\n".join(["user,item,split", *rows]))
    assert rescind("data", "import", "plays.csv", "--name", "plays")[0] == 0
    both = {row.rpartition(",")[0] for row in rows[:42]} & {f"u{n},i{n % 7}" for n in range(12)}
    line = f"dataset 'plays': {len(both)} of 17 test pairs are also in train: known items are not"
    (tmp_path / "plays.toml").write_text(
        '[data]\nname = "plays"\n[axes]\nmethod = ["Popularity", "Gram"]\nseed = [0, 1]\n'
    )
    code, said = rescind("run", "plays.toml", "--set", "data.split=random")
    assert (code, "also in train" in said) == (0, False), "control: split by us"
    code, said = rescind("run", "plays.toml", "--out", "own")
    assert (code, said.count(line)) == (0, 1), said
