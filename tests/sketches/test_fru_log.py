"""Sketch: FRU, where devices log their own updates and a replay calibrates against the log.

After each round a device keeps the longest rows of its update. To forget, everybody goes back to
the first values and trains again; fresh and stored updates are both sent, and the server takes the
direction of the fresh sum at the length of the stored one (baselines.md 3.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rescind import Clock, Federation, Holdings, InProcess, OneByOne, Records, Withdraw
from rescind.core import jagged as jag
from rescind.core.cohort import Cohort
from rescind.core.method import Method
from rescind.core.model import Model
from rescind.core.params import Params
from rescind.core.records import Event
from rescind.core.run_state import Now
from rescind.core.state import Private, ServerState
from rescind.core.update import Rows, Update
from rescind.core.world import World
from rescind.models.lightgcn import LightGCN

# -- the sketch ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FRU(Method):
    """Federated recommendation unlearning (Yuan et al., WSDM 2023), without its negatives."""

    paper: ClassVar[str] = "Yuan et al., WSDM 2023"
    logs: ClassVar[bool] = True

    model: Model = LightGCN()
    kept_share: float = 0.5
    """Alpha: the share of its updated rows, longest first, that a device stores."""
    effort: float = 0.1
    """Lambda: the share of the local epochs that a replay takes, at least one."""
    replaying: bool = False

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """In a replay: those who took part then and are still here."""
        if not self.replaying:
            return super().server_sample(state, world, clock)
        then = [s for s in state.memory.named("participants") if s.round == clock.round]
        ids = then[0].values["ids"]
        return ids[world.available[ids]]

    def server_step(self, state, sums, world, clock) -> ServerState:
        """Learning: the mean. Replay: the fresh mean at the length of the stored one."""
        if not self.replaying:
            memory = state.memory.keep("participants", clock.round, {"ids": sums["train"].who})
            return replace(super().server_step(state, sums, world, clock), memory=memory)
        if not sums or not sums["train"].clients:  # everybody of that round has left
            return state.next(state.public)
        mean = sums["train"].mean()
        fresh, stored = mean["item"], mean["stored"]
        move = fresh * (stored.norm() / fresh.norm().clamp(min=1e-30))
        return state.next({**state.public, "item": state.public["item"] + move})

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """In a replay the device also sends what it stored of this round."""
        if not self.replaying:
            return super().client_train(public, private, cohort, clock)
        shorter = replace(self, replaying=False, epochs=max(1, round(self.effort * self.epochs)))
        update, private = shorter.client_train(public, private, cohort, clock)
        stored = private.log.at(clock.round)
        if stored is None:
            fresh = update.entries["item"]
            stored = fresh[torch.zeros(0, dtype=torch.int64)]
        return replace(update, entries={**update.entries, "stored": stored}), private

    def client_log(self, update: Update, cohort: Cohort) -> dict[str, Rows]:
        """The longest ceil(alpha n) of a device's n rows."""
        if self.replaying:
            return {}
        rows = update.entries["item"]
        order = torch.argsort(rows.value.norm(dim=1), descending=True, stable=True)
        rows = rows[order[torch.argsort(rows.owner[order], stable=True)]]
        count = jag.counts(rows.owner, len(cohort))
        wanted = torch.ceil(count * self.kept_share)
        return {"item": rows[jag.places(rows.owner, len(cohort)) < wanted[rows.owner]]}

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Go back to the start without the leaver, and replay."""
        rounds = fed.now.state.round
        return self.rolled_back(fed.apply(event)).run(rounds, method=replace(self, replaying=True))

    def rolled_back(self, fed: Federation) -> Federation:
        """First values everywhere; the devices keep their logs, the server who took part."""
        return fed.restart(keep=("log", "memory"))


# -- its tests -----------------------------------------------------------------------------------

ROUNDS = 4
METHOD = FRU(
    model=LightGCN(dim=4),
    clients_per_round=3,
    epochs=2,
    temperature=0.2,
    rate=0.3,
    private_rate=0.1,
    kept_share=1.0,
    effort=1.0,
)


def holdings() -> Holdings:
    many = (3, 5, 2, 4, 6)
    client = [c for c, n in enumerate(many) for _ in range(n)]
    item = [(4 * c + 3 * j) % 14 for c, n in enumerate(many) for j in range(n)]
    return Holdings.of(Records.of(client, item), torch.zeros(20, dtype=torch.int8), 5, 14)


def double(fed: Federation) -> Federation:
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    vault = replace(vault, private={n: v.double() for n, v in vault.private.items()})
    return replace(fed, now=replace(fed.now, state=state, vault=vault))


def start(method: Method, executor: InProcess | None = None) -> Federation:
    return double(Federation.start(holdings(), method, seed=2, executor=executor))


def table(fed: Federation) -> Tensor:
    return fed.now.state.public["item"]


@pytest.mark.parametrize("executor", [InProcess(), InProcess(chunk=2), OneByOne()])
def test_with_no_target_the_replay_reproduces_the_original_table(executor: InProcess) -> None:
    fed = start(METHOD, executor).run(ROUNDS)
    replayed = double(METHOD.rolled_back(fed)).run(ROUNDS, method=replace(METHOD, replaying=True))
    assert float((table(replayed) - table(fed)).abs().max()) < 3e-13  # baselines.md, check (1)
    assert_close(replayed.now.vault.private, fed.now.vault.private, atol=3e-13, rtol=0.0)
    assert float((table(fed) - table(start(METHOD))).abs().max()) > 0.1


def test_in_single_precision_it_reproduces_the_table_to_rounding() -> None:
    fed = Federation.start(holdings(), METHOD, seed=2).run(ROUNDS)
    replayed = METHOD.rolled_back(fed).run(ROUNDS, method=replace(METHOD, replaying=True))
    assert_close(table(replayed), table(fed), atol=1e-6, rtol=0.0)


def one_update(fed: Federation, method: Method, client: int) -> tuple[Tensor, dict[str, Tensor]]:
    """What one client alone would send, as a whole table, and its private values after."""
    ids, vault = torch.tensor([client]), fed.now.vault
    cohort = InProcess().cohort(method, vault, ids)
    clock = fed.clock.at(fed.now.state.round + 1)
    update, private = method.client_train(fed.now.state.public, vault.read(ids), cohort, clock)
    rows, whole = update.entries["item"], torch.zeros_like(table(fed))
    for index, value in zip(rows.index.tolist(), rows.value, strict=True):
        whole[index] = value
    return whole, dict(private.values)


def longest(whole: Tensor, share: float) -> Tensor:
    """Only the longest rows of a client's update, by a plain sort."""
    touched = [i for i in range(len(whole)) if float(whole[i].abs().sum()) > 0]
    touched.sort(key=lambda i: -float(whole[i].norm()))
    kept = torch.zeros_like(whole)
    for i in touched[: math.ceil(share * len(touched))]:
        kept[i] = whole[i]
    return kept


def test_the_replay_without_a_leaver_equals_plain_loops_over_stored_tables() -> None:
    method = replace(METHOD, kept_share=0.5, effort=0.5)
    fed, stored = start(method), {}
    for round_ in range(1, ROUNDS + 1):  # whole tables per client and round: what FRU avoids
        for client in method.server_sample(fed.now.state, fed.world, fed.clock.at(round_)).tolist():
            stored[round_, client] = longest(one_update(fed, method, client)[0], 0.5)
        fed = fed.run(1)
    assert 4 in {client for _, client in stored}
    left = fed.apply(Withdraw(4))
    slow = double(method.rolled_back(left))
    replay = replace(method, replaying=True)
    fast = slow.run(ROUNDS, method=replay)
    plain = replace(METHOD, kept_share=0.5, epochs=1)  # half of two epochs
    for round_ in range(1, ROUNDS + 1):
        who = [c for r, c in stored if r == round_ and c != 4]
        sent = {c: one_update(slow, plain, c) for c in who}
        fresh = sum(whole for whole, _ in sent.values()) / len(who)
        old = sum(stored[round_, c] for c in who) / len(who)
        moved = table(slow) + fresh * float(old.norm() / fresh.norm())
        user = slow.now.vault.private["user"].clone()
        for c, (_, private) in sent.items():
            user[c] = private["user"][0]
        state = replace(slow.now.state, public={"item": moved}, round=round_)
        vault = replace(slow.now.vault, private={"user": user})
        slow = replace(slow, now=Now(state, vault))
    assert_close(table(fast), table(slow), atol=1e-12, rtol=0.0)
    assert_close(fast.now.vault.private, slow.now.vault.private, atol=1e-12, rtol=0.0)
    ready = METHOD.unlearn(Federation.start(holdings(), METHOD, seed=2).run(2), Withdraw(4))
    assert ready.now.state.round == 2


def test_a_step_has_the_length_of_the_stored_sum_whatever_the_fresh_one_was() -> None:
    fed = start(METHOD).run(ROUNDS)
    rolled = double(METHOD.rolled_back(fed))
    lengths = {}
    for rate in (0.3, 0.1):  # one epoch of plain SGD: a smaller rate scales every fresh update
        method = replace(METHOD, replaying=True, epochs=1, rate=rate, private_rate=0.0)
        lengths[rate] = table(rolled.run(1, method=method)) - table(rolled)
    assert_close(lengths[0.3], lengths[0.1], atol=1e-12, rtol=0.0)  # check (2)
    stored = start(METHOD).run(1)  # at alpha = 1 the stored sum of round 1 is its step
    length = float((table(stored) - table(start(METHOD))).norm())
    assert float(lengths[0.3].norm()) == pytest.approx(length, rel=1e-12)  # check (3)


def test_a_device_stores_the_longest_half_and_the_bytes_are_those_of_the_formula() -> None:
    fed = Federation.start(holdings(), replace(METHOD, kept_share=0.5), seed=2).run(1)
    ids = METHOD.server_sample(fed.now.state, fed.world, fed.clock.at(1))
    (round_, _, rows), expected = fed.now.vault.log.entries[0], 0
    assert round_ == 1
    first = Federation.start(holdings(), METHOD, seed=2)
    for client in ids.tolist():
        whole = one_update(first, METHOD, client)[0]
        kept = longest(whole, 0.5)
        mine = rows[rows.owner == client]
        assert sorted(mine.index.tolist()) == kept.abs().sum(1).nonzero().squeeze(1).tolist()
        assert_close(mine.value, kept[mine.index], atol=1e-6, rtol=0.0)
        expected += len(mine) * (4 * 4 + 4)  # d = 4 floats and a row number
    assert fed.now.vault.log.nbytes == expected


def test_the_log_of_a_leaver_is_deleted_with_the_client() -> None:
    fed = start(METHOD).run(ROUNDS)
    assert any(4 in rows.owner.tolist() for _, _, rows in fed.now.vault.log.entries)
    left = fed.apply(Withdraw(4))
    assert not any(4 in rows.owner.tolist() for _, _, rows in left.now.vault.log.entries)
    others = [len(rows) - rows.owner.tolist().count(4) for _, _, rows in fed.now.vault.log.entries]
    assert [len(rows) for _, _, rows in left.now.vault.log.entries] == others


def test_a_device_reads_its_own_log_only() -> None:
    fed = start(METHOD).run(ROUNDS)
    for client in range(5):
        log = fed.now.vault.read(torch.tensor([client])).log
        for round_, _, then in fed.now.vault.log.entries:
            rows = log.at(round_)
            assert torch.equal(rows.value, then.value[then.owner == client])
            assert bool((rows.owner == 0).all())
