"""PDC-FRS-R: users contribute perturbed items, and an auxiliary model learns from these only.

A reading (baselines.md section 2.3) of Yang et al., ADMA 2024 (arXiv 2409.07773). The full text was
not available: name it "-R" in tables.

The server must see perturbed items only, with their sender, but it receives a sum. So it sends each
sharer a range of slots; the device writes item + 1 of its perturbed items into them. The sum is
then the list of all contributions. No server function here reads `world.shared.item`; a test checks
this.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot, Mail
from rescind.core.gradient import RankingMethod
from rescind.core.model import Model, RankingModel
from rescind.core.optim import server_move
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.ranges import must_lie
from rescind.core.signatures import Sent, Summed, Sums
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.tasks.metrics import top_k
from rescind.core.update import Rows, Sum
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import SharedGraph
from rescind.methods._lent_graph.steps import GraphSteps, grown, prefixed, server_rows, under
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.lightgcn import LightGCN

SIMILAR = f"{REFERENCE}similar"
"""The item table at the end of the warm-up, from which all similarities are computed."""
SENT = "contributed"
"""Entry of a sum: [slots, 1] integers, item + 1 or 0."""
AUXILIARY = "auxiliary/"
FEDERATED = "federated/item"
"""The table trained by devices only; devices are sent the fused one."""
BLOCK = 1024
"""Items per batch: [block, I] float64 is 30 MB on ML-1M. Changes memory only."""


@dataclass(frozen=True, kw_only=True)
class PDCFRSR(RankingMethod):
    """FedAvg, fused with an auxiliary LightGCN that is trained on perturbed contributions.

    Pr[M(i) = j] is proportional to exp(epsilon q(i, j) / 2) over the whole catalogue, with q(i, j)
    = (1 + cos(v_i, v_j)) / 2: epsilon-LDP for each item; k items cost k epsilon. An item is
    perturbed once: a device that is asked again sends the same.

    DEPARTS the paper: similarity, epsilon, augmentation and fusion are ours (not in the text we
    could read). Device updates go to the federated table, and devices receive the fused one: fusing
    into the federated table pulls it back every round (.227 NDCG@20 on ML-100K, .258 without; test
    figures of one seed, not evidence). Averaging or InfoNCE, and the weight, were chosen on
    validation (recipes/fedshare/tuning-baselines.toml). Devices train on all their records: only a
    perturbed copy leaves them.

    DEPARTS local privacy: a simulation draws the perturbation from the clock; a server that knows
    the seed could undo it. A real device must use its own entropy. Clipping would also cut
    contributions: use no guards with this method.
    """

    paper: ClassVar[str] = "Yang et al., ADMA 2024 (a reading)"

    model: Model = LightGCN()
    clients_per_round: int | None = 256
    reduce: Literal["mean", "sum"] = "sum"
    temperature: float = 0.2
    negatives: int = 4
    rate: float = 0.15
    private_rate: float = 0.0
    candidates: int | None = field(default=None, init=False)  # of a softmax, which it refuses
    local_includes_shared: bool = False
    """Must be False, so that a device can tell which items it lent. It trains on all items."""

    epsilon: float = 5.0
    """Privacy budget per contributed item; baselines.md 2.3 uses 5 to 10."""
    warm_up: int = 10
    """Rounds before similarities are frozen and contributions requested, T_w."""
    hints: int = 10
    """Maximum number of items suggested to a sharer."""
    hint_share: float = 0.1
    """Maximum number of suggestions, as a fraction of the sharer's items, m."""
    hint_weight: float = 0.3
    """Weight of a suggested item as a positive, omega."""
    fuse: Literal["mix", "infonce"] = "mix"
    """Fusion of the auxiliary model with the item table: averaging, or FedShare's Eq. (17)."""
    fusion: float = 0.1
    """Weight of the auxiliary table in the average, kappa, or of InfoNCE."""
    layers: int = 3
    """Propagation steps on the perturbed graph."""
    auxiliary_steps: int = 5
    """Adam steps of the auxiliary model per round, E_s. Ours."""
    auxiliary_pairs: int | None = 8192
    """Contributed pairs drawn per step, as in FedShare."""
    auxiliary_rate: float = 0.001
    """Its learning rate, and that of InfoNCE; fedshare.md section 3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate != "clients" or self.loss != "bpr" or self.local_includes_shared:
            raise ConfigError(
                "PDCFRSR needs aggregate = 'clients', loss = 'bpr', local_includes_shared = false."
            )
        must_lie(self, "[0, inf]", "epsilon", "hints")
        must_lie(self, "[0, 1]", "fusion")

    def server_init(self, world: World, clock: Clock) -> ServerState:
        state = super().server_init(world, clock)
        item = state.public["item"]
        frozen = item.clone() if self.warm_up == 0 else torch.zeros_like(item)
        none = torch.zeros(0, dtype=torch.int64, device=world.members.device)
        own = {"sent/user": none, "sent/item": none.clone(), "sent/count": none.clone()}
        return replace(state, public={**state.public, SIMILAR: frozen}, own=own)

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        return self._plain.server_sample(state, world, clock)

    def server_mail(
        self, state: ServerState, world: World, ids: Tensor, clock: Clock
    ) -> Mail | None:
        """Send sharers their slots if the contribution is missing, and suggestions."""
        if state.round < self.warm_up or not (self.fusion or self.hints):
            return None
        lent = lent_counts(world)
        to = ids[lent[ids] > 0]
        missing = grown(state.own["sent/count"], lent)[to] != lent[to]
        slot = torch.where(missing, jagged.starts(lent)[to] + 1, 0)
        mail = {"slot": slot, "slots": torch.full_like(slot, int(lent.sum()))}
        if self.hints:
            mail["hints"] = self._suggested(state, world, to)
        return Mail(to, mail)

    def _suggested(self, state: ServerState, world: World, to: Tensor) -> Tensor:
        """Return the auxiliary model's suggestions for these clients. [to, hints], -1: none"""
        out = torch.full((len(to), self.hints), -1, dtype=torch.int64, device=to.device)
        if f"{AUXILIARY}item" not in state.own or not len(state.own["sent/user"]):
            return out
        graph = perturbed_graph(state.own, world)
        rows = state.own[f"{AUXILIARY}user"].index_select(0, graph.sharers)
        user, item = graph.propagate(rows, state.own[f"{AUXILIARY}item"], self.layers)
        known = torch.isin(to, graph.sharers)
        rows = torch.searchsorted(graph.sharers, to[known])
        scores = functional.normalize(user[rows], dim=-1) @ functional.normalize(item, dim=-1).T
        owner, place = jagged.take(graph.lot.first, graph.lot.count, rows)
        seen = Lot(owner, graph.item[place], len(rows))
        out[known] = top_k(scores, seen, self.hints)
        return out

    def server_step(
        self, state: ServerState, sums: Sums, world: World, clock: Clock
    ) -> ServerState:
        fed = {"item": state.own.get(FEDERATED, state.public["item"])}
        state = replace(state, public={**state.public, **fed})
        after = super().server_step(state, {r: _without(s) for r, s in sums.items()}, world, clock)
        if after.round == self.warm_up:
            after = replace(after, public={**after.public, SIMILAR: after.public["item"].clone()})
        slots = [total.totals[SENT] for total in sums.values() if SENT in total.totals]
        after = replace(after, own=received(after.own, slots, world))
        return self.server_auxiliary(after, world, clock) if len(after.own["sent/user"]) else after

    def server_auxiliary(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        graph, own = perturbed_graph(state.own, world), under(AUXILIARY, state.own)
        item = own.pop("item", state.public[SIMILAR])
        user = server_rows(own, world, item.shape[1], 0.04, clock)
        own.pop("user", None)
        moments = {n: v for n, v in own.items() if n.startswith("server/")}
        steps = GraphSteps(self.layers, self.auxiliary_steps, self.auxiliary_pairs)
        steps = replace(steps, rate=self.auxiliary_rate, temperature=self.temperature)
        user, item, moments = steps.run(graph, user, item, moments, clock)
        kept = {n: v for n, v in state.own.items() if not n.startswith(AUXILIARY)}
        kept |= prefixed(AUXILIARY, {"user": user, "item": item, **moments})
        state = replace(state, own=kept)
        if not self.fusion:
            return state
        if self.fuse == "mix":
            rows, table = graph.lent_items, state.public["item"].clone()
            table[rows] = (1 - self.fusion) * table[rows] + self.fusion * item[rows]
            own = {**state.own, FEDERATED: state.public["item"]}
            return replace(state, public={**state.public, "item": table}, own=own)
        _, seen = graph.propagate(user.index_select(0, graph.sharers), item, self.layers)
        return self._contrasted(state, graph, seen, clock)

    def _contrasted(
        self, state: ServerState, graph: SharedGraph, seen: Tensor, clock: Clock
    ) -> ServerState:
        """Take one Adam step on InfoNCE of item table and auxiliary views (Eq. 17)."""
        item = state.public["item"].detach().requires_grad_()
        rows = graph.some_items(1024, clock)  # FedShare's batch
        one = functional.normalize(item.index_select(0, rows), dim=-1)
        two = functional.normalize(seen.index_select(0, rows), dim=-1)
        near = torch.arange(len(rows), device=rows.device)
        loss = self.fusion * functional.cross_entropy(one @ two.T / 0.2, near)  # FedShare's tau
        down = {"item": -torch.autograd.grad(loss, item)[0]}
        table, moments = {"item": item.detach()}, under("fuse/", state.own)
        moved, moments = server_move(table, moments, down, "adam", self.auxiliary_rate)
        own = {**state.own, **prefixed("fuse/", moments)}
        return replace(state, public={**state.public, **moved}, own=own)

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        after = super().server_turn(state, world, clock)
        new = after.public["item"][len(state.public["item"]) :]
        public = {**after.public, SIMILAR: torch.cat([state.public[SIMILAR], new])}
        own = dict(after.own)
        for name in (f"{AUXILIARY}item", FEDERATED):
            if name in own:
                own[name] = torch.cat([own[name], new])
        return replace(after, public=public, own=own)

    def client_train(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Sent:
        """Train on all records of a device; add its contribution if the server asks for it."""
        whole = replace(cohort, train=cohort.own)
        update, private = super().client_train(public, private, whole, clock)
        rows = self.client_contribution(public, cohort, clock)
        if rows is not None:
            update = replace(update, entries={**update.entries, SENT: rows})
        return update, private

    def client_sum(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Summed:
        if cohort.mail is not None and bool(cohort.mail.values["has"].any()):
            return super().client_sum(public, private, cohort, clock)
        return self._plain.client_sum(public, private, replace(cohort, train=cohort.own), clock)

    def client_contribution(self, public: Params, cohort: Cohort, clock: Clock) -> Rows | None:
        """Return perturbed copies of the lent items, without duplicates, in their slots."""
        if cohort.mail is None or not bool((cohort.mail.values["slot"] > 0).any()):
            return None
        mail, own, train, items = cohort.mail.values, cohort.own, cohort.train, cohort.items
        kept = torch.isin(own.owner * items + own.item, train.owner * items + train.item)
        lent = (mail["slot"][own.owner] > 0) & ~kept
        owner, item = own.owner[lent], own.item[lent]
        chance = clock.at(0).uniform("perturbed item", cohort.ids[owner], item)
        drawn = torch.unique(owner * items + perturbed(public[SIMILAR], item, chance, self.epsilon))
        owner, item = drawn // items, drawn % items
        index = mail["slot"][owner] - 1 + jagged.places(owner, len(cohort))
        return Rows(owner, index, (item + 1).unsqueeze(1), int(mail["slots"].max()))

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        owner, item = self.client_hints(cohort)
        if not len(owner):
            return super().client_plan(public, private, cohort, clock)
        items, own = cohort.items, cohort.own
        cell = torch.cat([own.owner * items + own.item, owner * items + item]).sort().values
        both = Lot(cell // items, cell % items, len(cohort))
        whole = replace(cohort, train=both, own=both)
        plan = super().client_plan(public, private, whole, clock)
        hinted = torch.isin(plan.owner * items + plan.items["positive"], owner * items + item)
        weight = torch.where(hinted, self.hint_weight, 1.0)
        return replace(plan, values={**plan.values, "weight": weight})

    def client_hints(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the suggestions a device accepts: new items, at most hint_share. (owner, item)"""
        none = cohort.ids.new_zeros(0)
        if cohort.mail is None or "hints" not in cohort.mail.values:
            return none, none
        hints, own = cohort.mail.values["hints"], cohort.own
        most = torch.round(self.hint_share * own.count).long().unsqueeze(1)
        cell = torch.arange(len(cohort), device=hints.device).unsqueeze(1) * cohort.items + hints
        new = (hints >= 0) & cohort.mail.values["has"].unsqueeze(1)
        new &= ~torch.isin(cell, own.owner * cohort.items + own.item)
        new &= torch.cumsum(new, 1) <= most
        owner, place = new.nonzero(as_tuple=True)
        return owner, hints[owner, place]

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        if "weight" not in batch.values:
            return super().client_loss(work, batch, public, private, cohort, clock)
        model, owner = cast(RankingModel, self.model), batch.owner
        held = {name: rows.index_select(0, work.held) for name, rows in work.rows.items()}
        user = model.infer(held, {**work.dense, **work.own}, cohort.train)
        taken = {c: {n: t[at] for n, t in work.rows.items()} for c, at in batch.rows.items()}
        near, far = (model.score(taken[c], user, owner) for c in ("positive", "negative"))
        each = functional.softplus((far - near) / self.temperature)
        for rows in taken.values():
            each = each + self.decay * sum(r.square().sum(-1) for r in rows.values())
        each = each * batch.values["weight"]
        reduced = jagged.segment_sum if self.reduce == "sum" else jagged.segment_mean
        return reduced(each, owner, batch.clients)

    @property
    def _plain(self) -> FedAvg:
        same = {f.name: getattr(self, f.name) for f in fields(FedAvg)}
        return FedAvg(**{**same, "local_includes_shared": True})


def lent_counts(world: World) -> Tensor:
    """Return the number of items each client lends. [clients]"""
    return jagged.counts(torch.unique(world.shared.pairs()) >> 31, world.sizes.clients)


def received(own: Params, slots: list[Tensor], world: World) -> dict[str, Tensor]:
    """Add new contributions to the server's values and drop outdated ones.

    A contribution is outdated if the number of its sender's loans has changed.
    """
    lent = lent_counts(world)
    count = grown(own["sent/count"], lent)
    valid = (count == lent) & (lent > 0)
    keep = valid[own["sent/user"]]
    user, item = own["sent/user"][keep], own["sent/item"][keep]
    count = torch.where(valid, count, 0)
    if slots:
        value = sum(slots[1:], slots[0]).squeeze(1)
        sender = jagged.owners_of(lent)
        new = (value > 0) & (value <= world.sizes.items) & (count[sender] == 0)
        user = torch.cat([user, sender[new]])
        item = torch.cat([item, value[new] - 1])
        count = count.clone()
        count[sender[new]] = lent[sender[new]]
    return {**own, "sent/user": user, "sent/item": item, "sent/count": count}


def law(table: Tensor, item: Tensor, epsilon: float) -> Tensor:
    """Return Pr[M(i) = j] over the catalogue for each given i. [n, I] float64

    exp(epsilon q(i, j) / 2) / sum, with q(i, j) = (1 + cos(v_i, v_j)) / 2 in [0, 1]: sensitivity 1,
    so it is epsilon-LDP (McSherry and Talwar 2007).
    """
    unit = functional.normalize(table.double(), dim=-1)
    alike = (1 + (unit[item] @ unit.T).clamp(-1, 1)) / 2
    return torch.softmax(alike * (epsilon / 2), dim=1)


def perturbed(table: Tensor, item: Tensor, chance: Tensor, epsilon: float) -> Tensor:
    """Draw M(i) for each item by inverse sampling with `chance` in [0, 1). [n]"""
    out = torch.empty_like(item)
    for start in range(0, len(item), BLOCK):
        cut = slice(start, start + BLOCK)
        up_to = torch.cumsum(law(table, item[cut], epsilon), 1)
        at = (chance[cut].unsqueeze(1) * up_to[:, -1:]).to(up_to)
        out[cut] = torch.searchsorted(up_to, at, right=True).squeeze(1).clamp(max=len(table) - 1)
    return out


def perturbed_graph(own: Params, world: World) -> SharedGraph:
    order = torch.argsort(own["sent/user"] * world.sizes.items + own["sent/item"])
    sharers, user = torch.unique(own["sent/user"][order], return_inverse=True)
    return SharedGraph(user, own["sent/item"][order], sharers, world.sizes.items)


def _without(total: Sum) -> Sum:
    both = (total.totals, total.touched)
    totals, touched = ({n: v for n, v in each.items() if n != SENT} for each in both)
    return replace(total, totals=totals, touched=touched)
