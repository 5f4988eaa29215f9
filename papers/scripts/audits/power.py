"""Measure the power of checks: `python papers/scripts/audits/power.py [--write] ml-100k ml-1m`.

A table of the controls (no-op, score shift, purge only) and six retrains for each check. One more
retrain is the subject, so its verdict should be PASS. The seed differs from the calibration. With
--write the tables are written to docs/results/audit-power.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import rescind as rs
from rescind.audits.battery import NO_OP, PURGE, SHIFT, SUBJECT
from rescind.forgetting.examine import examine, retrains
from rescind.reporting.html import word_of
from rescind_papers.pages import write_block

RETRAINS, ROUNDS, SEED = 7, 150, 21
PAGE = Path("docs/results/audit-power.md")


def table(name: str) -> str:
    """Return the table of one dataset."""
    fed = rs.Federation.start(rs.load(name), rs.methods.FedShare(), seed=SEED)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
    erased = rs.draw_regret(fed.world.shared, fed.clock)
    event = rs.Erase(erased)
    folder = Path("runs/power") / name
    subject, *refs = retrains(fed, event, RETRAINS, SEED, 1, folder)
    start = time.process_time()
    report = examine(fed, subject, event, refs, seed=SEED)
    took = time.process_time() - start
    people = len(torch.unique(erased.client))
    size = f"{people} users, {len(erased):,} records, {took:.1f} CPU s"
    why = f" ({report.why.rstrip('.')})" if report.why else ""
    lines = [
        f"{name} ({size}): the verdict on a retrain is **{report.verdict}**{why}.",
        "",
        "| check | no-op | score shift | purge only | six retrains | margin | a retrain |",
        "|---|---|---|---|---|---|---|",
    ]
    findings = {f.check: f for f in report.findings}
    for judged in report.judged:
        cells = [judged.outcomes.get(r) for r in (NO_OP, SHIFT, PURGE)]
        row = [f"{o.value:.4f} {word_of(o.verdict)}" if o else "" for o in cells]
        low, high = min(judged.retrains), max(judged.retrains)
        mine, found = judged.outcomes[SUBJECT], findings[judged.check.name]
        margin = "" if mine.margin is None else f"{mine.margin:.4f}"
        row += [f"{low:.4f} to {high:.4f}", margin, f"{mine.value:.4f} {word_of(found.verdict)}"]
        lines.append(f"| {judged.check.name} | {' | '.join(row)} |")
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
