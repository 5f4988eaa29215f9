"""Measure how strongly devices pull a deviating item table back: estimated and true.

    python papers/scripts/unlearning/pull.py ml-100k ml-1m video-games gowalla [--write]

FedShare is trained as in `unlearning/DATA.toml`, and 30 % of the lenders erase all they lent. A
retraining without these loans, with the same users and draws in every round, shows what devices
send from the other table: h = -<A' - A, V' - V> / <V' - V, V' - V>, over all rounds and over the
first and last third of them. Also the estimate of `_server_rerun.pull` with two exchanges, and the
default of FedShareUnlearn. --write puts the table into docs/results/forgetting.md; Gowalla takes
ten minutes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rescind.core.federation import Federation
from rescind.core.update import Sum
from rescind.experiments import learning_run as experiment
from rescind.experiments import unlearning_run as trials
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import read
from rescind.experiments.validation import stopping
from rescind.methods.sharing._server_rerun import pull, sums_of
from rescind.methods.sharing.fedshare_unlearn import FedShareUnlearn
from rescind_papers.pages import write_block

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "recipes" / "unlearning"
PAGE = ROOT / "docs" / "results" / "forgetting.md"
HEAD = [
    "| data | all rounds | first third | last third | asked | default |",
    "|---|---|---|---|---|---|",
]


def true_pull(fed: Federation, exact: Federation) -> Tensor:
    """Compute by round <A' - A, V' - V> and <V' - V, V' - V>. [T, 2]"""
    runs = [fed, exact]
    sums = [sums_of(run.now.state.memory, run.now.state.round) or [] for run in runs]
    quiet = replace(fed.method, snapshots=0, keep_sums=False)  # type: ignore[call-arg]
    states = [run.restart(method=quiet).now.state for run in runs]
    found = []
    for turn, (sent, other) in enumerate(zip(*sums, strict=True), 1):
        apart = (states[1].public["item"] - states[0].public["item"]).double()
        more = (other["item"] - sent["item"]).double()
        found.append([float((more * apart).sum()), float((apart * apart).sum())])
        for n, (run, mean) in enumerate(zip(runs, (sent, other), strict=True)):
            step = {"train": Sum(mean, 1.0, 1)}
            states[n] = quiet.server_step(states[n], step, run.world, fed.clock.at(turn))
    return torch.tensor(found, dtype=torch.float64)


def row(data: str) -> str:
    """Return one dataset's line of the table."""
    recipe = read(HERE / f"{data}.toml")
    cell = next(c for c in recipe.cells if c.name == f"{data}/FedShare")
    assert cell.forget is not None
    assert cell.forget.learner is not None
    plain = replace(cell, forget=None, method=cell.forget.learner)
    fed = experiment.start(plain, obtained(plain))
    fed = fed.run(plain.run.rounds, until=stopping(plain, fed))
    (event,) = trials.events(cell, fed)
    products = true_pull(fed, fed.retrained(event))
    third = len(products) // 3
    parts = [products, products[:third], products[-third:]]
    columns = [f"{-float(p[:, 0].sum() / p[:, 1].sum()):.4f}" for p in parts]
    sums = sums_of(fed.now.state.memory, fed.now.state.round)
    assert sums is not None
    estimate = pull(fed.method, fed, fed.apply(event), fed.now.state, sums)
    return f"| {data} | {' | '.join(columns)} | {estimate:.4f} | {FedShareUnlearn().damping} |"


def main() -> None:
    """Print the table of the named datasets."""
    torch.set_num_threads(1)
    lines = list(HEAD)
    for data in [word for word in sys.argv[1:] if word != "--write"] or ["ml-100k"]:
        lines.append(row(data))
        print(lines[-1], flush=True)
    if "--write" in sys.argv[1:]:
        write_block(PAGE, "papers/scripts/unlearning/pull.py", "\n".join(lines))


if __name__ == "__main__":
    main()
