"""Which checks can see anything: `python recipes/audits/power.py ml-100k ml-1m`.

The controls beside six retrains, as a table: what doing nothing, shifting scores and purging alone
look like to each check. The first retrain is also the subject, so its verdict should be PASS.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import rescind as rs
from rescind.audits.battery import NO_OP, PURGE, SHIFT, SUBJECT
from rescind.examine import examine, retrains

RETRAINS, ROUNDS, SEED = 7, 150, 0


def main(names: list[str]) -> None:
    """Print one table per dataset."""
    for name in names:
        fed = rs.Federation.start(rs.load(name), rs.methods.FedShare(), seed=SEED)
        groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
        fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
        event = rs.Erase(rs.draw_regret(fed.world.shared, fed.clock))
        folder = Path("runs/calibration") / name
        subject, *refs = retrains(fed, event, RETRAINS, SEED, 1, folder)
        start = time.perf_counter()
        report = examine(fed, subject, event, refs, seed=SEED)
        took = time.perf_counter() - start
        print(f"\n{name}: {report.verdict} {dict(report.subjects)} {report.why} ({took:.1f} s)\n")
        print("| check | no-op | score shift | purge only | six retrains | margin | a retrain |")
        print("|---|---|---|---|---|---|---|")
        findings = {f.check: f for f in report.findings}
        for judged in report.judged:
            cells = [judged.outcomes.get(r) for r in (NO_OP, SHIFT, PURGE)]
            told = [f"{o.value:.4f} {o.verdict}" if o else "" for o in cells]
            low, high = min(judged.retrains), max(judged.retrains)
            mine, found = judged.outcomes[SUBJECT], findings[judged.check.name]
            margin = "" if mine.margin is None else f"{mine.margin:.4f}"
            told += [f"{low:.4f} to {high:.4f}", margin, f"{mine.value:.4f} {found.verdict}"]
            print(f"| {judged.check.name} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or ["ml-100k", "ml-1m"])
