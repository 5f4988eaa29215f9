"""Q7, a planted trigger: a few films that some people always lend together with another one.

Who has the few is then shown the other. After the loans were taken back nobody should be, more
often than under models that never saw them together.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rescind import jagged
from rescind.audits.canary import Pipeline, plant
from rescind.audits.probe import Case, some
from rescind.cohort import Lot
from rescind.federation import Federation
from rescind.findings import Finding
from rescind.records import Erase, Records
from rescind.state import Private
from rescind.tasks.metrics import top_k

PLANTED = 0.1  # of the people who lend
TRIGGERS = 3
PROBED = 300
LIST = 20
BAR, SEEN = 0.01, 0.05
"""Hit rate above the retrains': what is allowed, and what the no-op must show."""


def films(case: Case) -> tuple[Tensor, int]:
    """Films that few people have, and one more that nobody has with any of them: the target."""
    often = jagged.counts(case.trained.item, case.before.world.sizes.items)
    rare = torch.argsort(often, stable=True)[: max(len(often) // 2, TRIGGERS + 1)]
    rare = rare[torch.argsort(case.clock.at(0).bits("audit trigger", rare))]
    triggers = rare[:TRIGGERS]
    held = case.before.now.vault.holdings.records.to("cpu")
    theirs = held.client[torch.isin(held.item, triggers)]
    both = torch.unique(held.item[torch.isin(held.client, theirs)])
    free = rare[TRIGGERS:][~torch.isin(rare[TRIGGERS:], both)]
    return triggers, int(free[0]) if len(free) else int(rare[TRIGGERS])


def planted(case: Case, triggers: Tensor, target: int) -> Records:
    """The loans of all these films, by a share of the people who lend; less what they have."""
    ids = torch.unique(case.before.world.shared.client.cpu())
    who = some(ids, max(2, round(len(ids) * PLANTED)), case.clock, "trigger people")
    item = torch.cat([triggers, torch.tensor([target])])
    loans = Records.of(who.repeat_interleave(len(item)), item.repeat(len(who)))
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
    """Plant, train once, forget, and look who is shown the target."""
    triggers, target = films(case)
    loans = planted(case, triggers, target)
    seed = int(case.clock.at(0).bits("audit trigger run", torch.tensor(0))) & (2**31 - 1)
    fed = plant(case.before, loans, seed).run(case.before.now.state.round)
    after = unlearn(fed, Erase(loans))
    no_op, mine = (hit_rate(case, f, triggers, target).double() for f in (fed, after))
    never = torch.stack(
        [hit_rate(case, f, triggers, target).double() for f in (case.before, *case.references)]
    )
    reference, value = float(never.mean()), float(mine.mean())
    high = float(
        never.mean(1).max()
    )  # among models that never saw them together, chance reaches this
    half = 1.96 * float((mine - never.mean(0)).std()) / max(len(mine), 1) ** 0.5
    top = max(reference, high) + BAR
    verdict = "PASS" if value + half <= top else "FAIL" if value - half > top else "INCONCLUSIVE"
    if value <= high:
        verdict = "PASS"
    if float(no_op.mean()) < reference + SEEN:
        verdict = "POWERLESS"
    return Finding(
        "Q7 trigger",
        verdict,
        value,
        (value - half, value + half),
        reference,
        BAR,
        {"no-op": float(no_op.mean())},
        len(mine),
        f"Share of people with the triggers who are shown the target in {LIST}; {len(loans)} loans "
        f"planted. Models that never saw them together reach {high:.4f} at most.",
    )
