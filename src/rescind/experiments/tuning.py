"""Choose the learning rate and the clients per round of a method on validation data.

Successive halving: all candidates train a few rounds, the better third goes on, and so on. A
federation is a value, so a candidate goes on where it stopped. Each counts by its best round, as a
run of the recipe does, also one that went no further: small data overfits soon. The test set is
never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.settings import chosen, fields_of, to_table
from rescind.data import Dataset
from rescind.errors import ConfigError
from rescind.experiments.cell import Cell
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import AnyData, obtained
from rescind.experiments.validation import HOW_TO_HAVE, has_validation
from rescind.forgetting.parallel import one_thread
from rescind.methods.additive.gram import DENSE_ITEMS
from rescind.methods.baselines.ease import EASE
from rescind.methods.baselines.popularity import Popularity

FACTORS = (1 / 3, 1.0, 3.0, 10.0)
"""Of the method's own learning rate."""
PARTS = (1 / 16, 1 / 4, 1.0)
"""Of all users: clients per round."""
FEWEST = 16
STAGES = ((0.1, 1.0), (0.4, 1 / 3), (1.0, 1 / 6))
"""Part of the rounds that is reached, and part of the candidates that goes so far."""

IMPLIED = {("run", "name"), ("run", "seed"), ("sharing", "name"), ("guards", "name")}
"""Not written into a recipe: names of classes, and the seed, of which the recipe has several."""

Progress = Callable[[int, int, str], None]
"""Takes rounds done, rounds in all, and the candidate that trained."""


@dataclass(frozen=True)
class Candidate:
    """Settings, and what they reached on validation in their best round so far."""

    method: Method
    fed: Federation
    value: float = -math.inf
    best_round: int = 0

    @property
    def rounds(self) -> int:
        """Return how many rounds it has trained."""
        return self.fed.now.state.round

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.method, name) for name in ("rate", "clients_per_round")}


@dataclass(frozen=True)
class Tuned:
    """The best candidate, all others, and the floor."""

    best: Candidate
    others: tuple[Candidate, ...]
    measure: str
    popularity: float
    """What item popularity reaches on the same validation data."""


def candidates(method: Method, users: int) -> list[Method]:
    """Return the method with other learning rates and numbers of clients, by the data's size."""
    if not {"rate", "clients_per_round"} <= fields_of(type(method)).keys():
        raise ConfigError(
            f"{type(method).__name__} has no learning rate to tune. Tune such as FedAvg."
        )
    many = sorted({min(users, max(FEWEST, round(part * users))) for part in PARTS})
    rate = method.rate  # type: ignore[attr-defined]
    return [
        replace(method, rate=float(f"{rate * factor:.3g}"), clients_per_round=clients)  # type: ignore[call-arg]
        for clients in many
        for factor in FACTORS
    ]


def tune(cell: Cell, progress: Progress = lambda *_: None) -> Tuned:
    """Return the best settings of a cell's method, by its measure on validation."""
    with one_thread():
        dataset, rounds = obtained(cell), cell.run.rounds
        first = start(cell, dataset)
        _check_validation(cell, dataset, first)
        methods = candidates(cell.method, first.world.sizes.clients)
        left = [Candidate(m, start(replace(cell, method=m), dataset)) for m in methods]
        total, done, dropped = _planned(len(left), rounds), 0, list[Candidate]()
        for reached, part in STAGES:
            keep = max(1, round(part * len(methods)))
            left, out = left[:keep], left[keep:]
            dropped += out
            until = max(1, round(reached * rounds))
            for place, one in enumerate(left):
                done += until - one.rounds
                left[place] = _further(one, until, cell)
                progress(done, total, f"{one.settings}")
            left.sort(key=lambda one: -one.value)
        floor = start(replace(cell, method=Popularity()), dataset).run(1)
    best, *rest = sorted([*left, *dropped], key=lambda one: -one.value)
    popular = floor.evaluate("valid", cell.run.k)[cell.run.measure]
    return Tuned(best, tuple(rest), cell.run.measure, popular)


def _check_validation(cell: Cell, dataset: AnyData, fed: Federation) -> None:
    """Raise an error before anything is trained, if there is nothing to choose by."""
    if not has_validation(fed):
        drawn = isinstance(dataset, Dataset) and dataset.split is None
        how = "use more data" if drawn else HOW_TO_HAVE
        raise ConfigError(f"'{cell.data.name}' has no validation rows to tune by: {how}.")


def _planned(many: int, rounds: int) -> int:
    total, before = 0, 0
    for reached, part in STAGES:
        until = max(1, round(reached * rounds))
        total += max(1, round(part * many)) * (until - before)
        before = until
    return total


def evaluate_every(cell: Cell) -> int:
    """Return the rounds between two looks at validation, in tuning and in the recipe."""
    given: int | None = chosen(cell.run).get("evaluate_every")
    return given or max(1, cell.run.rounds // 10)


def _further(one: Candidate, until: int, cell: Cell) -> Candidate:
    """Train on, and look at validation as often as a run of the recipe does."""
    every = evaluate_every(cell)
    while one.rounds < until:
        fed = one.fed.run(min(every - one.rounds % every, until - one.rounds))
        value = fed.evaluate("valid", cell.run.k)[cell.run.measure]
        better = value > one.value  # never of NaN
        best = (value, fed.now.state.round) if better else (one.value, one.best_round)
        one = replace(one, fed=fed, value=best[0], best_round=best[1])
    return one


def recipe_text(cell: Cell, tuned: Tuned) -> str:
    """Return a recipe of the same data with the chosen settings, popularity and closed forms.

    These are Gram or LocalGram, and EASE, which has all records in one place.
    Everything that was set for tuning is in it: other data or guards would need other settings.
    """
    table = chosen(tuned.best.method) | tuned.best.settings
    name, rounds = table["name"], cell.run.rounds
    items = tuned.best.fed.world.sizes.items
    run = chosen(cell.run) | {"rounds": rounds, "evaluate_every": evaluate_every(cell)}
    parts: dict[str, dict[str, Any]] = {
        "data": chosen(cell.data) | {"name": cell.data.name},
        "sharing": to_table(cell.sharing) if cell.sharing else {},
        "guards": chosen(cell.guards) if cell.guards else {},
        "run": run,
    }
    lines = [f'title = "{name} tuned on the validation part of {cell.data.name}"']
    for part, settings in parts.items():
        given = {k: v for k, v in settings.items() if (part, k) not in IMPLIED}
        if given:
            lines.append(f"[{part}]\n" + "\n".join(f"{k} = {_toml(v)}" for k, v in given.items()))
    once = "run = { rounds = 1, evaluate_every = 1 }"
    closed = "Gram" if items <= DENSE_ITEMS else "LocalGram"
    controls = [("Popularity", "Popularity"), (closed, closed)]
    if items <= EASE.max_items:
        controls.append(("EASE, everybody", "EASE"))
    others = [f'  {{ label = "{label}", name = "{n}", {once} }}' for label, n in controls]
    methods = ",\n".join([*others, f"  {_toml({'label': f'{name}, tuned', **table})}"])
    lines.append(f"[axes]\nmethod = [\n{methods},\n]\nseed = [0, 1, 2]")
    return "\n\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def ranked(tuned: Tuned) -> Sequence[Candidate]:
    """Return all candidates, the best one first."""
    return tuned.best, *tuned.others
