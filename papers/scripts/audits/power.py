"""Which checks can see anything: `python papers/scripts/audits/power.py [--write] ml-100k ml-1m`.

The controls beside six retrains, as a table: what doing nothing, shifting scores and purging alone
look like to each check. The first retrain is also the subject, so its verdict should be PASS. The
seed is not that of the calibration. With --write the tables go to docs/audits.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import rescind as rs
from rescind.audits.battery import NO_OP, PURGE, SHIFT, SUBJECT
from rescind.forgetting.examine import examine, retrains
from rescind_papers.pages import write_block

RETRAINS, ROUNDS, SEED = 7, 150, 21
PAGE = Path("docs/results/audit-power.md")


def table(name: str) -> str:
    """What each check sees on one dataset."""
    fed = rs.Federation.start(rs.load(name), rs.methods.FedShare(), seed=SEED)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
    gone = rs.draw_regret(fed.world.shared, fed.clock)
    event = rs.Erase(gone)
    folder = Path("runs/power") / name
    subject, *refs = retrains(fed, event, RETRAINS, SEED, 1, folder)
    start = time.process_time()
    report = examine(fed, subject, event, refs, seed=SEED)
    took = time.process_time() - start
    people = len(torch.unique(gone.client))
    asked = f"{people} people, {len(gone):,} records, {took:.1f} CPU s"
    why = f" ({report.why.rstrip('.')})" if report.why else ""
    lines = [
        f"{name} ({asked}): a retrain is told **{report.verdict}**{why}.",
        "",
        "| check | no-op | score shift | purge only | six retrains | margin | a retrain |",
        "|---|---|---|---|---|---|---|",
    ]
    findings = {f.check: f for f in report.findings}
    for judged in report.judged:
        cells = [judged.outcomes.get(r) for r in (NO_OP, SHIFT, PURGE)]
        told = [f"{o.value:.4f} {o.verdict}" if o else "" for o in cells]
        low, high = min(judged.retrains), max(judged.retrains)
        mine, found = judged.outcomes[SUBJECT], findings[judged.check.name]
        margin = "" if mine.margin is None else f"{mine.margin:.4f}"
        told += [f"{low:.4f} to {high:.4f}", margin, f"{mine.value:.4f} {found.verdict}"]
        lines.append(f"| {judged.check.name} | {' | '.join(told)} |")
    return "\n".join(lines)


def main(given: list[str]) -> None:
    """Print one table per dataset."""
    names = [name for name in given if name != "--write"] or ["ml-100k", "ml-1m"]
    for name in names:
        body = table(name)
        print(f"\n{body}", flush=True)
        if "--write" in given:
            write_block(PAGE, f"papers/scripts/audits/power.py, {name}", body)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
