"""Q3, U-LiRA: a likelihood ratio for every single record, from shadows that forgot it.

IN-law: train with the record, then unlearn it by the pipeline under audit. OUT-law: train without
it. Perfect unlearning makes the two laws one: AUC one half, TPR = FPR at every threshold
(baselines.md 6.3). Each shadow trains on a random half of the records and forgets that half; its
partner takes the other half. What a shadow says before it forgets is the no-op, at no cost.

Of a client that leaves a graph, shadows share out its training nodes and as many held-out ones: so
each trains on as many nodes as the client did, among the same neighbours, and forgets the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case
from rescind.audits.finding import Finding
from rescind.audits.state_attacks import item_table, person_rows, spread_once
from rescind.audits.verdict import resample
from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.holdings import TEST, TRAIN
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.core.tasks.ranking import draw_negatives
from rescind.errors import ConfigError

PAIRS = 16
NEGATIVES = 100  # fixed items a record's score is held against
DRAWS = 200
MARGIN = 0.02  # of the AUC; TPR and the worst tenth are told beside it
PROBES = ("output", "kept")
"""What is asked: the score a person gets, or what the server's rows of people say."""

Unlearn = Callable[[Federation, Event], Federation]
Phis = Mapping[str, Tensor]
"""By "probe/when": [F], when = before (the no-op) or after."""


def halves(many: int, pairs: int, clock: Clock) -> Tensor:
    """Which records each shadow trains on; 2p and 2p + 1 share them out. [2 * pairs, many] bool"""
    number = torch.arange(pairs).unsqueeze(1)
    bits = clock.at(0).bits("audit halves", number, torch.arange(many))
    one = ((bits >> 40) & 1).bool()
    return torch.stack([one, ~one], 1).view(2 * pairs, many)


def asked_about(case: Case) -> Records:
    """The records that shadows share out: those forgotten; for a graph's leaver as many again."""
    mine = case.forgotten
    if case.ranks or not isinstance(case.event, Withdraw):
        return mine
    held = case.valid + case.test
    held = held[held.client == case.event.client]
    drawn = torch.argsort(case.clock.at(0).bits("audit nodes", held.item), stable=True)
    return mine + held[drawn[: len(mine)]]


def shadow(case: Case, number: int, pairs: int, unlearn: Unlearn) -> dict[str, Tensor]:
    """Train one shadow, let it forget its half, and write down what it says of every record."""
    fed, event = trained(case, number, pairs)
    told = {f"{p}/before": v for p, v in said(case, fed).items()}
    return told | {f"{p}/after": v for p, v in said(case, unlearn(fed, event)).items()}


def trained(case: Case, number: int, pairs: int) -> tuple[Federation, Event]:
    """A shadow that learnt its half of the records, and the request that it forget them."""
    records = asked_about(case)
    inside = halves(len(records), pairs, case.clock)[number]
    if not bool(inside.any()) or bool(inside.all()):
        raise ConfigError(
            f"U-LiRA shares {len(records)} records out between two shadows, and one got none. "
            f"Audit a request with more records."
        )
    before, held = case.before, case.before.now.vault.holdings
    event: Event = case.event
    if not case.ranks and isinstance(event, Withdraw):
        split = held.split.clone()
        for half, kind in ((inside, TRAIN), (~inside, TEST)):
            split[held.records.among(records[half])] = kind
        before = before.with_(vault=replace(before.now.vault, holdings=replace(held, split=split)))
    else:
        kind_of = Unshare if isinstance(event, Unshare) else Erase
        learnt = held.records[held.split == TRAIN]
        out, mine = (learnt[learnt.among(records[half])] for half in (~inside, inside))
        before, event = before.apply(kind_of(out)), kind_of(mine)
    return before.fork(seed=shadow_seed(case, number)).restart().run(
        case.before.now.state.round
    ), event


def shadow_seed(case: Case, number: int) -> int:
    """The seed of a shadow."""
    return int(case.clock.at(0).bits("audit shadow", torch.tensor(number))) & (2**31 - 1)


def said(case: Case, fed: Federation) -> dict[str, Tensor]:
    """By probe, what a model says of every record that is asked about. [F]"""
    records = asked_about(case)
    if case.ranks:
        return phi(fed, records, negatives(case.before, case.people, case.clock))
    # Nodes that left can be classified among their neighbours only: log-odds of the true class.
    return {"output": case.before.with_(state=fed.now.state).query(records).cpu()}


def phi(fed: Federation, records: Records, wrong: Records) -> dict[str, Tensor]:
    """By probe: the score of each record less the mean over its person's fixed negatives. [F]"""
    found = {"output": _margin(fed.query(records + wrong).cpu(), records, wrong)}
    rows = _rows(fed)
    if rows is not None:
        user, item = rows
        every = records + wrong
        score = torch.linalg.vecdot(user[every.client], item[every.item])
        found["kept"] = _margin(score, records, wrong)
    return found


def _rows(fed: Federation) -> tuple[Tensor, Tensor] | None:
    """What the server's rows of people can be read with: unit (people, items)."""
    for rows in person_rows(fed.now.state.own, fed.world.sizes.clients).values():
        item = item_table(fed, rows.shape[1])
        if item is not None:
            user, item = spread_once(fed, rows.double().cpu(), item.double().cpu())
            return functional.normalize(user, dim=-1), functional.normalize(
                item - item.mean(0), dim=-1
            )
    return None


def _margin(score: Tensor, records: Records, wrong: Records) -> Tensor:
    ids, person = torch.unique(wrong.client, return_inverse=True)
    usual = jagged.segment_mean(score[len(records) :], person, len(ids))
    return score[: len(records)] - usual[torch.searchsorted(ids, records.client)]


def negatives(fed: Federation, ids: Tensor, clock: Clock, many: int = NEGATIVES) -> Records:
    """For each person so many items they have no record of at all, drawn once. ids: sorted"""
    held = fed.now.vault.holdings
    pairs = torch.unique(held.records.pairs().cpu())
    mine = torch.isin(pairs >> 31, ids)
    owner = torch.searchsorted(ids, pairs[mine] >> 31)
    lot = Lot(owner, pairs[mine] & (2**31 - 1), len(ids))
    cohort = Cohort(ids, held.items, lot, lot)
    who = torch.arange(len(ids)).repeat_interleave(many)
    item = draw_negatives(clock, cohort, who, torch.arange(many).repeat(len(ids)))
    return Records.of(ids[who][item >= 0], item[item >= 0])


# -- the attack -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """What the attacker reaches, with 95 % intervals over people and pairs of shadows."""

    auc: tuple[float, float, float]
    tpr_5: tuple[float, float, float]
    tpr_1: tuple[float, float, float]
    tpr_01: tuple[float, float, float]
    worst: tuple[float, float, float]
    """AUC on the tenth of the records that the other shadows say is told apart best."""


def likelihood_ratio(phis: Tensor, inside: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """log N(phi; in) - log N(phi; out), each shadow against laws of the other pairs. [M, F]

    Means are of each record, variances pooled over records (N < 64). A shadow is left out with its
    partner: one alone would leave one number fewer on its own side, which gives the side away.
    Also |mean in - mean out|, by which the worst records are picked without the shadow itself.
    """
    ratio, means = torch.zeros_like(phis), []
    for sign, mine in ((1, inside & valid), (-1, ~inside & valid)):
        values = phis * mine
        count, total = mine.sum(0).double(), values.sum(0)
        left = (count - _of_pair(mine.double())).clamp(min=1)
        others = (total - _of_pair(values)) / left  # [M, F]: without the pair itself
        mean = total / count.clamp(min=1)
        spread = ((phis - mean).square() * mine).sum() / (count - 1).clamp(min=0).sum().clamp(min=1)
        variance = spread.clamp(min=1e-12) * (1 + 1 / left)
        ratio = ratio - sign * ((phis - others).square() / (2 * variance) + variance.log() / 2)
        means.append(others)
    return ratio, (means[0] - means[1]).abs()


def _of_pair(values: Tensor) -> Tensor:
    """The sum over both shadows of each pair, at both. [M, F]"""
    return values.view(-1, 2, values.shape[1]).sum(1).repeat_interleave(2, 0)


def attack(
    phis: Tensor, inside: Tensor, person: Tensor, clock: Clock, valid: Tensor | None = None
) -> Attack:
    """phis: [M, F] by shadow and record    inside: [M, F]    person: [F] from 0"""
    valid = torch.ones_like(inside) if valid is None else valid
    ratio, apart = likelihood_ratio(phis, inside, valid)
    limit = torch.quantile(apart, 0.9, dim=1, keepdim=True)
    people = int(person.max()) + 1
    pair = torch.arange(len(phis)) // 2
    counts = (
        resample(people, clock, "ulira people", DRAWS),
        resample(int(pair.max()) + 1, clock, "ulira pairs", DRAWS),
    )
    where = (person.expand_as(phis), pair.unsqueeze(1).expand_as(phis))
    found = [
        _rates(ratio, inside, where, counts, mask) for mask in (valid, valid & (apart >= limit))
    ]
    (auc, five, one, tenth), (worst, *_) = found
    return Attack(auc, five, one, tenth, worst)


Ends = tuple[float, float, float]


def _rates(
    ratio: Tensor,
    inside: Tensor,
    where: tuple[Tensor, Tensor],
    counts: tuple[Tensor, Tensor],
    mask: Tensor,
) -> list[Ends]:
    """AUC, TPR at 5, 1 and .1 % FPR over all marked cells, each with its interval."""
    score, member = ratio[mask], inside[mask]
    person, pair = (w[mask] for w in where)
    # Equal ratios (a person without a vector scores 0 everywhere) stand in no order of their own.
    chance = Clock(0).bits("ties", torch.arange(len(score)))
    order = torch.argsort(chance)
    order = order[torch.argsort(score[order], descending=True, stable=True)]
    member, person, pair = member[order], person[order], pair[order]
    ones = (torch.ones(1, counts[0].shape[1]).double(), torch.ones(1, counts[1].shape[1]).double())
    points = _areas(*ones, member, person, pair)
    many = max(1, 2**21 // max(len(member), 1))
    parts = zip(*(torch.split(c, many) for c in counts), strict=True)
    draws = torch.cat([_areas(p, q, member, person, pair) for p, q in parts])
    ends = torch.quantile(draws, torch.tensor([0.025, 0.975]).double(), dim=0)
    return [(float(points[0, i]), float(ends[0, i]), float(ends[1, i])) for i in range(4)]


def _areas(people: Tensor, pairs: Tensor, member: Tensor, person: Tensor, pair: Tensor) -> Tensor:
    """AUC, TPR at 5, 1 and .1 % FPR; records in falling order. people, pairs: [B, .]    [B, 4]"""
    weight = people[:, person] * pairs[:, pair]
    out, inside = weight * ~member, weight * member
    wrong = torch.cumsum(out, 1) / out.sum(1, keepdim=True).clamp(min=1e-12)
    inside = inside / inside.sum(1, keepdim=True).clamp(min=1e-12)
    rates = [(inside * (1 - wrong)).sum(1)]
    rates += [(inside * (wrong <= rate)).sum(1) for rate in (0.05, 0.01, 0.001)]
    return torch.stack(rates, 1)


def judge(case: Case, shadows: Sequence[Phis], pairs: int) -> list[Finding]:
    """One finding for each probe, with the no-op and random labels as its own controls."""
    records = asked_about(case)
    inside = halves(len(records), pairs, case.clock)[: len(shadows)]
    person = torch.searchsorted(case.people, records.client)
    findings = []
    for probe in PROBES:
        if not all(f"{probe}/after" in s for s in shadows):
            continue
        before, after = (
            torch.stack([s[f"{probe}/{when}"] for s in shadows]).double()
            for when in ("before", "after")
        )
        found, no_op = (attack(p, inside, person, case.clock) for p in (after, before))
        coin = (case.clock.at(0).bits("audit coin", torch.arange(inside.numel())) >> 40) & 1
        fake = coin.bool().view_as(inside)
        labels = attack(after, fake, person, case.clock, valid=~inside)
        findings.append(_finding(probe, found, no_op, labels, len(person), len(shadows)))
    return findings


def _finding(
    probe: str, found: Attack, no_op: Attack, labels: Attack, n: int, many: int
) -> Finding:
    verdict = _verdict(found.auc)
    if _verdict(no_op.auc) != "FAIL":
        verdict = "POWERLESS"
    if _verdict(labels.auc) == "FAIL":
        verdict = "VOID"
    told = {"TPR@1%": found.tpr_1, "TPR@.1%": found.tpr_01, "worst tenth AUC": found.worst}
    text = ", ".join(f"{k} {v:.4f} [{a:.4f}, {b:.4f}]" for k, (v, a, b) in told.items())
    value, low, high = found.auc
    return Finding(
        f"Q3 U-LiRA {probe}",
        verdict,
        value,
        (low, high),
        0.5,
        MARGIN,
        {"no-op": no_op.auc[0], "random labels": labels.auc[0]},
        n,
        f"{many} shadows; {text}; no-op worst tenth {no_op.worst[0]:.4f}.",
    )


def _verdict(auc: Ends) -> str:
    _, low, high = auc
    if low >= 0.5 - MARGIN and high <= 0.5 + MARGIN:
        return "PASS"
    return "FAIL" if low > 0.5 + MARGIN or high < 0.5 - MARGIN else "INCONCLUSIVE"
