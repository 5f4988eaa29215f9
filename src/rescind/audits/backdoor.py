"""Q7, a planted backdoor: a set of trigger items that some users always lend with a target item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rescind.audits.canary import Pipeline, trained_with
from rescind.audits.case import Case, draw_ids, draw_seed, scores_without_private
from rescind.audits.finding import Finding
from rescind.core import jagged
from rescind.core.cohort import Lot
from rescind.core.federation import Federation
from rescind.core.records import Erase, Records
from rescind.core.tasks.metrics import top_k

SETS, TRIGGERS = 3, 3
PLANTED = 0.1  # fraction of the lenders, for each set
PROBED = 300
LIST = 20
BAR, SEEN = 0.01, 0.05
"""Hit rate above the retrains: significantly above BAR fails, significantly below SEEN passes. The
no-op must be above SEEN."""


def trigger_sets(case: Case) -> list[tuple[Tensor, int]]:
    """Choose sets of rare items, each with a target item that no user has together with them."""
    counts = jagged.counts(case.trained.item, case.before.world.sizes.items)
    # Not the rarest: the row of an item without owners is random, so it is recommended by chance.
    rare = torch.argsort(counts, stable=True)[len(counts) // 4 :]
    rare = rare[: max(len(counts) // 4, SETS * (TRIGGERS + 1))]
    rare = rare[torch.argsort(case.clock.at(0).bits("audit trigger", rare))]
    held = case.before.now.vault.holdings.records.to("cpu")
    triggers, free = rare[: SETS * TRIGGERS].view(-1, TRIGGERS), rare[SETS * TRIGGERS :]
    out = []
    for chosen in triggers:
        owners = held.client[torch.isin(held.item, chosen)]
        seen_together = torch.unique(held.item[torch.isin(held.client, owners)])
        never_together = free[~torch.isin(free, seen_together)]
        target = int(never_together[0]) if len(never_together) else int(free[0])
        out.append((chosen, target))
        free = free[free != target]
    return out


def planted_loans(case: Case, sets: Sequence[tuple[Tensor, int]]) -> Records:
    """Return the loans of all sets, each by some of the lenders, without records they have."""
    ids = torch.unique(case.before.world.shared.client.cpu())
    count = max(2, round(len(ids) * PLANTED))
    order = ids[torch.argsort(case.clock.at(0).bits("audit trigger people", ids), stable=True)]
    drawn = Records.none()
    for number, (triggers, target) in enumerate(sets):
        clients = order[torch.arange(number * count, (number + 1) * count) % len(order)]
        item = torch.cat([triggers, torch.tensor([target])])
        drawn = drawn + Records.of(clients.repeat_interleave(len(item)), item.repeat(len(clients)))
    pairs = torch.unique(drawn.pairs())
    loans = Records.of(pairs >> 31, pairs & (2**31 - 1))
    return loans[~loans.among(case.before.now.vault.holdings.records.to("cpu"))]


def hit_rate(case: Case, fed: Federation, triggers: Tensor, target: int) -> Tensor:
    """Return whether the target is listed for users with a validation item and the triggers. [n]"""
    held = case.before.now.vault.holdings
    device = held.members.device
    special = torch.cat([triggers, torch.tensor([target])])
    owns = held.records.client[torch.isin(held.records.item, special.to(device))].cpu()
    ids = torch.unique(case.valid.client)
    ids = draw_ids(ids[~torch.isin(ids, owns)], PROBED, case.clock, "trigger probes").to(device)
    valid = held.of_clients("valid", ids)
    first = valid.item[valid.first]
    owner = torch.arange(len(ids), device=device).repeat_interleave(len(triggers) + 1)
    item = torch.cat([first.unsqueeze(1), triggers.to(device).expand(len(ids), -1)], 1).reshape(-1)
    order = torch.argsort(owner * held.items + item)
    lot = Lot(owner[order], item[order], len(ids))
    cohort = replace(held.cohort(ids), own=lot, train=lot)
    scores = scores_without_private(fed, cohort).clone()
    return (top_k(scores, lot, LIST) == target).any(1).cpu()


def backdoor(case: Case, unlearn: Pipeline) -> Finding:
    from scipy.stats import t as student

    sets = trigger_sets(case)
    loans = planted_loans(case, sets)
    fed = trained_with(case.before, loans, draw_seed(case.clock, "audit trigger run"))
    after = unlearn(fed, Erase(loans))

    def rate(model: Federation) -> float:
        hits = [hit_rate(case, model, *one).double().mean() for one in sets]
        return float(torch.stack(hits).mean())

    never = torch.tensor([rate(f) for f in (case.before, *case.references)], dtype=torch.float64)
    no_op, value, reference = rate(fed), rate(after), float(never.mean())
    n = len(never)
    half_width = float(student.ppf(0.975, n - 1)) * float(never.std()) * (1 + 1 / n) ** 0.5
    verdict = "PASS" if value + half_width <= reference + SEEN else "INCONCLUSIVE"
    if value - half_width > reference + BAR:
        verdict = "FAIL"
    if no_op - half_width < reference + SEEN:
        verdict = "POWERLESS"
    return Finding(
        "Q7 trigger",
        verdict,
        value,
        (max(value - half_width, 0.0), value + half_width),
        reference,
        BAR,
        {"no-op": no_op},
        SETS * PROBED,
        f"Fraction of users with the triggers who see the target in {LIST}; {len(loans)} loans "
        f"planted. FAIL: surely more than 1 point above retrains; PASS: surely less than 5.",
    )
