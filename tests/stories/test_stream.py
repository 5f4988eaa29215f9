"""Blocks arrive one after another, as real streams do; and nobody goes back to an old one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Arrive, Records
from rescind.core.run_state import EarlyStop, RoundResult
from rescind.core.state import Private
from rescind.core.tasks.metrics import Ranking
from rescind.core.update import Update
from rescind.data import Dataset, load
from rescind.data.blocks import arrange
from rescind.errors import ConfigError, DataError
from rescind.experiments.cell import Cell
from rescind.experiments.prepared_data import prepare
from rescind.experiments.recipe import read
from rescind.experiments.stream_run import draw, run_cell
from rescind.experiments.streams import Blocks, Stream, next_block, run_stream, train_block
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.continual.finetune import FineTune
from rescind.methods.continual.kd import KD
from rescind.methods.continual.reg import Reg
from rescind.methods.continual.reloop2 import ReLoop2
from rescind.methods.continual.spp import SPP
from rescind.models.mf import MF
from rescind.models.pfedrec import PFedRec
from rescind.storage.federations import load_federation, save_federation
from worlds import Pair, held, pairs, tiny_rows

COMMON = {"model": MF(dim=4, spread=0.3), "negatives": 2, "batch_size": 6, "rate": 0.05}
LEARNERS = [
    FineTune(**COMMON), Reg(**COMMON), KD(**COMMON, top_n=4), ReLoop2(**COMMON, capacity=6),
    SPP(**COMMON, reach=5, draws=2), F3CRec(**COMMON, top_n=4, shift_scale=0.01),
]  # fmt: skip
every_learner = pytest.mark.parametrize("method", LEARNERS, ids=lambda m: type(m).__name__)
OURS = LEARNERS[-1]
SHORT = Blocks(rounds=4, patience=2, k=(3,), value="NDCG@3")


def part(clients: int, items: int, seed: int) -> tuple[Records, Tensor]:
    """One block: (records, split)."""
    rows = tiny_rows(clients, items, seed)
    records = Records.of(*([row[column] for row in rows] for column in range(3)))
    return records, torch.tensor([row[3] for row in rows])


def nothing() -> tuple[Records, Tensor]:
    return Records.none(), torch.zeros(0, dtype=torch.int64)


def stream(*extra: tuple[Records, Tensor]) -> Stream:
    return Stream.arriving([part(7, 12, 0), part(8, 14, 1), *extra])


def bits(fed: Federation) -> tuple[str, str]:
    return params.digest(fed.now.state.public), params.digest(fed.now.vault.private)


# -- the matrix ----------------------------------------------------------------------------------


def ndcg(fed: Federation, block: int, hidden: dict[int, set[int]], k: int = 3) -> float:
    """NDCG@k on the test items of a block, person by person."""
    holdings, values = fed.now.vault.holdings, []
    public, private = fed.now.state.public, fed.now.vault.private
    test, own = held(holdings, "test", block), held(holdings, "own")
    valid = held(holdings, "valid", block)
    for client in range(holdings.clients):
        wanted = {i for c, i in test if c == client}
        if not wanted:
            continue
        away = {i for c, i in own | valid if c == client} | hidden.get(client, set())
        score = (public["item"] @ private["user"][client]).tolist()
        order = sorted((i for i in range(len(score)) if i not in away), key=lambda i: -score[i])
        gain = sum(1 / math.log2(n + 2) for n, i in enumerate(order[:k]) if i in wanted)
        values.append(gain / sum(1 / math.log2(n + 2) for n in range(min(k, len(wanted)))))
    return sum(values) / len(values)


@pytest.mark.parametrize("mask", ["block", "all"])
def test_every_block_is_measured_again_after_each(mask: str) -> None:
    whole = stream(part(9, 15, 2))
    done = run_stream(whole, replace(OURS, mask=mask), 1, SHORT)
    rows = done.matrix("NDCG@3")
    assert [len(row) for row in rows] == [1, 2, 3]
    hidden: dict[int, set[int]] = {}
    if mask == "all":
        for client, item in pairs(whole.first.records) | pairs(whole.later[0].records):
            hidden.setdefault(client, set()).add(item)
    for block in range(3):
        assert rows[2][block] == pytest.approx(ndcg(done.fed, block, hidden))
    summary = done.summary("NDCG@3")
    assert summary["learning"] == pytest.approx((rows[0][0] + rows[1][1] + rows[2][2]) / 3)
    assert summary["new"] == pytest.approx((rows[1][1] + rows[2][2]) / 2)
    assert summary["retention"] == pytest.approx(sum(rows[2]) / 3)
    both = 2 / (1 / summary["learning"] + 1 / summary["retention"])
    assert summary["harmonic"] == pytest.approx(both)


def test_a_block_ends_at_its_best_round_and_the_next_begins_there() -> None:
    whole = stream()
    fed = Federation.start(whole.first, OURS, 1)
    rule = EarlyStop(metric=Ranking(split="valid", k=(3,)), value="NDCG@3", every=1, patience=2)
    expected = fed.run(4, until=rule)
    best, last, until = train_block(fed, SHORT, Ranking(split="valid", k=(3,)))
    assert bits(best) == bits(expected)
    found = dict(until.history)[best.now.state.round]["NDCG@3"]
    assert found == pytest.approx(max(v["NDCG@3"] for _, v in until.history))
    assert last.state.round == until.history[-1][0]
    after = next_block(best, last, whole.later[0])
    assert bits(after) == bits(best.apply(whole.later[0]))


def test_as_published_goes_on_from_the_last_round_but_remembers_the_best() -> None:
    whole = stream()
    fed = Federation.start(whole.first, OURS, 1)
    best, last = fed.run(1), fed.run(3).now
    published = best.fork(method=replace(OURS, carry="last"))
    kept, ours = best.apply(whole.later[0]).now, next_block(published, last, whole.later[0]).now
    assert torch.equal(ours.state.public["item"][:12], last.state.public["item"])
    assert torch.equal(ours.state.public["item"][12:], kept.state.public["item"][12:])
    assert torch.equal(ours.vault.private["user"][:7], last.vault.private["user"])
    for name in ("top", "teacher"):
        assert torch.equal(ours.vault.private[name], kept.vault.private[name])
    (old,) = ours.state.memory.named("block")
    assert torch.equal(old.values["item"], best.now.state.public["item"])
    assert not torch.equal(old.values["item"], last.state.public["item"])


def test_private_values_can_begin_anew_with_each_block() -> None:
    model = PFedRec(dim=4)
    method = replace(OURS, model=model, rate=1e-3, reset_private=True)
    whole = stream()
    fed = Federation.start(whole.first, method, 1)
    after = next_block(fed.run(2), fed.run(2).now, whole.later[0])
    first = model.private(torch.arange(8), Clock(1))
    assert_close(after.now.vault.private["weight"], first["weight"])
    assert bool((after.now.vault.private["top"][:3] >= 0).all())  # what is remembered stays


@every_learner
def test_a_stream_repeats_bit_for_bit(method: Method) -> None:
    one, two = (run_stream(stream(), method, 4, SHORT) for _ in range(2))
    assert bits(one.fed) == bits(two.fed)
    assert [b.returning for b in one.blocks] == [0, 6]  # of 7 in the first block one is silent
    assert bits(run_stream(stream(), method, 5, SHORT).fed) != bits(one.fed)


# -- streams as they are -------------------------------------------------------------------------


def test_a_late_record_belongs_to_the_block_it_arrives_in() -> None:
    records, split = part(8, 14, 1)
    late = Records.of(records.client, records.item, torch.zeros_like(records.time))  # all of 1970
    one = run_stream(stream(), OURS, 1, SHORT).fed
    two = run_stream(Stream.arriving([part(7, 12, 0), (late, split)]), OURS, 1, SHORT).fed
    assert bits(one) == bits(two)


def test_order_and_copies_inside_a_block_do_not_matter() -> None:
    records, split = part(8, 14, 1)
    mixed = torch.argsort(Clock(9).bits("mix", torch.arange(len(records))))
    twice = torch.cat([mixed, mixed[:9]])
    other = Stream.arriving([part(7, 12, 0), (records[twice], split[twice])])
    assert bits(run_stream(other, OURS, 1, SHORT).fed) == bits(
        run_stream(stream(), OURS, 1, SHORT).fed
    )


@every_learner
def test_an_empty_block_changes_no_parameter_and_has_no_number(method: Method) -> None:
    whole = Stream.arriving([part(7, 12, 0), nothing(), part(8, 14, 1)])
    base = run_stream(Stream(whole.first, ()), method, 1, SHORT)
    quiet = run_stream(Stream(whole.first, whole.later[:1]), method, 1, SHORT)
    for name in ("item", "user"):
        before, after = (
            {**f.now.state.public, **f.now.vault.private} for f in (base.fed, quiet.fed)
        )
        assert torch.equal(before[name], after[name])
    done = run_stream(whole, method, 1, SHORT)
    assert [block.trained > 0 for block in done.blocks] == [True, False, True]
    rows = done.matrix("NDCG@3")
    assert [math.isnan(value) for value in rows[2]] == [False, True, False]
    assert done.summary("NDCG@3")["new"] == pytest.approx(rows[2][2])
    assert done.blocks[1].rounds == 0


def test_someone_who_returns_after_two_blocks_is_taught_by_the_list_they_kept() -> None:
    def without(records: Records, split: Tensor, client: int) -> tuple[Records, Tensor]:
        kept = records.client != client
        return records[kept], split[kept]

    whole = Stream.arriving(
        [part(7, 12, 0), without(*part(8, 14, 1), 2), without(*part(8, 14, 2), 2), part(8, 14, 3)]
    )
    fed = Federation.start(whole.first, OURS, 1).run(2)
    lists = []
    for arrival in whole.later:
        fed = fed.apply(arrival)
        lists.append(fed.now.vault.private["top"].clone())
        fed = fed.run(1)
    assert bool((lists[0][2] >= 0).all())
    assert torch.equal(lists[0][2], lists[2][2])
    assert not torch.equal(lists[0], lists[2])
    done = run_stream(whole, OURS, 1, SHORT)
    assert done.blocks[3].returning == done.blocks[3].trained
    quiet = fed.fork(method=replace(OURS, distil=0.0)).run(1)
    taught = fed.run(1)
    gap = taught.now.vault.private["user"][2] - quiet.now.vault.private["user"][2]
    assert float(gap.abs().max()) > 0


def test_an_item_that_vanishes_keeps_its_row_and_a_block_cannot_shrink_the_world() -> None:
    records, split = part(7, 12, 0)
    fewer = records.item < 9
    whole = Stream.arriving([(records, split), (records[fewer], split[fewer])])
    assert [a.items for a in whole.later] == [12]
    done = run_stream(whole, OURS, 1, SHORT)
    assert len(done.fed.now.state.public["item"]) == 12
    small = Arrive(records[fewer], split[fewer], clients=7, items=9)
    with pytest.raises(DataError, match="shrink"):
        done.fed.apply(small)


def test_a_block_without_validation_is_trained_to_the_end() -> None:
    records, split = part(8, 14, 1)
    split = torch.where(split == 1, 0, split)
    done = run_stream(Stream.arriving([part(7, 12, 0), (records, split)]), OURS, 1, SHORT)
    assert (done.blocks[1].round, done.blocks[1].rounds) == (4, 4)


def test_streams_that_cannot_begin_say_so() -> None:
    with pytest.raises(DataError, match="first block"):
        Stream.arriving([nothing(), part(7, 12, 0)])
    with pytest.raises(DataError, match="variant='blocks'"):
        Stream.of(load("synthetic", users=20, items=20, interactions=100))
    with pytest.raises(ConfigError, match="rounds"):
        Blocks(rounds=0)


# -- nobody goes back ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hoarder(FineTune):
    """Cheats: keeps what it was given in the last block outside of any device."""

    kept: ClassVar[dict[int, Tensor]] = {}

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        for owner, client in enumerate(cohort.ids.tolist()):
            self.kept[client] = cohort.train.item[cohort.train.owner == owner]
        return private

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        mine = [torch.full_like(self.kept[c], n) for n, c in enumerate(cohort.ids.tolist())
                if c in self.kept]  # fmt: skip
        if mine:
            more = torch.cat([self.kept[c] for c in cohort.ids.tolist() if c in self.kept])
            pair = torch.cat([cohort.train.owner, *mine]) * cohort.items
            pair = torch.unique(pair + torch.cat([cohort.train.item, more]))
            lot = Lot(pair // cohort.items, pair % cohort.items, len(cohort))
            cohort = replace(cohort, train=lot)
        return super().client_train(public, private, cohort, clock)


@dataclass(frozen=True, kw_only=True)
class Diary(FineTune):
    """Cheats: writes its training items down beside its private values."""

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        written = torch.full((len(cohort), cohort.items), -1)
        written[cohort.train.owner, cohort.train.place] = cohort.train.item
        return private.with_(diary=written)


def reachable(value: Any, seen: set[int] | None = None) -> list[Any]:
    """Everything a value leads to through fields, containers and caches."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, str | int | float | bytes | type | None):
        return []
    seen.add(id(value))
    inside: list[Any] = []
    if is_dataclass(value):
        inside = [getattr(value, f.name) for f in fields(value)] + list(vars(value).values())
    elif isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, tuple | list | set):
        inside = list(value)
    return [value, *(other for part in inside for other in reachable(part, seen))]


def old_pairs(holdings: Holdings) -> set[Pair]:
    return pairs(holdings.records[holdings.split == TRAIN])


def diaries(fed: Federation, old: set[Pair]) -> list[str]:
    """Private values in which everybody's old training items stand, one to one."""
    theirs: dict[int, set[int]] = {}
    for client, item in old:
        theirs.setdefault(client, set()).add(item)
    found = []
    for name, value in fed.now.vault.private.items():
        if value.is_floating_point() or value.dim() != 2:
            continue
        if all({*value[c].tolist()} - {-1} == items for c, items in theirs.items()):
            found.append(name)
    return found


def revisits(method: Method, folder: Path) -> list[str]:
    """How a method gets at an old block, if it does."""
    Hoarder.kept.clear()
    whole = stream()
    fed = Federation.start(whole.first, method, 1).run(1)
    old = old_pairs(fed.now.vault.holdings) - pairs(whole.later[0].records)
    assert len(old) > 5
    after = fed.apply(whole.later[0])
    found = [f"private '{name}'" for name in diaries(after, old_pairs(whole.first))]
    for thing in reachable(after):
        if isinstance(thing, Records) and pairs(thing) & old:
            found.append("records")
    # What is on disk is all that another process would have.
    save_federation(after.fork(method=FineTune(**COMMON)), folder / "model")
    here = after.run(1)
    Hoarder.kept.clear()
    there = load_federation(folder / "model").fork(method=method).run(1)
    return found if bits(here) == bits(there) else [*found, "something outside the federation"]


@every_learner
def test_no_learner_goes_back_to_an_old_block(method: Method, tmp_path: Path) -> None:
    assert revisits(method, tmp_path) == []


def test_a_method_that_keeps_a_reference_is_caught(tmp_path: Path) -> None:
    assert revisits(Hoarder(**COMMON), tmp_path / "a") == ["something outside the federation"]
    assert revisits(Diary(**COMMON), tmp_path / "b") == ["private 'diary'"]


def test_no_verb_of_a_device_gives_an_old_block_out() -> None:
    whole = stream()
    fed = Federation.start(whole.first, OURS, 1).run(1)
    old = old_pairs(fed.now.vault.holdings) - pairs(whole.later[0].records)
    after = fed.apply(whole.later[0]).run(1)
    holdings, ids = after.now.vault.holdings, torch.arange(8)

    def seen(lot: Lot) -> set[Pair]:
        return set(zip(ids[lot.owner].tolist(), lot.item.tolist(), strict=True))

    for block in (None, 0, 1):
        for name in ("own", "unshared"):
            assert not seen(holdings.of_clients(name, ids, block)) & old
            _, count, item = holdings.lot(name, block)
            client = torch.repeat_interleave(torch.arange(8), count)
            assert not set(zip(client.tolist(), item.tolist(), strict=True)) & old
        for cohort in (
            holdings.cohort(ids, block=block),
            InProcess().cohort(OURS, after.now.vault, ids, held="test", block=block),
        ):
            assert not (seen(cohort.train) | seen(cohort.own)) & old
    assert not pairs(holdings.records[holdings.split == TRAIN]) & old
    gone = Records.of([c for c, _ in sorted(old)][:1], [i for _, i in sorted(old)][:1])
    asked = after.query(gone, "open")  # an old item is open again: the device has forgotten it
    assert bool(torch.isfinite(asked).all())
    assert after.past is not None
    assert not old_pairs(after.past.origin) & old


# -- a recipe of blocks --------------------------------------------------------------------------

RECIPE = """
title = "A small stream"
[data]
name = "synthetic"
users = 30
items = 40
interactions = 600
[run]
rounds = 2
evaluate_every = 1
patience = 3
[axes]
method = [
  { label = "ours", name = "F3CRec", top_n = 5 },
  { label = "theirs", name = "F3CRec", preset = "as_published", top_n = 5 },
]
"""


def test_a_cell_of_a_stream_writes_everything_down(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE, encoding="utf-8")
    ours, theirs = read(path).cells
    assert (ours.method.carry, theirs.method.carry) == ("best", "last")
    data = arrange(prepare(ours.data))
    result = run_cell(ours, tmp_path / "run", dataset=data)
    written = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    rows = written["matrix"]["NDCG@20"]
    assert [len(row) for row in rows] == [1, 2, 3, 4]
    later = [row[-1] for row in rows[1:]]
    assert result.metrics["NDCG@20"] == pytest.approx(sum(later) / 3)
    assert result.metrics["D2 NDCG@20"] == pytest.approx(later[1])
    chosen = [max(v["NDCG@20"] for v in block["valid"]) for block in written["blocks"][1:]]
    assert written["metrics"]["valid"]["NDCG@20"] == pytest.approx(sum(chosen) / 3)
    assert written["data"]["split"] == "drawn inside blocks"
    assert [b["rounds"] for b in written["blocks"]] == [2, 2, 2, 2]
    back = load_federation(tmp_path / "run" / "model")
    assert bits(back) == bits(result.fed)


def test_a_stream_that_lends_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE + "[sharing]\nratio = [1, 2, 7]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="sharing"):
        run_cell(read(path).cells[0], tmp_path / "run")


# -- stopped and resumed -------------------------------------------------------------------------


class Killed(Exception):
    """Somebody pulled the plug."""


def killer(at: int) -> Callable[[RoundResult], None]:
    """A watcher that strikes after so many rounds."""
    seen: list[RoundResult] = []

    def look(moment: RoundResult) -> None:
        seen.append(moment)
        if len(seen) == at:
            raise Killed

    return look


def small(folder: Path, cell: int = 0, rounds: int = 4) -> tuple[Cell, Dataset]:
    path = folder / "small.toml"
    text = RECIPE.replace("rounds = 2", f"rounds = {rounds}\ncheckpoint_every = 3")
    path.write_text(text, encoding="utf-8")
    found = read(path).cells[cell]
    return found, arrange(prepare(found.data))


def beginnings(fed: Federation) -> dict[str, Any]:
    """Who took part since when, and the model at the beginning of the block."""
    assert fed.past is not None
    assert fed.past.base is not None
    return {"first": fed.past.first.tolist(), "base": params.digest(fed.past.base.state.public)}


SAME = ("matrix", "blocks", "metrics", "round", "rounds", "model", "bytes", "client_rounds")


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("at", [1, 4, 7, 10, 15])
def test_a_stream_killed_anywhere_goes_on_bit_for_bit(
    at: int, published: int, tmp_path: Path
) -> None:
    cell, data = small(tmp_path, published)
    whole = run_cell(cell, tmp_path / "whole", dataset=data)
    with pytest.raises(Killed):
        run_cell(cell, tmp_path / "run", dataset=data, watch=(killer(at),))
    assert not (tmp_path / "run" / "run.json").exists()
    made: list[int] = []
    again = run_cell(
        cell, tmp_path / "run", again=True, dataset=data,
        watch=(lambda moment: made.append(moment.now.state.round),),
    )  # fmt: skip
    assert bits(again.fed) == bits(whole.fed)
    assert {n: again.facts[n] for n in SAME} == {n: whole.facts[n] for n in SAME}
    moved = {n for n in whole.facts["metrics"]["test"] if n.startswith(("static", "dynamic"))}
    assert len(moved) == 6, "of users and items before the stop, too"
    # At most as many rounds are made again as lie between two checkpoints.
    assert whole.facts["rounds"] - at <= len(made) <= whole.facts["rounds"] - at + 3
    assert not (tmp_path / "run" / "checkpoints").exists()
    for name in ("first", "base"):  # whoever is forgotten later goes back to the same point
        one, two = (beginnings(fed)[name] for fed in (again.fed, whole.fed))
        assert one == two


def test_a_block_that_was_not_written_whole_is_passed_over(tmp_path: Path) -> None:
    cell, data = small(tmp_path)
    whole = run_cell(cell, tmp_path / "whole", dataset=data)
    with pytest.raises(Killed):
        run_cell(cell, tmp_path / "run", dataset=data, watch=(killer(6),))
    (torn,) = (tmp_path / "run" / "checkpoints").glob("block-*")
    (torn / "begun.json").write_text("{", encoding="utf-8")
    again = run_cell(cell, tmp_path / "run", again=True, dataset=data)
    assert bits(again.fed) == bits(whole.fed)


def test_a_stream_of_other_settings_is_not_taken_up(tmp_path: Path) -> None:
    cell, data = small(tmp_path)
    with pytest.raises(Killed):
        run_cell(cell, tmp_path / "run", dataset=data, watch=(killer(6),))
    other = replace(cell, method=replace(cell.method, top_n=7))
    with pytest.raises(ConfigError, match=r"another run: .*Give the command without --resume"):
        run_cell(other, tmp_path / "run", again=True, dataset=data)
    fresh = run_cell(other, tmp_path / "run", dataset=data)  # without --resume it begins anew
    assert fresh.facts["blocks"][0]["rounds"] == 4


def test_a_live_stream_is_asked_for_a_block_when_the_one_before_is_done() -> None:
    told: list[str] = []

    def blocks() -> Iterator[tuple[Records, Tensor]]:
        for seed in range(3):
            told.append(f"block {seed}")
            yield part(7 + seed, 12 + seed, seed)

    live = Stream.live(blocks())
    assert told == ["block 0"]
    rounds = run_stream(
        live, OURS, 1, SHORT, watch=[lambda m: told.append(f"in {m.now.vault.holdings.now}")]
    )
    assert told.index("block 1") > told.index("in 0")
    assert told.index("block 2") > told.index("in 1")
    gathered = Stream.arriving([part(7 + seed, 12 + seed, seed) for seed in range(3)])
    assert bits(rounds.fed) == bits(run_stream(gathered, OURS, 1, SHORT).fed)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_matrix_is_drawn_with_gaps_where_nothing_was_measured(
    ending: str, tmp_path: Path
) -> None:
    rows = [[0.2], [0.1, 0.3], [0.05, math.nan, 0.25]]
    path = tmp_path / f"matrix.{ending}"
    draw({"matrix": {"NDCG@20": rows, "Recall@20": rows, "HR@20": rows}}, path)
    if ending == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    text = path.read_text(encoding="utf-8")
    assert text.count("after D2") == 2  # two panels
    assert text.count("0.050") == 2
    assert "nan" not in text
