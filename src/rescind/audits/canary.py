"""Q2, the one-run canary audit: a lower bound on the epsilon of the unlearning.

The auditor adds artificial records (canaries). A coin decides for each canary if it is never
trained on, or trained on and then forgotten. The better an attacker can guess the coins, the more
was left. One training run gives one bound (Steinke, Nasr and Jagielski, NeurIPS 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rescind.audits.case import Case, draw_ids
from rescind.audits.finding import Finding
from rescind.audits.ulira import negatives, phi
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Erase, Event, Records

CANARIES = 1000
EACH = 4  # canaries per user at most
GUESSED = 0.1  # fraction of the canaries guessed at each end; the rest is not guessed
EXACT, APPROXIMATE, SEEN = 0.2, 1.0, 1.5
"""Limits on the bound for exact and approximate unlearning, and what the no-op must reach."""

Pipeline = Callable[[Federation, Event], Federation]
"""The unlearner under audit: (federation, request) -> unlearned federation."""


def draw(case: Case, count: int = CANARIES, each: int = EACH) -> Records:
    """Draw records that do not exist, for users who lend something; each pair once."""
    ids = torch.unique(case.before.world.shared.client.cpu())
    if not len(ids):
        ids = case.before.world.available.nonzero().squeeze(1).cpu()
    ids = draw_ids(ids, math.ceil(count / each), case.clock, "canary people")
    # Not the clock step of the fixed negatives, which would give the same items.
    drawn = torch.unique(negatives(case.before, ids, case.clock.step(2), each).pairs())
    return Records.of(drawn >> 31, drawn & (2**31 - 1))


def plant(fed: Federation, records: Records, seed: int) -> Federation:
    """Start a federation in which users also lend these records."""
    held = fed.now.vault.holdings
    fresh = with_records(held, records.to(held.members.device))
    return Federation.start(fresh, fed.method, seed, fed.executor, fed.labels)


def with_records(held: Holdings, records: Records) -> Holdings:
    """Return the holdings with more training records, all of them lent."""
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


def epsilon(right: int, guesses: int, certainty: float = 0.95) -> float:
    """Compute the lower confidence bound on epsilon from the number of right guesses.

    Under pure epsilon-DP a guess is right with probability at most p = e^eps / (1 + e^eps). The
    Clopper-Pearson lower bound on p is converted to epsilon.
    """
    from scipy.stats import beta

    if not right:
        return 0.0
    low = float(beta.ppf(1 - certainty, right, guesses - right + 1))
    return max(0.0, math.log(low / (1 - low)))


def guesses(scores: Tensor, trained: Tensor) -> tuple[int, int]:
    """Return (right, made): the highest tenth is guessed as trained, the lowest as not."""
    n = max(1, int(len(scores) * GUESSED))
    order = torch.argsort(scores, stable=True)
    right = int(trained[order[-n:]].sum()) + int((~trained[order[:n]]).sum())
    return right, 2 * n


def one_run(case: Case, unlearn: Pipeline, exact: bool) -> Finding:
    """Plant canaries, train once, unlearn half of them, and guess which half."""
    canaries = draw(case)
    coin = (case.clock.at(0).bits("audit canaries", canaries.pairs()) >> 40 & 1).bool()
    seed = int(case.clock.at(0).bits("audit canary run", torch.tensor(0))) & (2**31 - 1)
    mine = canaries[coin]
    fed = plant(case.before, mine, seed).run(case.before.now.state.round)
    after = unlearn(fed, Erase(mine))
    control, found = (_bound(case, model, canaries, coin) for model in (fed, after))
    bar = EXACT if exact else APPROXIMATE
    verdict = "PASS" if found[0] <= bar else "FAIL"
    if control[0] < SEEN:
        verdict = "POWERLESS"
    return Finding(
        "Q2 canaries",
        verdict,
        found[0],
        None,
        0.0,
        bar,
        {"no-op": control[0]},
        len(canaries),
        f"Lower bound on epsilon (95 %), the larger over probes. Right guesses: {found[1]}; "
        f"without unlearning: {control[1]}. A bound of one run, for these canaries.",
    )


def _bound(case: Case, fed: Federation, canaries: Records, coin: Tensor) -> tuple[float, str]:
    """Return the largest bound over probes (Bonferroni-corrected), and the guesses as text."""
    wrong = negatives(case.before, torch.unique(canaries.client), case.clock)
    phis = phi(fed, canaries, wrong[~wrong.among(canaries)])
    made = {probe: guesses(scores, coin) for probe, scores in phis.items()}
    certainty = 1 - 0.05 / len(made)
    best = max(epsilon(*g, certainty) for g in made.values())
    return best, ", ".join(f"{probe} {right} of {n}" for probe, (right, n) in made.items())
