"""The request under audit, and the samples that checks take from a model.

Members are the forgotten records; non-members are held-out records of the same users, which no
model was trained on. Works for interactions and for labelled nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

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
from rescind.core.tasks.metrics import Scores, top_k, without_items
from rescind.errors import ConfigError, DataError

AUDITOR = 0x5EED_0A0D
"""Added to the seed, so that the auditor's draws differ from those of a run with that seed."""
T = TypeVar("T")
CELLS = 2**24  # clients x items scored together: 64 MB of float32


@dataclass(frozen=True)
class Targets:
    """Members and non-members, of users who have both kinds."""

    records: Records
    member: Tensor
    """[n] bool: True if forgotten, False if held out"""
    person: Tensor
    """[n] index into `ids`"""
    ids: Tensor
    """[U] sorted"""

    @classmethod
    def of(cls, forgotten: Records, held: Records) -> Targets:
        """Collect both kinds of records of users who have both; each pair once."""
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
        return len(self.ids)

    def __getitem__(self, chosen: Tensor) -> Targets:
        """Select records; users who no longer have both kinds are dropped."""
        return Targets.of(self.records[chosen & self.member], self.records[chosen & ~self.member])


@dataclass(frozen=True)
class Case:
    """One request under audit: the model before it, its records, and the auditor's clock."""

    before: Federation
    event: Event
    clock: Clock
    references: tuple[Federation, ...] = ()
    """Models retrained without the records, with other seeds."""

    @classmethod
    def of(
        cls,
        before: Federation,
        event: Event,
        seed: int = 0,
        references: Sequence[Federation] = (),
    ) -> Case:
        if not isinstance(event, Unshare | Erase | Withdraw):
            raise ConfigError(
                f"{type(event).__name__} does not ask to forget anything. Use Unshare, Erase or "
                f"Withdraw."
            )
        case = cls(before, event, Clock(AUDITOR + seed), tuple(references))
        if not len(case.forgotten):
            raise DataError(
                f"this {type(event).__name__} names no record that the model was trained on."
            )
        return case

    def _of_split(self, split: str) -> Records:
        held = self.before.now.vault.holdings
        mine = (held.split == SPLITS[split]) & (held.block == held.now)
        pairs = torch.unique(held.records[mine].pairs().cpu())  # a pair counts once
        return Records.of(pairs >> 31, pairs & (2**31 - 1))

    @cached_property
    def trained(self) -> Records:
        return self._of_split("train")

    @cached_property
    def forgotten(self) -> Records:
        """The training records that the request names."""
        if isinstance(self.event, Withdraw):
            return self.trained[self.trained.client == self.event.client]
        assert isinstance(self.event, Unshare | Erase)
        return self.trained[self.trained.among(self.event.records.to("cpu"))]

    @cached_property
    def valid(self) -> Records:
        return self._of_split("valid")

    @cached_property
    def test(self) -> Records:
        return self._of_split("test")

    @cached_property
    def people(self) -> Tensor:
        """Users whose records are forgotten. [U] sorted"""
        return torch.unique(self.forgotten.client)

    def other_refs(self, fed: Federation) -> list[Federation]:
        return [other for other in self.references if other is not fed]

    @cached_property
    def bystanders(self) -> Tensor:
        """Members whose records are not forgotten. sorted"""
        members = self.before.world.members.nonzero().squeeze(1).cpu()
        return members[~torch.isin(members, self.people)]

    @cached_property
    def targets(self) -> Targets:
        """Forgotten against all held-out records of the same users."""
        return Targets.of(self.forgotten, self.valid + self.test)

    @cached_property
    def tested(self) -> Targets:
        """Forgotten against test records only, for attacks that use the validation items."""
        return Targets.of(self.forgotten, self.test)

    @cached_property
    def _cache(self) -> dict[tuple[str, int], tuple[Federation, Any]]:
        return {}

    def cached(self, what: str, fed: Federation, make: Callable[[], T]) -> T:
        """Return a value that several checks need of one model, computed once."""
        key = (what, id(fed))
        if key not in self._cache:
            self._cache[key] = (fed, make())  # keeps the model alive, so that its id stays unique
        found: T = self._cache[key][1]
        return found

    @property
    def ranks(self) -> bool:
        """Return whether records are ranked items (and not nodes)."""
        return self.before.now.vault.holdings.task != "nodes"


@dataclass(frozen=True)
class PerPerson:
    """One number per user; the measure is the weighted mean."""

    value: Tensor
    """[U] float64"""
    weight: Tensor
    """[U] float64"""

    @property
    def people(self) -> int:
        return len(self.value)

    @property
    def counted(self) -> int:
        """Number of users whose value counts: others have nothing that could be measured."""
        return int((self.weight > 0).sum())

    @property
    def size(self) -> float:
        """Number of balanced pairs (for an AUC), or of users."""
        return float(self.weight.sum())

    def measure(self, counts: Tensor) -> Measure:
        """Compute the mean, and the mean of each bootstrap draw. counts: [B, U]"""
        total = (self.weight * self.value).sum() / self.weight.sum().clamp(min=1e-12)
        draws = (counts @ (self.weight * self.value)) / (counts @ self.weight).clamp(min=1e-12)
        return Measure(float(total), draws)


@dataclass(frozen=True)
class Tail:
    """True-positive rate at a small false-positive rate, one threshold for all users."""

    evidence: Tensor
    """[n] higher means more likely a member"""
    targets: Targets
    rate: float = 0.01

    @property
    def people(self) -> int:
        return self.targets.people

    @property
    def size(self) -> float:
        return float(balanced(self.targets)[self.targets.member].sum())

    def measure(self, counts: Tensor) -> Measure:
        """Compute the TPR where a fraction `rate` of the non-members is above. counts: [B, U]"""
        order = torch.argsort(self.evidence, descending=True, stable=True)
        weight, member = balanced(self.targets)[order], self.targets.member[order]
        person = self.targets.person[order]
        inside, out = (
            jagged.segment_sum(weight * m, person, self.people) for m in (member, ~member)
        )
        wrong = torch.cumsum(weight * ~member, 0) / out.sum().clamp(min=1e-12)
        # No draw moves the threshold by a factor of eight, so records below that are not needed.
        top = int((wrong <= 8 * self.rate).sum())
        near = (weight[:top], member[:top], person[:top])
        all_users = torch.ones(1, self.people, dtype=torch.float64)
        point = self._rate(all_users, inside, out, near)
        parts = torch.split(counts, max(1, 2**21 // max(top, 1)))
        draws = [self._rate(part, inside, out, near) for part in parts]
        return Measure(float(point), torch.cat(draws))

    def _rate(
        self, counts: Tensor, inside: Tensor, out: Tensor, near: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Compute the TPR. counts: [B, U]    inside, out: [U] weights    near: sorted    -> [B]"""
        weight, member, person = near
        here = weight * counts[:, person]
        wrong = torch.cumsum(here * ~member, 1)
        taken = wrong <= self.rate * (counts @ out).unsqueeze(1)
        return (here * member * taken).sum(1) / (counts @ inside).clamp(min=1e-12)


def balanced(targets: Targets) -> Tensor:
    """Compute weights that give both kinds of each user the same total weight. [n] float64

    m members and h non-members of a user weigh w / m and w / h each, w = m h / (m + h): the
    inverse variance of that user's AUC near 0.5.
    """
    one, two = _counts(targets)
    both = one * two / (one + two)
    each = torch.where(targets.member, one[targets.person], two[targets.person])
    return both[targets.person] / each


def _counts(targets: Targets) -> tuple[Tensor, Tensor]:
    n = targets.people
    one = jagged.counts(targets.person[targets.member], n).double()
    return one, jagged.counts(targets.person[~targets.member], n).double()


def auc_by_person(evidence: Tensor, targets: Targets) -> PerPerson:
    """Compute each user's AUC of forgotten against held-out records.

    AUC_u = (sum of the members' ranks - m (m + 1) / 2) / (m h), ties count half; weighted by
    m h / (m + h).    evidence: [n]
    """
    one, two = _counts(targets)
    rank = ranks_within(evidence, targets.person, targets.people)
    total = jagged.segment_sum(rank[targets.member], targets.person[targets.member], targets.people)
    auc = (total - one * (one + 1) / 2) / (one * two)
    return PerPerson(auc, one * two / (one + two))


def ranks_within(values: Tensor, person: Tensor, people: int) -> Tensor:
    """Rank each value within its user, from 1; ties get the mean rank. [n] float64"""
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


def evidence(fed: Federation, records: Records) -> Tensor:
    """Return minus the loss of each record (item or node). [n]"""
    return -fed.query(records, "loss").cpu()


@dataclass(frozen=True)
class TopLists:
    """Top-k lists of users, as a metric, so that they are computed where the data is."""

    clients: int
    k: int = 20
    split: str = "test"
    mask: tuple[str, ...] = ("own",)
    block: int | None = None
    without: tuple[int, ...] = ()
    """Items that no list may have."""
    only_lists: ClassVar[bool] = True

    def totals(self, scores: Scores, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Return "list": [clients, k], item index + 1; 0 where there is no item or no user."""
        top = top_k(without_items(scores, self.without), masked, self.k) + 1
        empty = top.new_zeros(self.clients, self.k)
        return {"list": empty.index_copy(0, cohort.ids, top)}, len(cohort)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        return {}


def lists(
    fed: Federation,
    ids: Tensor,
    k: int = 20,
    without: tuple[int, ...] = (),
    mask: tuple[str, ...] = ("own",),
) -> Tensor:
    """Compute the top-k lists of users; -1 where a list is shorter. [len(ids), k]

    mask: lots whose items are left out; ("had",): what a user has in any split, to serve people
    """
    return listed(fed, ids, TopLists(fed.world.sizes.clients, k, mask=mask, without=without))


def listed(fed: Federation, ids: Tensor, metric: TopLists) -> Tensor:
    """Compute lists of users as a metric makes them; -1 where one is shorter. [len(ids), k]"""
    here, now = ids.to(fed.world.members.device), fed.now
    total = fed.executor.measure(fed.method, now.state.public, now.vault, here, metric)
    return total.totals["list"].long()[here].cpu() - 1


def in_list(top: Tensor, ids: Tensor, records: Records) -> Tensor:
    """Return whether each record is in its user's list. top: [U, k], ids sorted    -> [n] bool"""
    pairs = (ids.unsqueeze(1) << 31) + top
    return torch.isin(records.pairs(), pairs[top >= 0])


def scores_without_private(fed: Federation, cohort: Cohort) -> Tensor:
    """Score a cohort with the public parameters alone: private values are zero. [C, I]"""
    private = fed.now.vault.private
    blank = Private({n: torch.zeros_like(v[cohort.ids]) for n, v in private.items()})
    return fed.method.checked_scores(fed.now.state.public, blank, cohort)


def scores_from_split(fed: Federation, split: str, targets: Targets, holder: Federation) -> Tensor:
    """Score records with users represented only by the items of one split. [n]

    This attacks the public parameters alone: private values are zero, and the user vector is
    computed from items that no model was trained on.
    """
    held = holder.now.vault.holdings
    device = held.members.device
    out = torch.zeros(len(targets), dtype=torch.float64)
    for start in range(0, targets.people, max(1, CELLS // held.items)):
        chunk = targets.ids[start : start + max(1, CELLS // held.items)].to(device)
        seen = held.of_clients(split, chunk)
        cohort = replace(held.cohort(chunk), own=seen, train=seen)
        scores = scores_without_private(fed, cohort).double().cpu()
        here = (targets.person >= start) & (targets.person < start + len(chunk))
        out[here] = scores[targets.person[here] - start, targets.records.item[here]]
    return out


def first_table(fed: Federation) -> Tensor | None:
    """Return the first public table of vectors, None if there is none. [I, d]"""
    tables = (fed.now.state.public[name] for name in fed.method.model.tables)
    return next((table for table in tables if table.dim() == 2), None)


def draw_seed(clock: Clock, purpose: str, number: int = 0) -> int:
    return int(clock.at(0).bits(purpose, torch.tensor(number))) & (2**31 - 1)


def draw_ids(ids: Tensor, n: int, clock: Clock, purpose: str) -> Tensor:
    """Draw at most n of the ids. sorted"""
    order = torch.argsort(clock.at(0).bits(f"audit {purpose}", ids), stable=True)
    return ids[order[:n]].sort().values


def mean_of(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)
