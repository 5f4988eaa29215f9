"""Helpers for tests that run a recipe over silos: recipes, lenders, and the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from rescind.core import params
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest

GRAPH = """
[data]
name = "cora"

[method]
name = "FedGCV"
forget_rounds = 2
repair_rounds = 1

[run]
rounds = 3
evaluate_every = 3
measure = "accuracy"
"""
SHOP = """
[data]
name = "shop"

[method]
name = "FedAvg"

[method.model]
name = "MF"
dim = 4

[run]
rounds = 3
evaluate_every = 3
checkpoint_every = 1
"""
"""Of imported data, which the test imports under this name."""


def results(asked: RunRequest) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the facts of a run and its public parameters."""
    facts = json.loads((Path(asked.out) / "run.json").read_text())
    return facts, params.load(Path(asked.out) / "model" / "public.safetensors")[0]


def lenders(recipe: Path) -> tuple[int, int]:
    """Return two clients that lend records."""
    _, cell = one_cell(str(recipe), None)
    shared = start(cell, obtained(cell)).world.shared
    return int(shared.client[0]), int(shared.client[-1])
