"""Q3, U-LiRA: a likelihood ratio for each record, from shadow models that forgot it.

IN distribution: train with the record, then unlearn it with the pipeline under audit. OUT: train
without it. Perfect unlearning makes both equal: AUC 0.5, TPR = FPR at every threshold
(baselines.md 6.3). Each shadow trains on a random half of the records and forgets that half; its
partner gets the other half. The scores of a shadow before it forgets are the no-op, at no cost.

If a client leaves a graph, shadows split its training nodes and as many held-out ones: each trains
on as many nodes as the client did, with the same neighbours, and forgets the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case, draw_seed
from rescind.audits.finding import Finding
from rescind.audits.state_attacks import item_table, person_rows, spread_once
from rescind.audits.verdict import resample
from rescind.core import jagged
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.doing import step
from rescind.core.federation import Federation
from rescind.core.holdings import TEST, TRAIN
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.core.tasks.ranking import draw_negatives
from rescind.errors import ConfigError

PAIRS = 16
NEGATIVES = 100  # fixed items that a record's score is compared with
DRAWS = 200
MARGIN = 0.02  # of the AUC; TPR and the worst tenth are only reported
PROBES = ("output", "kept")
"""Attacked values: scores that users get, or the user rows on the server."""

Unlearn = Callable[[Federation, Event], Federation]
Phis = Mapping[str, Tensor]
"""By "probe/when": [F], when = before (no-op) or after unlearning."""


def halves(n: int, pairs: int, clock: Clock) -> Tensor:
    """Draw the records of each shadow; 2p and 2p + 1 get opposite halves. [2 * pairs, n] bool"""
    number = torch.arange(pairs).unsqueeze(1)
    bits = clock.at(0).bits("audit halves", number, torch.arange(n))
    one = ((bits >> 40) & 1).bool()
    return torch.stack([one, ~one], 1).view(2 * pairs, n)


def asked_about(case: Case) -> Records:
    """Return the forgotten records; for a client leaving a graph also as many held-out nodes."""
    mine = case.forgotten
    if case.ranks or not isinstance(case.event, Withdraw):
        return mine
    held = case.valid + case.test
    held = held[held.client == case.event.client]
    drawn = torch.argsort(case.clock.at(0).bits("audit nodes", held.item), stable=True)
    return mine + held[drawn[: len(mine)]]


def shadow(case: Case, number: int, pairs: int, unlearn: Unlearn) -> dict[str, Tensor]:
    """Train one shadow, unlearn its half, and return its scores of all records."""
    fed, event = train_shadow(case, number, pairs)
    before = {f"{p}/before": v for p, v in record_scores(case, fed).items()}
    after = record_scores(case, unlearn(fed, event))
    return before | {f"{p}/after": v for p, v in after.items()}


def train_shadow(case: Case, number: int, pairs: int) -> tuple[Federation, Event]:
    """Train a shadow on its half of the records. Return it with the request to forget them."""
    records = asked_about(case)
    inside = halves(len(records), pairs, case.clock)[number]
    if not bool(inside.any()) or bool(inside.all()):
        raise ConfigError(
            f"{len(records)} records are too few to share out: one got none. Name more records."
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
        training = held.records[held.split == TRAIN]
        out, mine = (training[training.among(records[half])] for half in (~inside, inside))
        before, event = before.apply(kind_of(out)), kind_of(mine)
    return before.fork(seed=shadow_seed(case, number)).restart().run(
        case.before.now.state.round
    ), event


def shadow_seed(case: Case, number: int) -> int:
    return draw_seed(case.clock, "audit shadow", number)


def record_scores(case: Case, fed: Federation) -> dict[str, Tensor]:
    """Return by probe a model's score of each tested record. [F]"""
    records = asked_about(case)
    if case.ranks:
        return phi(fed, records, negatives(case.before, case.people, case.clock))
    # Nodes that left need their old neighbours to be classified: log-odds of the true class.
    return {"output": case.before.with_(state=fed.now.state).query(records).cpu()}


def phi(fed: Federation, records: Records, wrong: Records) -> dict[str, Tensor]:
    """Return by probe each record's score minus the mean over its user's fixed negatives. [F]"""
    found = {"output": _margin(fed.query(records + wrong).cpu(), records, wrong)}
    rows = _rows(fed)
    if rows is not None:
        user, item = rows
        every = records + wrong
        score = torch.linalg.vecdot(user[every.client], item[every.item])
        found["kept"] = _margin(score, records, wrong)
    return found


def _rows(fed: Federation) -> tuple[Tensor, Tensor] | None:
    """Return the server's user rows and the item table, propagated and normalised."""
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


def negatives(fed: Federation, ids: Tensor, clock: Clock, n: int = NEGATIVES) -> Records:
    """Draw for each user n items without a record of theirs. ids: sorted"""
    held = fed.now.vault.holdings
    pairs = torch.unique(held.records.pairs().cpu())
    mine = torch.isin(pairs >> 31, ids)
    owner = torch.searchsorted(ids, pairs[mine] >> 31)
    lot = Lot(owner, pairs[mine] & (2**31 - 1), len(ids))
    cohort = Cohort(ids, held.items, lot, lot)
    user = torch.arange(len(ids)).repeat_interleave(n)
    item = draw_negatives(clock, cohort, user, torch.arange(n).repeat(len(ids)))
    return Records.of(ids[user][item >= 0], item[item >= 0])


@dataclass(frozen=True)
class Attack:
    """Results of an attack, with 95 % intervals over users and pairs of shadows."""

    auc: tuple[float, float, float]
    tpr_5: tuple[float, float, float]
    tpr_1: tuple[float, float, float]
    tpr_01: tuple[float, float, float]
    worst: tuple[float, float, float]
    """AUC on the tenth of the records that the other shadows distinguish best."""


def likelihood_ratio(phis: Tensor, inside: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log N(phi; in) - log N(phi; out) of each shadow, fitted on the other pairs. [M, F]

    Means are per record, variances pooled over records (N < 64). A shadow is left out with its
    partner: without it alone, its side would have one value fewer, which reveals the side.
    Also returns |mean in - mean out|, which selects the worst records.
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
    """Sum over both shadows of each pair, repeated for both. [M, F]"""
    return values.view(-1, 2, values.shape[1]).sum(1).repeat_interleave(2, 0)


def attack(
    phis: Tensor, inside: Tensor, person: Tensor, clock: Clock, valid: Tensor | None = None
) -> Attack:
    """Run the attack. phis, inside: [M, F] by shadow and record    person: [F] from 0"""
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
    """Compute AUC and TPR at 5, 1 and .1 % FPR over the masked cells, with intervals."""
    score, member = ratio[mask], inside[mask]
    person, pair = (w[mask] for w in where)
    # Ties (a user without a vector scores 0 everywhere) get a random order.
    chance = Clock(0).bits("ties", torch.arange(len(score)))
    order = torch.argsort(chance)
    order = order[torch.argsort(score[order], descending=True, stable=True)]
    member, person, pair = member[order], person[order], pair[order]
    ones = (torch.ones(1, counts[0].shape[1]).double(), torch.ones(1, counts[1].shape[1]).double())
    points = _areas(*ones, member, person, pair)
    chunk = max(1, 2**21 // max(len(member), 1))
    parts = zip(*(torch.split(c, chunk) for c in counts), strict=True)
    draws = torch.cat([_areas(p, q, member, person, pair) for p, q in parts])
    ends = torch.quantile(draws, torch.tensor([0.025, 0.975]).double(), dim=0)
    return [(float(points[0, i]), float(ends[0, i]), float(ends[1, i])) for i in range(4)]


def _areas(people: Tensor, pairs: Tensor, member: Tensor, person: Tensor, pair: Tensor) -> Tensor:
    """Compute AUC and TPR at 5, 1, .1 % FPR; records sorted. people, pairs: [B, .]    -> [B, 4]"""
    weight = people[:, person] * pairs[:, pair]
    out, inside = weight * ~member, weight * member
    wrong = torch.cumsum(out, 1) / out.sum(1, keepdim=True).clamp(min=1e-12)
    inside = inside / inside.sum(1, keepdim=True).clamp(min=1e-12)
    rates = [(inside * (1 - wrong)).sum(1)]
    rates += [(inside * (wrong <= rate)).sum(1) for rate in (0.05, 0.01, 0.001)]
    return torch.stack(rates, 1)


def judge(case: Case, shadows: Sequence[Phis], pairs: int) -> list[Finding]:
    """Return one finding per probe, with the no-op and random labels as controls."""
    records = asked_about(case)
    inside = halves(len(records), pairs, case.clock)[: len(shadows)]
    person = torch.searchsorted(case.people, records.client)
    coin = (case.clock.at(0).bits("audit coin", torch.arange(inside.numel())) >> 40) & 1
    fake = coin.bool().view_as(inside)
    probes = [probe for probe in PROBES if all(f"{probe}/after" in s for s in shadows)]
    findings = []
    with step("attacking single records, and resampling", 3 * len(probes), "attacks") as shown:
        for probe in probes:
            before, after = (
                torch.stack([s[f"{probe}/{when}"] for s in shadows]).double()
                for when in ("before", "after")
            )
            attacks = []
            for phis, member, valid in (
                (after, inside, None), (before, inside, None), (after, fake, ~inside),
            ):  # fmt: skip
                attacks.append(attack(phis, member, person, case.clock, valid))
                shown.count()
            found, no_op, labels = attacks
            findings.append(_finding(probe, found, no_op, labels, len(person), len(shadows)))
    return findings


def _finding(
    probe: str, found: Attack, no_op: Attack, labels: Attack, n: int, shadows: int
) -> Finding:
    verdict = _verdict(found.auc)
    if _verdict(no_op.auc) != "FAIL":
        verdict = "POWERLESS"
    if _verdict(labels.auc) == "FAIL":
        verdict = "VOID"
    more = {"TPR@1%": found.tpr_1, "TPR@.1%": found.tpr_01, "worst tenth AUC": found.worst}
    text = ", ".join(f"{k} {v:.4f} [{a:.4f}, {b:.4f}]" for k, (v, a, b) in more.items())
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
        f"{shadows} shadows; {text}; no-op worst tenth {no_op.worst[0]:.4f}.",
    )


def _verdict(auc: Ends) -> str:
    _, low, high = auc
    if low >= 0.5 - MARGIN and high <= 0.5 + MARGIN:
        return "PASS"
    return "FAIL" if low > 0.5 + MARGIN or high < 0.5 - MARGIN else "INCONCLUSIVE"
