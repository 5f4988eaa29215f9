"""Time the parts of one request, and the retrains that a batch of requests shares.

    python papers/scripts/unlearning/request.py ml-1m [FedShareUnlearn]

FedShare is trained, 30 % of the lenders erase all they lent, and the request is answered: unlearn,
purge, standard audit, receipt. CPU seconds of one thread; retrains are timed separately.
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
from rescind.experiments.prepared_data import obtained
from rescind.experiments.recipe import read
from rescind.experiments.validation import stopping
from rescind.forgetting.examine import retrains
from rescind.forgetting.forget import forget


def main() -> None:
    """Train, answer the request, and print the times."""
    data = sys.argv[1] if len(sys.argv) > 1 else "ml-1m"
    wanted = sys.argv[2] if len(sys.argv) > 2 else "FedShareUnlearn"
    torch.set_num_threads(1)
    recipe = read(Path(__file__).parents[3] / "recipes" / "unlearning" / f"{data}.toml")
    cell = next(c for c in recipe.cells if c.forget and c.forget.name == wanted)
    assert cell.forget is not None
    plain = replace(cell, forget=None, method=cell.forget.learner or cell.method)
    dataset = obtained(plain)
    start = time.process_time()
    fed = experiment.start(plain, dataset)
    fed = fed.run(plain.run.rounds, until=stopping(plain, fed))
    times = {"learning": time.process_time() - start}
    (event,) = trials.events(cell, fed)
    with TemporaryDirectory() as folder:
        start = time.process_time()
        retrains(fed, event, workers=1, folder=Path(folder))
        times["five retrains, once for a batch"] = time.process_time() - start
        for name, audits in (("unlearn, purge, receipt", "none"), ("all of it", "standard")):
            start = time.process_time()
            _, evidence = forget(
                fed,
                event,
                cell.forget.unlearner,
                audits,
                folder=Path(folder),
                workers=1,  # type: ignore[arg-type]
            )
            times[name] = time.process_time() - start
    times["audit alone"] = times["all of it"] - times["unlearn, purge, receipt"]
    print(f"{data}, {wanted}, {evidence.exact.asked.records:,} records: {evidence.receipt.verdict}")
    for name, seconds in times.items():
        print(f"  {name:<34} {seconds:6.1f} s")


if __name__ == "__main__":
    main()
