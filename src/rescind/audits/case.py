"""What every check asks of a model: one number per record, about the same records.

Forgotten records are members, held-out records of the same people, which no model was ever trained
on, are not. A record is an interaction or a labelled node; the probe does not mind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from rescind.audits.verdict import Measure
from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.holdings import SPLITS
from rescind.core.params import Params
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.core.state import Private
from rescind.core.tasks.metrics import top_k
from rescind.errors import ConfigError, DataError

AUDITOR = 0x5EED_0A0D
"""Added to the auditor's seed, so that its draws are not those of any run of the same seed."""
T = TypeVar("T")
CELLS = 2**24  # clients x items scored together: 64 MB of float32


@dataclass(frozen=True)
class Targets:
    """Records that are asked about, of people who have both kinds."""

    records: Records
    member: Tensor
    """[n] bool: forgotten (True), or held out and never trained on"""
    person: Tensor
    """[n] the place in `ids`"""
    ids: Tensor
    """[U] sorted"""

    @classmethod
    def of(cls, forgotten: Records, held: Records) -> Targets:
        """Both kinds of the people who have both; each pair once."""
        one, two = (torch.unique(r.pairs()) for r in (forgotten, held))
        pairs = torch.cat([one, two])
        member = torch.arange(len(pairs)) < len(one)
        client = pairs >> 31
        both = torch.isin(client, client[member]) & torch.isin(client, client[~member])
        ids, person = torch.unique(client[both], return_inverse=True)
        records = Records.of(client[both], pairs[both] & (2**31 - 1))
        return cls(records, member[both], person, ids)

    def __len__(self) -> int:
        return len(self.member)

    @property
    def people(self) -> int:
        """How many people are asked about."""
        return len(self.ids)

    def __getitem__(self, chosen: Tensor) -> Targets:
        """Some of the records; people are counted anew."""
        return Targets.of(self.records[chosen & self.member], self.records[chosen & ~self.member])


@dataclass(frozen=True)
class Case:
    """One request under audit: the model before it, its records, and the auditor's own clock."""

    before: Federation
    event: Event
    clock: Clock
    references: tuple[Federation, ...] = ()
    """Models that never had the records: retrains under other seeds."""

    @classmethod
    def of(
        cls,
        before: Federation,
        event: Event,
        seed: int = 0,
        references: Sequence[Federation] = (),
    ) -> Case:
        """The case of a request; a request without trained records cannot be audited."""
        if not isinstance(event, Unshare | Erase | Withdraw):
            raise ConfigError(
                f"{type(event).__name__} asks for nothing to be forgotten, so there is nothing to "
                f"audit. Give an Unshare, an Erase or a Withdraw."
            )
        case = cls(before, event, Clock(AUDITOR + seed), tuple(references))
        if not len(case.forgotten):
            raise DataError(
                f"this {type(event).__name__} names no record that the model was trained on, so "
                f"there is no trace to look for."
            )
        return case

    def _of_split(self, split: str) -> Records:
        held = self.before.now.vault.holdings
        mine = (held.split == SPLITS[split]) & (held.block == held.now)
        pairs = torch.unique(held.records[mine].pairs().cpu())  # a pair counts once
        return Records.of(pairs >> 31, pairs & (2**31 - 1))

    @cached_property
    def trained(self) -> Records:
        """Everything the model was trained on before the request."""
        return self._of_split("train")

    @cached_property
    def forgotten(self) -> Records:
        """The records of the request that were trained on."""
        if isinstance(self.event, Withdraw):
            return self.trained[self.trained.client == self.event.client]
        assert isinstance(self.event, Unshare | Erase)
        return self.trained[self.trained.among(self.event.records.to("cpu"))]

    @cached_property
    def valid(self) -> Records:
        """Held out for choosing, never trained on."""
        return self._of_split("valid")

    @cached_property
    def test(self) -> Records:
        """Held out for measuring, never trained on."""
        return self._of_split("test")

    @cached_property
    def people(self) -> Tensor:
        """Who asked. [U] sorted"""
        return torch.unique(self.forgotten.client)

    def beside(self, fed: Federation) -> list[Federation]:
        """What a model is held against: the retrains, less itself."""
        return [other for other in self.references if other is not fed]

    @cached_property
    def bystanders(self) -> Tensor:
        """Members who did not ask. sorted"""
        members = self.before.world.members.nonzero().squeeze(1).cpu()
        return members[~torch.isin(members, self.people)]

    @cached_property
    def targets(self) -> Targets:
        """Forgotten against all held-out records of the same people."""
        return Targets.of(self.forgotten, self.valid + self.test)

    @cached_property
    def tested(self) -> Targets:
        """Forgotten against test records alone: attacks that use the validation items."""
        return Targets.of(self.forgotten, self.test)

    @cached_property
    def _known(self) -> dict[tuple[str, int], tuple[Federation, Any]]:
        return {}

    def once(self, what: str, fed: Federation, make: Callable[[], T]) -> T:
        """Something that several checks want of one model, made once."""
        key = (what, id(fed))
        if key not in self._known:
            self._known[key] = (fed, make())  # with the model, so that no other takes its id
        found: T = self._known[key][1]
        return found

    @property
    def ranks(self) -> bool:
        """Whether records are items that are ranked (and not nodes)."""
        return self.before.now.vault.holdings.task == "ranking"


# -- samples: what a check takes from one model --------------------------------------------------


@dataclass(frozen=True)
class PerPerson:
    """One number per person; the measure is their weighted mean."""

    value: Tensor
    """[U] float64"""
    weight: Tensor
    """[U] float64"""

    @property
    def people(self) -> int:
        """Over how many people a bootstrap draws."""
        return len(self.value)

    @property
    def size(self) -> float:
        """Balanced pairs (for an AUC), or people."""
        return float(self.weight.sum())

    def measure(self, counts: Tensor) -> Measure:
        """The mean, and the mean in every draw. counts: [B, U]"""
        total = (self.weight * self.value).sum() / self.weight.sum().clamp(min=1e-12)
        draws = (counts @ (self.weight * self.value)) / (counts @ self.weight).clamp(min=1e-12)
        return Measure(float(total), draws)


@dataclass(frozen=True)
class Tail:
    """True-positive rate at a small false-positive rate, one threshold for everybody."""

    evidence: Tensor
    """[n] higher: more like a member"""
    targets: Targets
    rate: float = 0.01

    @property
    def people(self) -> int:
        """Over how many people a bootstrap draws."""
        return self.targets.people

    @property
    def size(self) -> float:
        """Balanced pairs."""
        return float(balanced(self.targets)[self.targets.member].sum())

    def measure(self, counts: Tensor) -> Measure:
        """TPR at the threshold where `rate` of the held-out records lie above it. counts: [B, U]"""
        order = torch.argsort(self.evidence, descending=True, stable=True)
        weight, member = balanced(self.targets)[order], self.targets.member[order]
        person = self.targets.person[order]
        inside, out = (
            jagged.segment_sum(weight * m, person, self.people) for m in (member, ~member)
        )
        wrong = torch.cumsum(weight * ~member, 0) / out.sum().clamp(min=1e-12)
        # No draw moves the threshold by a factor of eight, so records below that need no sorting.
        top = int((wrong <= 8 * self.rate).sum())
        near = (weight[:top], member[:top], person[:top])
        everybody = torch.ones(1, self.people, dtype=torch.float64)
        point = self._rate(everybody, inside, out, near)
        some = torch.split(counts, max(1, 2**21 // max(top, 1)))
        draws = [self._rate(part, inside, out, near) for part in some]
        return Measure(float(point), torch.cat(draws))

    def _rate(
        self, counts: Tensor, inside: Tensor, out: Tensor, near: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """counts: [B, U]    inside, out: [U] weight of each kind    near: sorted    -> [B]"""
        weight, member, person = near
        here = weight * counts[:, person]
        wrong = torch.cumsum(here * ~member, 1)
        taken = wrong <= self.rate * (counts @ out).unsqueeze(1)
        return (here * member * taken).sum(1) / (counts @ inside).clamp(min=1e-12)


def balanced(targets: Targets) -> Tensor:
    """Weights under which each person counts for both kinds alike. [n] float64

    m members and h others of a person weigh w / m and w / h, w = m h / (m + h): the inverse
    variance of that person's AUC near one half.
    """
    one, two = _counts(targets)
    both = one * two / (one + two)
    each = torch.where(targets.member, one[targets.person], two[targets.person])
    return both[targets.person] / each


def _counts(targets: Targets) -> tuple[Tensor, Tensor]:
    many = targets.people
    one = jagged.counts(targets.person[targets.member], many).double()
    return one, jagged.counts(targets.person[~targets.member], many).double()


def auc_by_person(evidence: Tensor, targets: Targets) -> PerPerson:
    """How often a person's forgotten record has more evidence than a held-out one of theirs.

    AUC_u = (sum of the members' ranks - m (m + 1) / 2) / (m h), ties count half; weighted by
    m h / (m + h).    evidence: [n]
    """
    one, two = _counts(targets)
    rank = ranks_within(evidence, targets.person, targets.people)
    total = jagged.segment_sum(rank[targets.member], targets.person[targets.member], targets.people)
    auc = (total - one * (one + 1) / 2) / (one * two)
    return PerPerson(auc, one * two / (one + two))


def ranks_within(values: Tensor, person: Tensor, people: int) -> Tensor:
    """The rank of each value among those of its person, from 1; equal values share. [n] float64"""
    if not len(values):
        return torch.zeros(0, dtype=torch.float64)
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(person[order], stable=True)]
    owner, sorted_values = person[order], values[order]
    place = jagged.places(owner, people).double()
    fresh = torch.ones_like(owner, dtype=torch.bool)
    fresh[1:] = (owner[1:] != owner[:-1]) | (sorted_values[1:] != sorted_values[:-1])
    group = torch.cumsum(fresh, 0) - 1
    shared = jagged.segment_mean(place, group, int(group[-1]) + 1)[group] + 1
    return torch.empty_like(shared).index_copy_(0, order, shared)


# -- asking a model ------------------------------------------------------------------------------


def evidence(fed: Federation, records: Records) -> Tensor:
    """How well the model remembers each record: minus its loss, for items and nodes. [n]"""
    return -fed.query(records, "loss").cpu()


@dataclass(frozen=True)
class TopLists:
    """The lists people are shown, as a metric, so that they are made where the data is."""

    clients: int
    k: int = 20
    split: str = "test"
    mask: tuple[str, ...] = ("own",)
    block: int | None = None

    def totals(self, scores: Tensor, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """ "list": [clients, k], items counted from 1; 0 is nobody or nothing."""
        top = top_k(scores, masked, self.k) + 1
        empty = top.new_zeros(self.clients, self.k)
        return {"list": empty.index_copy(0, cohort.ids, top)}, len(cohort)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """Nothing to sum up."""
        return {}


def lists(fed: Federation, ids: Tensor, k: int = 20) -> Tensor:
    """What these people are shown; -1 where a list ends early. [len(ids), k]"""
    metric = TopLists(fed.world.sizes.clients, k)
    here = ids.to(fed.world.members.device)
    now = fed.now
    total = fed.executor.measure(fed.method, now.state.public, now.vault, here, metric)
    return total.totals["list"].long()[here].cpu() - 1


def shown(top: Tensor, ids: Tensor, records: Records) -> Tensor:
    """Whether each record's item is in its person's list. top: [U, k], ids sorted    -> [n] bool"""
    pairs = (ids.unsqueeze(1) << 31) + top
    return torch.isin(records.pairs(), pairs[top >= 0])


def infer_from(fed: Federation, lot: str, targets: Targets, holdings_of: Federation) -> Tensor:
    """Scores of records for people known by one lot of theirs only, and nothing private. [n]

    So the public parameters alone are attacked: the person's vector is made of items that no model
    was trained on.
    """
    held, method, public = holdings_of.now.vault.holdings, fed.method, fed.now.state.public
    device = held.members.device
    out = torch.zeros(len(targets), dtype=torch.float64)
    for start in range(0, targets.people, max(1, CELLS // held.items)):
        chunk = targets.ids[start : start + max(1, CELLS // held.items)].to(device)
        seen = held.of_clients(lot, chunk)
        cohort = replace(held.cohort(chunk), own=seen, train=seen)
        private = fed.now.vault.private
        blank = Private({n: torch.zeros_like(v[chunk]) for n, v in private.items()})
        scores = method.client_scores(public, blank, cohort).double().cpu()
        here = (targets.person >= start) & (targets.person < start + len(chunk))
        out[here] = scores[targets.person[here] - start, targets.records.item[here]]
    return out


def some(ids: Tensor, many: int, clock: Clock, purpose: str) -> Tensor:
    """At most so many of these, drawn by the auditor. sorted"""
    order = torch.argsort(clock.at(0).bits(f"audit {purpose}", ids), stable=True)
    return ids[order[:many]].sort().values


def mean_of(values: Sequence[Tensor]) -> Tensor:
    """The mean of several tensors of one shape."""
    return torch.stack(list(values)).mean(0)
