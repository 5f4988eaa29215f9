"""User-level membership attacks (Zhang et al., CCS 2021; baselines.md 6.2): does a list look
like that of a user in the training data?
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, PerPerson, draw_ids, lists
from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.records import Records

LIST = 100  # length of the lists
FEATURES = 32
SHADOWS = 600  # users of the shadow model that the attack is trained on
STEPS = 300


def known_people(case: Case, fed: Federation) -> PerPerson:
    """Compute the fraction of users that the shadow-free attack calls members (baselines.md 6.2).

    S1 = 1 / ||mean(their records) - mean(their list)||, S2 = 1 / ||mean(their list) - mean(popular
    items)||, with the auditor's item features; a member if S1 > S2. 1e-4 is added to each norm.
    """
    feature = _features(case)
    ids = case.people
    taste = _mean_of(feature, case.forgotten, ids)
    top = lists(fed, ids, LIST)
    there = (top >= 0).double().unsqueeze(2)
    seen = (feature[top.clamp(min=0)] * there).sum(1) / there.sum(1).clamp(min=1)
    crowd = feature[popular(case)].mean(0)
    near, far = (torch.linalg.vector_norm(g, dim=1) + 1e-4 for g in (taste - seen, seen - crowd))
    return PerPerson((1 / near > 1 / far).double(), torch.ones(len(ids), dtype=torch.float64))


def item_features(case: Case) -> Tensor:
    """Compute the auditor's item features: top singular directions of other users' data. [I, d]"""
    others = case.trained[~torch.isin(case.trained.client, case.people)]
    sizes = case.before.world.sizes
    place = torch.arange(sizes.items).unsqueeze(1)
    width = min(FEATURES, sizes.items, sizes.clients)
    basis = case.clock.at(0).normal("audit features", place, torch.arange(width)).float()
    for _ in range(4):
        basis = torch.linalg.qr(basis).Q
        seen = jagged.segment_sum(basis[others.item], others.client, sizes.clients)
        basis = jagged.segment_sum(seen[others.client], others.item, sizes.items)
    return functional.normalize(basis.double(), dim=0)


def _features(case: Case) -> Tensor:
    return case.cached("features", case.before, lambda: item_features(case))


def popular(case: Case) -> Tensor:
    counts = jagged.counts(case.trained.item, case.before.world.sizes.items)
    return torch.topk(counts, min(LIST, len(counts))).indices


def _mean_of(feature: Tensor, records: Records, ids: Tensor) -> Tensor:
    """Return the mean feature of each user's records. [len(ids), d]"""
    mine = torch.isin(records.client, ids)
    place = torch.searchsorted(ids, records.client[mine])
    return jagged.segment_mean(feature[records.item[mine]], place, len(ids))


def trained(case: Case, fed: Federation) -> PerPerson:
    """Return the member probability of each user, by a network trained on a shadow model.

    Feature: mean over the user's records minus the rank-weighted mean over the list (weights
    (100 - j) / 5050). Shadow members are other users with the lists of a retrain, shadow
    non-members other users with the popular list. Layers 32-8-2, as in the paper.
    """
    network = case.cached("people network", case.before, lambda: _fit(case))
    ids = case.people
    seen = _contrast(case, case.forgotten, ids, lists(fed, ids, LIST))
    value = _predict(network, seen)[:, 1]
    return PerPerson(value, torch.ones(len(ids), dtype=torch.float64))


def _contrast(case: Case, records: Records, ids: Tensor, top: Tensor) -> Tensor:
    feature = _features(case)
    weight = (LIST - torch.arange(top.shape[1])).double() * (top >= 0)
    weight = weight / weight.sum(1, keepdim=True).clamp(min=1)
    seen = (feature[top.clamp(min=0)] * weight.unsqueeze(2)).sum(1)
    gap = _mean_of(feature, records, ids) - seen
    return gap / feature.std()


Network = list[tuple[Tensor, Tensor]]


def _fit(case: Case) -> Network:
    ids = draw_ids(case.bystanders, SHADOWS, case.clock, "shadow people")
    is_member = (case.clock.at(0).bits("audit shadow people", ids) & 1).bool()
    top = lists(case.references[-1], ids, LIST)
    popular_list = popular(case)
    top = torch.where(is_member.unsqueeze(1), top[:, : len(popular_list)], popular_list)
    seen, label = _contrast(case, case.trained, ids, top), is_member.long()
    sizes = (seen.shape[1], 32, 8, 2)
    network = [_layer(one, two, case.clock.step(n)) for n, (one, two) in enumerate(pairwise(sizes))]
    leaves = [t.requires_grad_() for layer in network for t in layer]
    velocity = [torch.zeros_like(t) for t in leaves]
    for _ in range(STEPS):
        loss = functional.nll_loss(_predict(network, seen).log(), label)
        for t, v, g in zip(leaves, velocity, torch.autograd.grad(loss, leaves), strict=True):
            v.mul_(0.9).add_(g)
            t.data.sub_(0.01 * v)
    return [(w.detach(), b.detach()) for w, b in network]


def _layer(one: int, two: int, clock: Clock) -> tuple[Tensor, Tensor]:
    weight = clock.normal("audit network", torch.arange(one).unsqueeze(1), torch.arange(two))
    return weight / one**0.5, torch.zeros(two, dtype=torch.float64)


def _predict(network: Network, seen: Tensor) -> Tensor:
    """Return probabilities [n, 2]: non-member, member."""
    for weight, bias in network[:-1]:
        seen = functional.relu(seen @ weight + bias)
    weight, bias = network[-1]
    return torch.softmax(seen @ weight + bias, 1)
