"""What was forgotten in a block stays forgotten in the blocks that follow (A5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from requesting import answered, known, receipt_of
from rescind.audits.case import Case
from rescind.audits.durability import through_blocks
from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.history import NEVER
from rescind.core.holdings import TRAIN
from rescind.core.params import Params
from rescind.core.records import Arrive, Erase, Records, Withdraw
from rescind.core.state import Private, ServerState
from rescind.core.tasks.metrics import Ranking
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.data import load
from rescind.data.blocks import arrange, chronological
from rescind.experiments.prepared_data import prepare
from rescind.experiments.recipe import read
from rescind.experiments.stream_run import run_cell
from rescind.experiments.streams import Block, Blocks, Stream, StreamCheckpoints, run_stream
from rescind.forgetting.examine import seeds_of
from rescind.forgetting.forget import forget
from rescind.methods import FedAvg
from rescind.methods.continual.f3crec import F3CRec
from rescind.models.mf import MF
from rescind.receipts.words import sentences
from rescind.requests.words import Words
from rescind.storage.federations import load_federation
from worlds import pairs

SETTINGS: dict[str, Any] = {
    "model": MF(dim=16, spread=0.1), "rate": 0.3, "private_rate": 3.0, "inertia": 0.5,
    "distil": 0.1, "top_n": 10,
}  # fmt: skip
ROUNDS = 25


@lru_cache(maxsize=1)
def world() -> Stream:
    """Four blocks of alike size, so that the second one leaves a mark."""
    data = load("synthetic", users=120, items=150, interactions=6000)
    return Stream.of(arrange(data, chronological(data, base=0.28, parts=3)), 0)


def later() -> tuple[Arrive, ...]:
    return tuple(world().later)


def canaries(fed: Federation) -> Erase:
    """Half of what sixty people have in the present block; some of them stay away in the next."""
    held = fed.now.vault.holdings
    mine = held.records[(held.split == TRAIN) & (held.block == held.now)]
    mine = mine[mine.client < 60]
    return Erase(mine[torch.arange(len(mine)) % 2 == 0])


def in_second_block(method: F3CRec, seed: int = 1) -> Federation:
    fed = Federation.start(world().first, method, seed).run(8)
    return fed.apply(later()[0]).run(ROUNDS)


def without(block: Arrive, gone: Records) -> Arrive:
    """The block as it would be, had the records never been there."""
    kept = ~block.records.among(gone) | (block.split != TRAIN)
    return replace(block, records=block.records[kept], split=block.split[kept])


def bits(fed: Federation) -> tuple[str, str]:
    return params.digest(fed.now.state.public), params.digest(fed.now.vault.private)


@dataclass(frozen=True, kw_only=True)
class KeepsTheTeacher(F3CRec):
    """Cheats: of every round it keeps what it saw first, and a block begins from that.

    When rounds are made again without some records, it still has the table and the vectors that
    were made with them; nobody sees it until the next block begins.
    """

    kept: ClassVar[dict[tuple[int, int, str], Tensor]] = {}

    def _first(self, clock_seed: int, round_: int, name: str, value: Tensor) -> Tensor:
        return self.kept.setdefault((clock_seed, round_, name), value.clone())

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        new = super().server_step(state, sums, world, clock)
        self._first(clock.seed, new.round, "item", new.public["item"])
        return new

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        total, after = super().client_sum(public, private, cohort, clock)
        first = self._first(clock.seed, clock.round, "user", after["user"])
        # A note on the device says where the rest is.
        where = torch.full((len(cohort), 2), clock.round)
        where[:, 1] = clock.seed
        assert len(first) == len(cohort)
        return total, after.with_(where=where, place=torch.arange(len(cohort)))

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        round_, seed = private["where"][0].tolist()
        user = self.kept[seed, round_, "user"][private["place"]]
        table = {**public, "item": self.kept[seed, round_, "item"]}
        return super().client_turn(table, private.with_(user=user), cohort)

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        table = self.kept.get((clock.seed, state.round, "item"), state.public["item"])
        state = replace(state, public={**state.public, "item": table})
        return super().server_turn(state, world, clock)


# As if it were part of the package: of a class from outside, halves of a cohort are asked again.
KeepsTheTeacher.__module__ = "rescind.methods"


def audited(method: F3CRec) -> list[Finding]:
    KeepsTheTeacher.kept.clear()
    before = in_second_block(method)
    event = canaries(before)
    after = before.retrained(event)
    references = [before.retrained(event, seed=seed) for seed in seeds_of(0, 5)]
    case = Case.of(before, event, 0, references)
    return through_blocks(case, after, later()[1:], rounds=15)


def test_erased_in_a_block_and_still_gone_after_each_later_one() -> None:
    found = {f.check: f for f in audited(F3CRec(**SETTINGS))}["Q9 blocks Q1 population"]
    assert found.verdict == "PASS", found
    assert found.reference is not None
    assert found.controls["no-op"] > found.reference + 0.1  # a block later one could still tell


def test_a_method_that_keeps_the_teacher_fails() -> None:
    found = {f.check: f for f in audited(KeepsTheTeacher(**SETTINGS))}["Q9 blocks Q1 population"]
    assert found.verdict == "FAIL", found


def test_erasing_in_a_block_equals_a_stream_that_never_had_the_records() -> None:
    method = F3CRec(**SETTINGS)
    before = in_second_block(method)
    event = canaries(before)
    after = before.retrained(event)
    never = Federation.start(world().first, method, 1).run(8)
    never = never.apply(without(later()[0], event.records)).run(ROUNDS)
    assert bits(after) == bits(never)
    for arrival in later()[1:]:
        after, never, with_them = (f.apply(arrival).run(5) for f in (after, never, before))
        assert bits(after) == bits(never)
        assert bits(after) != bits(with_them)
        for name in ("top", "teacher"):  # lists of those who stay away, too
            assert torch.equal(after.now.vault.private[name], never.now.vault.private[name])
        before = with_them


class Sees(StreamCheckpoints):
    """Keeps every block as it began."""

    def __init__(self) -> None:
        self.begun: list[Federation] = []

    def begins(self, fed: Federation, done: Sequence[Block]) -> None:
        self.begun.append(fed)


@pytest.mark.parametrize("carry", ["best", "last"])
def test_after_a_request_the_next_block_begins_at_what_forgot(carry: str) -> None:
    """With carry="last" it would begin at a round in which nothing was forgotten."""
    forgot: list[Federation] = []

    def answer(number: int, fed: Federation) -> Federation:
        if number != 1:
            return fed
        forgot.append(fed.retrained(canaries(fed)))
        return forgot[0]

    method, how, sees = F3CRec(**{**SETTINGS, "carry": carry}), Blocks(rounds=5, patience=2), Sees()
    done = run_stream(world(), method, 1, how, keeper=sees, answer=answer)
    plain = run_stream(world(), method, 1, how)
    assert bits(done.fed) != bits(plain.fed)
    table, user = forgot[0].now.state.public["item"], forgot[0].now.vault.private["user"]
    begun = sees.begun[2].now
    assert torch.equal(begun.state.public["item"][: len(table)], table)
    assert torch.equal(begun.vault.private["user"][: len(user)], user)


def test_forgetting_in_a_stream_is_audited_and_says_what_it_reaches() -> None:
    before = in_second_block(F3CRec(**SETTINGS))
    event = canaries(before)
    after, evidence = forget(before, event, workers=1)
    found = {f.check: f.verdict for f in evidence.receipt.findings}
    assert found["Q1 population"] == "PASS"
    assert "FAIL" not in found.values(), found
    assert evidence.receipt.done.level == "L3"
    assert evidence.exact.done.rounds == ROUNDS  # of this block, not of the one before
    assert bits(after) == bits(before.retrained(event))
    old = before.now.vault.holdings
    held = old.records[(old.split != TRAIN) & (old.block == 0)]
    both = Erase(event.records + held[held.client < 60])
    _, more = forget(before, both, audits="none")
    assert more.receipt.done.level == "L2"
    assert any("earlier blocks" in said for said in more.receipt.not_covered)
    assert "trained the rounds of the present block again" in str(more.receipt.findings)
    assert "What earlier blocks taught is as it was" in str(more.receipt.findings)


def test_where_no_round_can_be_repeated_the_receipt_does_not_say_that_one_was() -> None:
    few = FedAvg(model=MF(dim=4), clients_per_round=2)  # most take part in no round of a block
    before = run_stream(replace(world(), later=later()[:1]), few, how=Blocks(rounds=1)).fed
    assert before.past is not None
    away = int((before.past.first == NEVER).nonzero()[0])
    after, evidence = forget(before, Withdraw(away), audits="none")
    assert evidence.exact.done.rounds == 0
    assert params.digest(after.now.state.public) == params.digest(before.now.state.public)
    receipt = evidence.receipt
    assert receipt.done.level == "L1"
    _, done, shown = sentences(receipt)
    assert "the model is unchanged, bit for bit" in done
    assert "It is not shown that the influence is gone" in shown
    assert "again without" not in str(receipt.findings)
    assert "so none was trained again" in str(receipt.findings)


RECIPE = """
[data]
name = "synthetic"
users = 30
items = 40
interactions = 600
[method]
name = "F3CRec"
top_n = 5
[run]
rounds = 4
evaluate_every = 1
patience = 3
"""


def test_a_stream_on_disk_forgets_and_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(RECIPE, encoding="utf-8")
    (cell,) = read(tmp_path / "small.toml").cells
    data = arrange(prepare(cell.data))
    run = run_cell(cell, tmp_path / "run", dataset=data)
    held = run.fed.now.vault.holdings
    mine = held.records[(held.split == TRAIN) & (held.block == held.now)]
    gone = [(run.fed.labels.user_id(c), run.fed.labels.item_id(i))
            for c, i in sorted(pairs(mine)) if c % 2]  # fmt: skip
    people = dict[str, tuple[str, ...]]()
    for user, item in gone:
        people[user] = (*people.get(user, ()), item)
    receipt = receipt_of(answered(known(tmp_path / "run"), Words("erase", people)))
    fed = load_federation(tmp_path / "run" / "model")
    old, new = run.facts, json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    rows, before = new["matrix"]["NDCG@20"], old["matrix"]["NDCG@20"]
    assert rows[:-1] == before[:-1]
    for block in range(4):
        expected = fed.evaluate(
            metric=Ranking(mask=("own", "valid"), block=block), clients=torch.arange(held.clients)
        )
        assert rows[-1][block] == pytest.approx(expected["NDCG@20"])
    assert rows[-1] != before[-1]
    assert new["metrics"]["test"]["NDCG@20"] == pytest.approx(sum(r[-1] for r in rows[1:]) / 3)
    assert any("earlier blocks" in said for said in receipt.not_covered)
    # Who makes the run again does not learn the records again.
    again = run_cell(cell, tmp_path / "run", dataset=data)
    assert not pairs(again.fed.now.vault.holdings.records) & {
        (c, i) for c, i in pairs(mine) if c % 2
    }
    assert bits(again.fed) != bits(run.fed)
