"""Q2, planted records: does the unlearner forget records whose truth the auditor knows?

The auditor adds artificial records (canaries). A coin decides for each canary if it is never
trained on, or trained on and then forgotten by the unlearner under audit. The better an attacker
can guess the coins, the more was left (Steinke, Nasr and Jagielski, NeurIPS 2023). Scores are
compared with those under the retrained models. It judges the unlearner, not the request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rescind.audits.battery import NO_OP, PURGE, SHIFT, SUBJECT, Check, Judged, Outcome
from rescind.audits.case import Case, draw_ids, draw_seed, mean_of
from rescind.audits.controls import purged, shifted
from rescind.audits.ulira import negatives, phi
from rescind.audits.verdict import Difference, equal, margin_of
from rescind.audits.virtual_client import auc
from rescind.core.doing import step
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Erase, Event, Records

CHECK = Check(
    "Q2 canaries",
    lambda *_: None,  # measured on models of its own
    ranking=True,
    planted=True,
    note="Planted records: how often one that was trained and forgotten scores above one that "
    "was never trained on.",
)
CANARIES = 8000
SHARE = 0.05  # of the training records at most, so that the model stays the same
EACH = 16  # canaries per user at most
GUESSED = 0.1  # fraction of the canaries guessed at each end, for the bound on epsilon

Pipeline = Callable[[Federation, Event], Federation]
"""The unlearner under audit: (federation, request) -> unlearned federation."""


def draw(case: Case, count: int = CANARIES) -> Records:
    """Draw records that do not exist, for users who lend something; each pair once."""
    ids = torch.unique(case.before.world.shared.client.cpu())
    if not len(ids):
        ids = case.before.world.available.nonzero().squeeze(1).cpu()
    count = min(count, int(SHARE * len(case.trained)))
    each = min(EACH, math.ceil(count / max(len(ids), 1)))
    ids = draw_ids(ids, math.ceil(count / max(each, 1)), case.clock, "canary people")
    # Not the clock step of the fixed negatives, which would give the same items.
    drawn = torch.unique(negatives(case.before, ids, case.clock.step(2), each).pairs())
    return Records.of(drawn >> 31, drawn & (2**31 - 1))


def plant(fed: Federation, records: Records, seed: int) -> Federation:
    held = fed.now.vault.holdings
    fresh = with_records(held, records.to(held.members.device))
    return Federation.start(fresh, fed.method, seed, fed.executor, fed.labels)


def trained_with(fed: Federation, records: Records, seed: int) -> Federation:
    rounds = fed.now.state.round
    with step("training a model with planted records", rounds, "rounds") as shown:
        return plant(fed, records, seed).run(rounds, watch=(shown.count,))


def with_records(held: Holdings, records: Records) -> Holdings:
    one = torch.ones(len(records), dtype=torch.bool, device=held.members.device)
    every = held.records + records
    order = torch.argsort(every.client, stable=True)
    return replace(
        held,
        records=every[order],
        split=torch.cat([held.split, (one * TRAIN).to(held.split.dtype)])[order],
        block=torch.cat([held.block, (one * held.now).to(held.block.dtype)])[order],
        lent=torch.cat([held.lent, one])[order],
    )


def judged(case: Case, unlearn: Pipeline) -> Judged | None:
    """Plant canaries, train once, forget those whose coin fell so, and judge how well they show."""
    canaries = draw(case)
    coin = (case.clock.at(0).bits("audit canaries", canaries.pairs()) >> 40 & 1).bool()
    if not bool(coin.any()) or bool(coin.all()):
        return None
    seed = draw_seed(case.clock, "audit canary run")
    event = Erase(canaries[coin])
    fed = case.cached(
        "planted", case.before, lambda: trained_with(case.before, event.records, seed)
    )

    def controls() -> dict[str, Outcome]:
        models = {NO_OP: fed, SHIFT: shifted(fed), PURGE: purged(Case(fed, event, case.clock))}
        return {r: outcome(excess(case, m, canaries), coin) for r, m in models.items()}

    subject = outcome(excess(case, unlearn(fed, event), canaries), coin)
    return Judged(CHECK, {SUBJECT: subject, **case.cached("planted controls", fed, controls)})


def excess(case: Case, fed: Federation, canaries: Records) -> dict[str, Tensor]:
    """Return by probe each canary's score minus its mean under the retrained models. [n]"""
    wrong = negatives(case.before, torch.unique(canaries.client), case.clock)
    wrong = wrong[~wrong.among(canaries)]
    usual = case.cached(
        "canaries", case.before, lambda: [phi(r, canaries, wrong) for r in case.references]
    )
    mine = phi(fed, canaries, wrong)
    shared = [p for p in mine if all(p in u for u in usual)]
    return {p: mine[p] - mean_of([u[p] for u in usual]) for p in shared}


def outcome(probes: dict[str, Tensor], coin: Tensor) -> Outcome:
    """Judge the probe that is farthest from chance, with an interval that holds for all probes."""
    found = {probe: auc(score[coin], score[~coin]) for probe, score in probes.items()}
    probe, value = max(found.items(), key=lambda one: abs(one[1] - 0.5))
    inside, outside = int(coin.sum()), int((~coin).sum())
    # Exact for fair coins: the variance of the Mann-Whitney statistic.
    error = ((inside + outside + 1) / (12 * inside * outside)) ** 0.5
    z = float(torch.special.ndtri(torch.tensor(1 - 0.025 / len(found), dtype=torch.float64)))
    difference = Difference(value, 0.5, value - z * error, value + z * error)
    margin = margin_of(CHECK.name).at(inside * outside / (inside + outside))
    bound = epsilon(*guesses(probes[probe], coin), 1 - 0.05 / len(found))
    note = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    note = f"By probe: {note}. At least epsilon {bound:.2f} (95 %), for these canaries"
    ends = (difference.value, difference.reference, difference.low, difference.high)
    return Outcome(equal(difference, margin), *ends, margin, len(coin), note)


def guesses(scores: Tensor, trained: Tensor) -> tuple[int, int]:
    """Return (right, made): the highest tenth is guessed as trained, the lowest as not."""
    n = max(1, int(len(scores) * GUESSED))
    order = torch.argsort(scores, stable=True)
    right = int(trained[order[-n:]].sum()) + int((~trained[order[:n]]).sum())
    return right, 2 * n


def epsilon(right: int, made: int, certainty: float = 0.95) -> float:
    """Compute the lower confidence bound on epsilon from the number of right guesses.

    Under pure epsilon-DP a guess is right with probability at most p = e^eps / (1 + e^eps). The
    Clopper-Pearson lower bound on p, found by halving, is converted to epsilon.
    """
    k = torch.arange(right, made + 1, dtype=torch.float64)
    ways = math.lgamma(made + 1) - torch.lgamma(k + 1) - torch.lgamma(made - k + 1)
    low, high = 0.5, 1.0 - 1e-12
    for _ in range(60):
        p = (low + high) / 2
        tail = float((ways + k * math.log(p) + (made - k) * math.log1p(-p)).exp().sum())
        low, high = (p, high) if tail < 1 - certainty else (low, p)
    return math.log(low / (1 - low))
