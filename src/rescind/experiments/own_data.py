"""A recipe without a file: one dataset, and the method that was named or fits it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rescind.core.memory import free_memory
from rescind.data import Dataset, describe, load
from rescind.data.blocks import share_tied
from rescind.errors import ConfigError
from rescind.experiments.advice import Advice, advise
from rescind.experiments.described import spelt
from rescind.experiments.needs import Sizes
from rescind.experiments.recipe import Recipe, of_table
from rescind.methods._outside import class_name


def advice_for(name: str) -> Advice:
    """Return the method to begin with on a dataset of this name; its data is read."""
    describe(name)  # an unknown name is told before anything is looked for
    data = load(name)
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"'{name}' is a graph. Name a method for graphs, such as --method GraphGram."
        )
    return advise(Sizes.of(data), ties_of(data), free_memory())


def ties_of(data: Dataset) -> float | None:
    """Return the share of rows with the time of another item of their user, None without times."""
    return share_tied(data) if data.has_time else None


def recipe_for(data: str, method: str, changes: Sequence[str] = ()) -> Recipe:
    """Return a recipe of one cell."""
    found, file = class_name(method), method.partition(":")[0]
    name = spelt(found) or found  # 'gram' and 'Gram' are one run
    # A class alone could be that of another file that was run before.
    from_file = f"{Path(file).expanduser().resolve()}:{name}" if file.endswith(".py") else name
    table: dict[str, Any] = {
        "title": f"{name} on {data}",
        "data": {"name": data},
        "method": {"name": from_file},
    }
    return of_table(Path("data") / f"{data}-{name}.toml", table, changes)
