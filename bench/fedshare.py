"""Time FedShare's training per interaction on sparse data (Gowalla) and on ML-1M.

    python bench/fedshare.py [--write]    writes the table of docs/results/fedshare-details.md

CPU seconds of one thread, without evaluation. A round handles the records of its devices and all
loans; the time is divided by both. The two datasets are timed in turn, so that other load on the
machine affects both.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from rescind.core.federation import Federation
from rescind.data import Dataset, load
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.methods.sharing.fedshare import FedShare
from rescind_papers.pages import write_block

PAGE = Path(__file__).parent.parent / "docs" / "results" / "fedshare-details.md"
ROUNDS, TURNS, MOST = 15, 3, 2.0


def lending(name: str) -> Federation:
    """Load a dataset with lenders and run three rounds, so that everything is compiled."""
    data = load(name)
    assert isinstance(data, Dataset)
    fed = Federation.start(replace(data, split=None), FedShare(), seed=0)  # random 8:1:1
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock)).run(3)


def measured(fed: Federation) -> tuple[float, float]:
    """Measure CPU seconds of a round, and the interactions it handles."""
    start = time.process_time()
    fed.run(ROUNDS)
    seconds = (time.process_time() - start) / ROUNDS
    trained = 0
    for turn in range(1, ROUNDS + 1):
        clock = fed.clock.at(fed.now.state.round + turn)
        ids = fed.method.server_sample(fed.now.state, fed.world, clock)
        trained += int(fed.now.vault.holdings.of_clients("unshared", ids).count.sum())
    return seconds, trained / ROUNDS + len(fed.world.shared)


def main() -> None:
    """Measure in turn and print the table."""
    torch.set_num_threads(1)
    worlds = {name: lending(name) for name in ("ml-1m", "gowalla")}
    found = [(name, *measured(fed)) for _ in range(TURNS) for name, fed in worlds.items()]
    lines = ["| data | ms a round | interactions a round | ns for each |", "|---|---|---|---|"]
    each = {}
    for name in worlds:
        mine = [(seconds, interactions) for other, seconds, interactions in found if other == name]
        each[name] = median(seconds / interactions for seconds, interactions in mine)
        round_, interactions = median(s for s, _ in mine), mine[0][1]
        lines.append(
            f"| {name} | {1e3 * round_:.1f} | {interactions:,.0f} | {1e9 * each[name]:.0f} |"
        )
    ratio = each["gowalla"] / each["ml-1m"]
    verdict = "within" if ratio <= MOST else "ABOVE"
    lines += ["", f"Gowalla takes {ratio:.2f} times as much for each as ML-1M: {verdict} {MOST:g}."]
    print("\n".join(lines))
    if "--write" in sys.argv[1:]:
        write_block(PAGE, "bench/fedshare.py", "\n".join(lines))


if __name__ == "__main__":
    main()
