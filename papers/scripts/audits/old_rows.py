"""Attack with old user rows of the server: `python papers/scripts/audits/old_rows.py ml-100k 0`.

30 % of the lenders erase all they lent. For each unlearner: the AUC of an attack with the server's
old user rows (stale), of one that also rotates them from the old table to the new one (carried),
the distance to the same run without the records, and quality.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import rescind as rs
from rescind.audits.case import Case, PerPerson
from rescind.audits.state_attacks import calibrated, carried, stale, table
from rescind.forgetting.examine import forgotten, retrains
from rescind.methods.unlearning.retrain import Retrain
from rescind.methods.unlearning.server_influence import ServerInfluence
from rescind.methods.unlearning.server_replay import ServerReplay

ROUNDS = 150
Unlearn = rs.methods.FedShareUnlearn
UNLEARNERS = {
    "FedShareUnlearn": Unlearn(),
    "FedShareUnlearn, 20 rounds": Unlearn(rounds=20),
    "Algorithm 2 alone": Unlearn(replay=False),
    "server replay": ServerReplay(),
    "server replay, sums as recorded": ServerReplay(damping=0.0),
    "server replay, damping .01": ServerReplay(damping=0.01),
    "server replay, damping .03": ServerReplay(damping=0.03),
    "server replay, without sums": ServerReplay(sums="none"),
    "server influence, stiffness 1": ServerInfluence(stiffness=1.0),
    "server influence": ServerInfluence(),
}


def mean(found: PerPerson | None) -> float:
    """Return the weighted mean over users."""
    assert found is not None
    return float((found.value * found.weight).sum() / found.weight.sum())


def main(name: str, seed: int) -> None:
    """Print one line per unlearner."""
    fed = rs.Federation.start(rs.load(name), rs.methods.FedShare(keep_sums=True), seed=seed)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
    event = rs.Erase(rs.draw_regret(fed.world.shared, fed.clock))
    refs = retrains(fed, event, 5, 0, 1, Path("runs/old-rows") / f"{name}-{seed}")
    case = Case.of(fed, event, 0, refs)
    retrained = forgotten(Retrain(), fed, event)
    old, exact = (f.now.state.public["item"] for f in (fed, retrained))
    print(f"| {name}, seed {seed} | stale | carried | table | cal | distance | NDCG@20 | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    models = [("before", fed, 0.0), ("Retrain, same seed", retrained, 0.0)]
    models += [(f"retrain {n}", ref, 0.0) for n, ref in enumerate(refs)]
    for label, unlearner in {**dict.fromkeys(m[0] for m in models), **UNLEARNERS}.items():
        found = [(fed_, took) for known, fed_, took in models if known == label]
        if found:
            after, took = found[0]
        else:
            start = time.process_time()
            after = forgotten(unlearner, fed, event)
            took = time.process_time() - start
        new = after.now.state.public["item"]
        distance = float((new - exact).norm() / (old - exact).norm())
        values = [mean(attack(case, after)) for attack in (stale, carried, table, calibrated)]
        columns = " | ".join(f"{value:.3f}" for value in values)
        quality = after.evaluate("test")["NDCG@20"]
        print(f"| {label} | {columns} | {distance:.2f} | {quality:.4f} | {took:.1f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]))
