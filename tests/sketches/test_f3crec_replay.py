"""Sketch: F3CRec, replay decided inside a batch and a temporal mean on the server.

When a block ends a device keeps its top-N list and the scores it gave. In the next block every
mini-batch ranks all items with the local model as it stands, measures how far the list has moved,
and distils from a part of it that shrinks with that distance (f3crec.md section 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind import Arrive, Clock, Federation, Holdings, InProcess, OneByOne, Records
from rescind import jagged as jag
from rescind.cohort import Cohort
from rescind.method import Method
from rescind.model import Model
from rescind.models.mf import MF
from rescind.params import Params
from rescind.plan import Batch, Plan, Work
from rescind.state import Private, ServerState
from rescind.tasks.metrics import top_k
from rescind.update import Rows
from rescind.world import World

# -- the sketch ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Replay(Method):
    """Federated continual recommendation (Lim et al., CIKM 2025)."""

    model: Model = MF()
    loss: Literal["bpr", "bce"] = "bce"
    negatives: int = 4
    batch_size: int | None = 512
    rate_per_item: bool = True
    top_n: int = 30
    """Items kept as a user's past preference, S_u in Eq. (1)."""
    shift_scale: float = 0.006
    """Epsilon in Eq. (3): how fast replay shrinks as the ranking moves."""
    distil: float = 0.1
    """Lambda in Eq. (6)."""
    inertia: float = 0.9
    """Beta in Eq. (10): how much of the old item table stays."""

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Keep the table of the block that ends, Q^(t-1)."""
        memory = state.memory.keep("block", state.round, {"item": state.public["item"]}, last=1)
        return replace(super().server_turn(state, world, clock), memory=memory)

    def server_step(self, state, sums, world, clock) -> ServerState:
        """The plain mean, then for old items the temporal mean, Eq. (8)-(13)."""
        new = super().server_step(state, sums, world, clock)
        for kept in state.memory.named("block"):
            old, mean = kept.values["item"], new.public["item"]
            now = mean[: len(old)]
            shift = (old - now).square().sum(1, keepdim=True) / math.sqrt(old.shape[1])
            share = self.inertia / (1 + shift)
            mixed = torch.cat([(1 - share) * now + share * old, mean[len(old) :]])
            new = replace(new, public={**new.public, "item": mixed})
        return new

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        """A device without a past has -1 on its list."""
        blank = torch.full((len(ids), self.top_n), -1, device=ids.device)
        return super().client_init(ids, clock).with_(top=blank, teacher=blank.float())

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """Keep the top-N list, own items included, and the teacher's scores."""
        scores = self.client_scores(public, private, cohort)
        top = top_k(scores, None, self.top_n)
        return private.with_(top=top, teacher=scores.gather(1, top.clamp(min=0)))

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """The usual samples; whatever may be replayed is on the shelf too."""
        owner, k = (private["top"] >= 0).nonzero(as_tuple=True)
        plan = super().client_plan(public, private, cohort, clock)
        return replace(plan, also=((owner, private["top"][owner, k]),))

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """Recommendation plus distillation, Eq. (6)."""
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        owner, k = self.replayed(work, batch, public, private, cohort, clock)
        row = work.shelf.find(owner, private["top"][owner, k])
        student = self.model.score({"item": work.rows["item"][row]}, work.own, owner)
        each = functional.binary_cross_entropy_with_logits(
            student, torch.sigmoid(private["teacher"][owner, k]), reduction="none"
        )
        return loss + self.distil * jag.segment_mean(each, owner, len(cohort))

    @torch.no_grad()
    def replayed(self, work, batch, public, private, cohort, clock) -> tuple[Tensor, Tensor]:
        """Which places (owner, k) of the lists are replayed now: n = floor(N exp(-eps shift))."""
        shelf, top = work.shelf, private["top"]
        scores = self.model.scores(public, work.own)
        scores[shelf.owner, shelf.item] = self.model.score(work.rows, work.own, shelf.owner)
        place = torch.arange(top.shape[1], device=top.device)
        order = torch.argsort(scores, dim=1, descending=True, stable=True)
        rank = torch.argsort(order, dim=1).gather(1, top.clamp(min=0))
        shift = (rank - place).abs().sum(1)
        many = torch.floor(self.top_n * torch.exp(-self.shift_scale * shift.double()))
        drawn = torch.argsort(clock.bits("replay", cohort.ids.unsqueeze(1), place), dim=1)
        chosen = torch.argsort(drawn, dim=1) < many.unsqueeze(1)
        return (chosen & (top >= 0)).nonzero(as_tuple=True)


# -- its tests -----------------------------------------------------------------------------------

METHOD = Replay(
    model=MF(dim=4, spread=0.4),
    negatives=2,
    batch_size=6,
    rate=0.2,
    private_rate=0.5,
    top_n=5,
    shift_scale=0.05,
    distil=0.7,
)
FIRST, SECOND = (5, 2, 6, 3), {0: 4, 1: 9, 4: 3, 5: 6}  # records of each client in the two blocks


def double(fed: Federation) -> Federation:
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    private = {n: v.double() if v.is_floating_point() else v for n, v in vault.private.items()}
    return replace(fed, now=replace(fed.now, state=state, vault=replace(vault, private=private)))


def pairs(counts: dict[int, int], items: int, step: int) -> Records:
    client = [c for c, many in counts.items() for _ in range(many)]
    item = [(step * c + 5 * j) % items for c, many in counts.items() for j in range(many)]
    return Records.of(client, item)


def second_block(method: Method, executor: InProcess) -> Federation:
    """Two rounds on 4 clients and 12 items; then clients 0 and 1 come back, 4 and 5 are new."""
    records = pairs(dict(enumerate(FIRST)), 12, 3)
    held = Holdings.of(records, torch.zeros(len(records), dtype=torch.int8), 4, 12)
    fed = double(Federation.start(held, method, seed=1, executor=executor)).run(2)
    records = pairs(SECOND, 16, 7)
    split = torch.zeros(len(records), dtype=torch.int8)
    return fed.apply(Arrive(records, split, clients=6, items=16))


def trained_alone(fed: Federation, client: int) -> tuple[Tensor, Tensor, list[int]]:
    """One client with the whole table, in plain loops: (table, user, items replayed per batch)."""
    m, public, vault = fed.method, fed.now.state.public, fed.now.vault
    ids = torch.tensor([client])
    cohort, clock = InProcess().cohort(m, vault, ids), fed.clock.at(fed.now.state.round + 1)
    plan = m.client_plan(public, vault.read(ids), cohort, clock.step(0))
    table = public["item"].clone().requires_grad_()
    user = vault.private["user"][client].clone().requires_grad_()
    items = {"params": [table], "lr": m.rate * len(table)}
    sgd = torch.optim.SGD([items, {"params": [user], "lr": m.private_rate}])
    top, teacher = vault.private["top"][client].tolist(), vault.private["teacher"][client]
    played = []
    batches = zip(
        plan.items["item"].split(plan.sizes), plan.values["label"].split(plan.sizes), strict=True
    )
    for number, (item, label) in enumerate(batches):
        loss = functional.binary_cross_entropy_with_logits(table[item] @ user, label.double())
        if top[0] >= 0:
            scores = (table @ user).tolist()
            ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
            shift = sum(abs(ranked.index(i) - k) for k, i in enumerate(top))
            many = math.floor(m.top_n * math.exp(-m.shift_scale * shift))
            bits = [int(clock.step(0).batch(number).bits("replay", ids, k)) for k in range(m.top_n)]
            chosen = sorted(range(m.top_n), key=bits.__getitem__)[:many]
            played.append(many)
            kept = []
            for k in chosen:
                p, q = torch.sigmoid(table[top[k]] @ user), torch.sigmoid(teacher[k])
                kept.append(-(q * p.log() + (1 - q) * (1 - p).log()))
            if kept:
                loss = loss + m.distil * torch.stack(kept).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return table.detach(), user.detach(), played


@pytest.mark.parametrize("executor", [InProcess(), InProcess(chunk=2), OneByOne()])
def test_replay_in_a_batch_and_the_temporal_mean_equal_plain_loops(executor: InProcess) -> None:
    fed = second_block(METHOD, executor)
    old = fed.now.state.memory.named("block")[0].values["item"]
    assert old.shape == (12, 4)
    assert fed.now.state.public["item"].shape == (16, 4)
    for _ in range(2):
        alone = {client: trained_alone(fed, client) for client in SECOND}
        mean = torch.stack([table for table, _, _ in alone.values()]).mean(0)
        for i in range(12):
            shift = float(((old[i] - mean[i]) ** 2).sum()) / 2.0  # sqrt(d) = 2
            share = 0.9 / (1 + shift)
            mean[i] = (1 - share) * mean[i] + share * old[i]
        fed = fed.run(1)
        assert_close(fed.now.state.public["item"], mean, atol=1e-10, rtol=0.0)
        for client, (_, user, _) in alone.items():
            assert_close(fed.now.vault.private["user"][client], user, atol=1e-10, rtol=0.0)
    played = [n for _, _, many in alone.values() for n in many]
    assert max(played) > 0  # something was replayed,
    assert min(played) < METHOD.top_n  # and not always everything


def test_a_list_is_made_when_a_block_ends_and_only_by_those_who_were_there() -> None:
    fed = second_block(METHOD, InProcess())
    again = second_block(replace(METHOD, distil=0.0), InProcess())  # block 0 has nothing to distil
    assert_close(fed.now.vault.private, again.now.vault.private)
    top, user = fed.now.vault.private["top"], fed.now.vault.private["user"]
    scores = user @ fed.now.state.memory.named("block")[0].values["item"].T
    for client in range(4):
        best = sorted(range(12), key=lambda i: -float(scores[client, i]))[:5]
        assert top[client].tolist() == best
    assert bool((top[4:] == -1).all())


def updates(fed: Federation) -> dict[int, dict[int, Tensor]]:
    """What each client would send: client -> item -> row."""
    ids, vault = torch.tensor(list(SECOND)), fed.now.vault
    cohort = InProcess().cohort(fed.method, vault, ids)
    clock = fed.clock.at(fed.now.state.round + 1)
    update, _ = fed.method.client_train(fed.now.state.public, vault.read(ids), cohort, clock)
    rows = update.entries["item"]
    assert isinstance(rows, Rows)
    sent: dict[int, dict[int, Tensor]] = {client: {} for client in SECOND}
    for owner, item, value in zip(rows.owner, rows.index, rows.value, strict=True):
        if bool((value != 0).any()):
            sent[int(ids[owner])][int(item)] = value
    return sent


def test_newcomers_train_as_if_nothing_was_ever_distilled() -> None:
    fed = second_block(METHOD, InProcess())
    with_, without = updates(fed), updates(fed.fork(method=replace(METHOD, distil=0.0)))
    for client in (4, 5):
        assert with_[client].keys() == without[client].keys()
        assert all(torch.equal(with_[client][i], without[client][i]) for i in with_[client])
    assert with_[0].keys() > without[0].keys()  # replayed items that no sample touches


def test_a_list_stays_with_someone_who_skips_a_block() -> None:
    fed = second_block(METHOD, InProcess()).run(1)
    before = fed.now.vault.private["top"].clone()
    records = pairs({0: 2, 2: 3}, 16, 5)
    third = Arrive(records, torch.zeros(len(records), dtype=torch.int8), clients=6, items=16)
    after = fed.apply(third)
    assert torch.equal(after.now.vault.private["top"][2:4], before[2:4])  # away in the second block
    assert bool((after.now.vault.private["top"][4:] >= 0).all())  # new then, known now
    assert len(after.now.state.memory.named("block")) == 1
    assert torch.equal(
        after.now.state.memory.named("block")[0].values["item"], fed.now.state.public["item"]
    )


def test_draws_inside_a_batch_are_the_same_alone_and_in_a_crowd_over_two_epochs() -> None:
    method = replace(METHOD, epochs=2)
    crowd = second_block(method, InProcess()).run(1).now
    alone = second_block(method, OneByOne()).run(1).now
    assert_close(crowd.state.public["item"], alone.state.public["item"], atol=1e-10, rtol=0.0)
