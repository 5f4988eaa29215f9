"""Q2, the one-run canary audit: a lower bound on the epsilon of the unlearning itself.

The auditor plants records of its own making. A coin decides for each whether it is never trained
on, or trained on and then forgotten; whoever can tell afterwards, tells how much was left. One
training run gives one bound (after Steinke, Nasr and Jagielski, NeurIPS 2023), without shadows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rescind.audits.case import Case, some
from rescind.audits.finding import Finding
from rescind.audits.ulira import negatives, phi
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN, Holdings
from rescind.core.records import Erase, Event, Records

CANARIES = 1000
EACH = 4  # canaries of one person at most
GUESSED = 0.1  # of the canaries at each end; about the rest the attacker says nothing
EXACT, APPROXIMATE, SEEN = 0.2, 1.0, 1.5
"""Bars on the bound: for exact unlearning, for approximate, and what the no-op must reach."""

Pipeline = Callable[[Federation, Event], Federation]
"""What is under audit: the federation and a request in, the federation that forgot out."""


def draw(case: Case, many: int = CANARIES, each: int = EACH) -> Records:
    """Records that nobody has, of people who lend something; each pair once."""
    ids = torch.unique(case.before.world.shared.client.cpu())
    if not len(ids):
        ids = case.before.world.available.nonzero().squeeze(1).cpu()
    ids = some(ids, math.ceil(many / each), case.clock, "canary people")
    # Another step of the clock than the fixed negatives, or these would be the same items.
    drawn = torch.unique(negatives(case.before, ids, case.clock.step(2), each).pairs())
    return Records.of(drawn >> 31, drawn & (2**31 - 1))


def plant(fed: Federation, records: Records, seed: int) -> Federation:
    """A federation before its first round whose people also lend these records."""
    held = fed.now.vault.holdings
    fresh = with_records(held, records.to(held.members.device))
    return Federation.start(fresh, fed.method, seed, fed.executor, fed.labels)


def with_records(held: Holdings, records: Records) -> Holdings:
    """Holdings with more training records, all of them lent."""
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
    """The largest epsilon that so many right guesses refute, at this certainty.

    Under pure epsilon each guess is right with probability at most p = e^eps / (1 + e^eps), so the
    number of right ones is at most binomial; Clopper and Pearson's lower end of p, turned back.
    """
    from scipy.stats import beta

    if not right:
        return 0.0
    low = float(beta.ppf(1 - certainty, right, guesses - right + 1))
    return max(0.0, math.log(low / (1 - low)))


def guesses(told: Tensor, trained: Tensor) -> tuple[int, int]:
    """(right, made): the highest tenth is called trained, the lowest tenth not."""
    many = max(1, int(len(told) * GUESSED))
    order = torch.argsort(told, stable=True)
    right = int(trained[order[-many:]].sum()) + int((~trained[order[:many]]).sum())
    return right, 2 * many


def one_run(case: Case, unlearn: Pipeline, exact: bool) -> Finding:
    """Plant, train once, forget, guess."""
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
        f"Lower bound on epsilon (95 %), the larger over probes. Right guesses: {found[1]}; where "
        f"nothing is forgotten: {control[1]}. A bound of one run, for these canaries.",
    )


def _bound(case: Case, fed: Federation, canaries: Records, coin: Tensor) -> tuple[float, str]:
    """The largest bound over probes, each at a share of the certainty, and the guesses."""
    wrong = negatives(case.before, torch.unique(canaries.client), case.clock)
    phis = phi(fed, canaries, wrong[~wrong.among(canaries)])
    made = {probe: guesses(told, coin) for probe, told in phis.items()}
    sure = 1 - 0.05 / len(made)
    best = max(epsilon(*g, sure) for g in made.values())
    return best, ", ".join(f"{probe} {right} of {many}" for probe, (right, many) in made.items())
