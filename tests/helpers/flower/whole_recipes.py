"""Recipes that train and forget, one per method, and their results in one process."""

from __future__ import annotations

from pathlib import Path

from rescind.core.params import Params
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained, prepare
from rescind.experiments.stream_run import measured
from rescind.experiments.unlearning_run import events
from rescind.experiments.validation import stopping
from rescind.flower.recipe_cell import one_cell
from rescind.flower.server.serve import learner_cell
from rescind.forgetting.purge import purge

LENDING = """
[data]
name = "synthetic"
users = 60
items = 40
interactions = 900

[sharing]
ratio = [1, 1, 1]
"""
LEARNING = """
[method]
name = "FedShare"

[run]
rounds = 2
evaluate_every = 2
"""
FORGETTING = """
[forget]
name = "{name}"
event = "erase"
draw = 0.3
"""
WHOLE = {
    "FedShare": f"""{LENDING}{LEARNING}{FORGETTING.format(name="FedShareUnlearn")}
rounds = 1
learner = {{ snapshots = 1 }}
""",
    "Gram": f"""{LENDING}
[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
{FORGETTING.format(name="own")}
""",
    "F3CRec": """
[data]
name = "ml-100k"
variant = "blocks"

[method]
name = "F3CRec"

[run]
rounds = 1
evaluate_every = 1
""",
    "FedGCV": """
[data]
name = "cora"

[method]
name = "FedGCV"
forget_rounds = 1
repair_rounds = 1

[run]
rounds = 2
evaluate_every = 2
measure = "accuracy"

[forget]
name = "own"
event = "withdraw"
client = 3
""",
}


def in_process(path: Path) -> Params:
    """Run a recipe in one process. Return the public parameters."""
    _, cell = one_cell(str(path), None)
    if cell.data.variant:
        return measured(cell, prepare(cell.data))[0].now.state.public
    fed = start(learner_cell(cell), obtained(cell))
    fed = fed.run(cell.run.rounds, until=stopping(cell, fed))
    if cell.forget is not None:
        (event,) = events(cell, fed)
        unlearner = cell.forget.unlearner or fed.method
        fed = purge(fed, unlearner.unlearn(fed, event), fed.request(event), unlearner.exact)
    return fed.now.state.public
