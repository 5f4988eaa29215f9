"""Q7, a planted trigger: a few films that some people always lend together with another one.

Who has the few is then shown the other. After the loans were taken back nobody should be, more
often than under models that never saw them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rescind.audits.canary import Pipeline, plant
from rescind.audits.case import Case, some
from rescind.audits.finding import Finding
from rescind.core import jagged
from rescind.core.cohort import Lot
from rescind.core.federation import Federation
from rescind.core.records import Erase, Records
from rescind.core.state import Private
from rescind.core.tasks.metrics import top_k

SETS, TRIGGERS = 3, 3
PLANTED = 0.1  # of the people who lend, for each set
PROBED = 300
LIST = 20
BAR, SEEN = 0.01, 0.05
"""Hit rate above the retrains': certainly above the first fails, certainly below the second passes;
the no-op must show more than the second."""


def films(case: Case) -> list[tuple[Tensor, int]]:
    """Sets of films that few people have, each with one more that nobody has with them: targets."""
    often = jagged.counts(case.trained.item, case.before.world.sizes.items)
    # Not the rarest: a film that nobody has lies anywhere, and is shown by chance.
    rare = torch.argsort(often, stable=True)[len(often) // 4 :]
    rare = rare[: max(len(often) // 4, SETS * (TRIGGERS + 1))]
    rare = rare[torch.argsort(case.clock.at(0).bits("audit trigger", rare))]
    held = case.before.now.vault.holdings.records.to("cpu")
    triggers, free = rare[: SETS * TRIGGERS].view(-1, TRIGGERS), rare[SETS * TRIGGERS :]
    out = []
    for few in triggers:
        theirs = held.client[torch.isin(held.item, few)]
        both = torch.unique(held.item[torch.isin(held.client, theirs)])
        alone = free[~torch.isin(free, both)]
        target = int(alone[0]) if len(alone) else int(free[0])
        out.append((few, target))
        free = free[free != target]
    return out


def planted(case: Case, sets: Sequence[tuple[Tensor, int]]) -> Records:
    """The loans of every set, each by some of the people who lend; less what they have."""
    ids = torch.unique(case.before.world.shared.client.cpu())
    many = max(2, round(len(ids) * PLANTED))
    order = ids[torch.argsort(case.clock.at(0).bits("audit trigger people", ids), stable=True)]
    every = Records.none()
    for number, (triggers, target) in enumerate(sets):
        who = order[torch.arange(number * many, (number + 1) * many) % len(order)]
        item = torch.cat([triggers, torch.tensor([target])])
        every = every + Records.of(who.repeat_interleave(len(item)), item.repeat(len(who)))
    pairs = torch.unique(every.pairs())
    loans = Records.of(pairs >> 31, pairs & (2**31 - 1))
    return loans[~loans.among(case.before.now.vault.holdings.records.to("cpu"))]


def hit_rate(case: Case, fed: Federation, triggers: Tensor, target: int) -> Tensor:
    """Whether each probed person, who has the triggers and one item of theirs, is shown the target.

    -> [n] bool
    """
    held = case.before.now.vault.holdings
    device = held.members.device
    special = torch.cat([triggers, torch.tensor([target])])
    owns = held.records.client[torch.isin(held.records.item, special.to(device))].cpu()
    ids = torch.unique(case.valid.client)
    ids = some(ids[~torch.isin(ids, owns)], PROBED, case.clock, "trigger probes").to(device)
    valid = held.of_clients("valid", ids)
    first = valid.item[valid.first]
    owner = torch.arange(len(ids), device=device).repeat_interleave(len(triggers) + 1)
    item = torch.cat([first.unsqueeze(1), triggers.to(device).expand(len(ids), -1)], 1).reshape(-1)
    order = torch.argsort(owner * held.items + item)
    lot = Lot(owner[order], item[order], len(ids))
    cohort = replace(held.cohort(ids), own=lot, train=lot)
    private = fed.now.vault.private
    blank = Private({n: torch.zeros_like(v[ids]) for n, v in private.items()})
    scores = fed.method.client_scores(fed.now.state.public, blank, cohort).clone()
    return (top_k(scores, lot, LIST) == target).any(1).cpu()


def backdoor(case: Case, unlearn: Pipeline) -> Finding:
    """Plant, train once, forget, and look who is shown the targets."""
    from scipy.stats import t as student

    sets = films(case)
    loans = planted(case, sets)
    seed = int(case.clock.at(0).bits("audit trigger run", torch.tensor(0))) & (2**31 - 1)
    fed = plant(case.before, loans, seed).run(case.before.now.state.round)
    after = unlearn(fed, Erase(loans))

    def rate(model: Federation) -> float:
        hits = [hit_rate(case, model, *one).double().mean() for one in sets]
        return float(torch.stack(hits).mean())

    never = torch.tensor([rate(f) for f in (case.before, *case.references)], dtype=torch.float64)
    no_op, value, reference = rate(fed), rate(after), float(never.mean())
    many = len(never)
    half = float(student.ppf(0.975, many - 1)) * float(never.std()) * (1 + 1 / many) ** 0.5
    verdict = "PASS" if value + half <= reference + SEEN else "INCONCLUSIVE"
    if value - half > reference + BAR:
        verdict = "FAIL"
    if no_op - half < reference + SEEN:
        verdict = "POWERLESS"
    return Finding(
        "Q7 trigger",
        verdict,
        value,
        (max(value - half, 0.0), value + half),
        reference,
        BAR,
        {"no-op": no_op},
        SETS * PROBED,
        f"Share of people with the triggers who are shown the target in {LIST}; {len(loans)} loans "
        f"planted. FAIL: certainly above retrains by 1 point; PASS: not, and certainly below by 5.",
    )
