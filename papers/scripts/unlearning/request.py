"""How long one request takes, part by part, beside the retrains that a batch of requests shares.

    python papers/scripts/unlearning/request.py ml-1m [FedShareUnlearn]

FedShare learns, 30 % of the lenders erase all they lent, and the unlearner answers: unlearn, purge,
standard audit, receipt. CPU seconds of one thread; retrains are made before and counted apart.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from rescind.experiments import learning_run as experiment
from rescind.experiments import unlearning_run as trials
from rescind.experiments.recipe import read
from rescind.forgetting.examine import retrains
from rescind.forgetting.forget import forget


def main() -> None:
    """Learn, ask, and print."""
    data = sys.argv[1] if len(sys.argv) > 1 else "ml-1m"
    asked = sys.argv[2] if len(sys.argv) > 2 else "FedShareUnlearn"
    torch.set_num_threads(1)
    recipe = read(Path(__file__).parents[3] / "recipes" / "unlearning" / f"{data}.toml")
    cell = next(c for c in recipe.cells if c.forget and c.forget.name == asked)
    assert cell.forget is not None
    plain = replace(cell, forget=None, method=cell.forget.learner or cell.method)
    dataset = experiment.obtained(plain)
    begun = time.process_time()
    fed = experiment.start(plain, dataset).run(plain.run.rounds, until=experiment.stopping(plain))
    told = {"learning": time.process_time() - begun}
    (event,) = trials.events(cell, fed)
    with TemporaryDirectory() as room:
        begun = time.process_time()
        retrains(fed, event, workers=1, folder=Path(room))
        told["five retrains, once for a batch"] = time.process_time() - begun
        for name, audits in (("unlearn, purge, receipt", "none"), ("all of it", "standard")):
            begun = time.process_time()
            _, evidence = forget(
                fed,
                event,
                cell.forget.unlearner,
                audits,
                folder=Path(room),
                workers=1,  # type: ignore[arg-type]
            )
            told[name] = time.process_time() - begun
    told["audit alone"] = told["all of it"] - told["unlearn, purge, receipt"]
    print(
        f"{data}, {asked}, {evidence.receipt.asked.records:,} records: {evidence.receipt.verdict}"
    )
    for name, seconds in told.items():
        print(f"  {name:<34} {seconds:6.1f} s")


if __name__ == "__main__":
    main()
