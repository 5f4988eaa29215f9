"""Who forgets people who never shared: `python recipes/audits/never_shared.py ml-100k 0`.

A third of the people who lend nothing erase all they have: their devices trained on it, and the
server never saw it. Each unlearner is judged by the standard battery beside five retrains.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import rescind as rs
from rescind.audits.battery import NO_OP, PURGE, SUBJECT
from rescind.audits.probe import Case
from rescind.examine import forgotten, judge, retrains
from rescind.forgetting import Spent
from rescind.holdings import TRAIN
from rescind.methods.ascent import Ascent
from rescind.methods.cfru import CFRU
from rescind.methods.cufru import CUFRUR
from rescind.methods.fedaccum import FedAccum
from rescind.methods.federaser import FedEraser
from rescind.methods.finetune_unlearn import FineTuneUnlearn
from rescind.methods.fru import FRU
from rescind.methods.retrain import Retrain

ROUNDS, SHARE = 150, 1 / 3
SHOWN = ("Q1 population", "Q1 tail", "kept", "table", "calibrated", "Q4 lists", "Q8 quality")
SERVES_ANY = (Retrain(), FineTuneUnlearn(), Ascent(), rs.methods.FedShareUnlearn())
LOGS = (FRU(), CUFRUR(), CFRU(), FedEraser(), FedAccum())


def learnt(name: str, seed: int, method: rs.methods.FedAvg) -> rs.Federation:
    """A run in which some people lend."""
    fed = rs.Federation.start(rs.load(name), method, seed=seed)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)


def request(fed: rs.Federation) -> rs.Erase:
    """All that a third of those who lend nothing train on."""
    held = fed.now.vault.holdings
    mine = held.records[(held.split == TRAIN) & ~held.lent]
    keeps = torch.unique(mine.client[~torch.isin(mine.client, fed.world.shared.client)])
    order = torch.argsort(fed.clock.at(0).bits("regret of keepers", keeps), stable=True)
    chosen = keeps[order[: round(SHARE * len(keeps))]]
    return rs.Erase(mine[torch.isin(mine.client, chosen)])


def main(name: str, seed: int) -> None:
    """Print one line per unlearner."""
    base = learnt(name, seed, rs.methods.FedShare(keep_sums=True))
    event = request(base)
    many = len(torch.unique(event.records.client))
    print(f"{name}, seed {seed}: {len(event.records)} records of {many} people who never shared")
    print(f"| | client-rounds | NDCG@20 | {' | '.join(SHOWN)} | distance | verdict |")
    refs = retrains(base, event, 5, 0, 1, Path("runs/never-shared") / f"{name}-{seed}")
    exact = base.retrained(event).now.state.public["item"]
    for unlearner in (*SERVES_ANY, *LOGS):
        before = base if unlearner in SERVES_ANY else learnt(name, seed, unlearner)
        spent, begun = Spent(), time.process_time()
        after = forgotten(unlearner, replace(before, watch=(spent,)), event)
        took = time.process_time() - begun
        report = judge(Case.of(before, event, 0, refs), replace(after, watch=()))
        found = {j.check.name: j for j in report.judged}
        if unlearner == SERVES_ANY[0]:
            for role in (NO_OP, PURGE):
                told = [found[c].outcomes.get(role) for c in SHOWN if c in found]
                line = " | ".join(f"{o.value:.3f} {o.verdict}" if o else "" for o in told)
                print(f"| {role} | 0 | | {line} | 1.00 | {report.subjects[role]} |")
            means = [sum(found[c].retrains) / 5 for c in SHOWN if c in found]
            print(f"| five retrains | | | {' | '.join(f'{m:.3f}' for m in means)} | | |")
        values = {f.check: f for f in report.findings}
        told = [found[c].outcomes[SUBJECT] for c in SHOWN if c in found]
        verdicts = [values[c].verdict for c in SHOWN if c in found]
        line = " | ".join(f"{o.value:.3f} {v}" for o, v in zip(told, verdicts, strict=True))
        old, new = (f.now.state.public["item"] for f in (before, after))
        far = float((new - exact).norm() / (old - exact).norm())
        quality = after.evaluate("test")["NDCG@20"]
        print(
            f"| {type(unlearner).__name__} ({took:.0f} s) | {spent.client_rounds} | {quality:.3f} "
            f"| {line} | {far:.2f} | {report.verdict} |",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(
        sys.argv[1] if len(sys.argv) > 1 else "ml-100k",
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
    )
