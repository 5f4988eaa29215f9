"""A silo's data as a recipe describes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rescind.errors import ConfigError
from rescind.experiment import obtained, start
from rescind.guards import Guard
from rescind.holdings import Holdings
from rescind.recipe import Cell, locate, read
from rescind.records import Arrive


def one_cell(recipe: str, cell: str | None, changes: tuple[str, ...] = ()) -> tuple[Path, Cell]:
    """The cell of a recipe that is meant, with the first of its seeds."""
    found = read(locate(recipe), changes, cell)
    names = list(dict.fromkeys(c.name for c in found.cells))
    if len(names) != 1:
        raise ConfigError(
            f"{found.path} has {len(names)} cells; choose one with --cell: {', '.join(names)}."
        )
    chosen = found.cells[0]
    if chosen.data.variant:
        raise ConfigError(
            "a stream of blocks is run over silos from Python (docs/deploy.md), not by this "
            "command. Choose a cell without blocks."
        )
    if chosen.guards is not None and chosen.guards.epsilon is not None:
        raise ConfigError(
            "a budget of epsilon is kept by runs in one process only. Leave guards.epsilon out: "
            "run.json says which epsilon the noise on the silos gives."
        )
    if chosen.forget is not None:
        raise ConfigError(
            "a trial of unlearners needs retrained models beside it, which are made in one "
            "process (rescind run). Choose a cell that learns."
        )
    return found.path, chosen


@dataclass(frozen=True)
class RecipeData:
    """The dataset of a recipe's cell; a silo takes its own clients out of it."""

    recipe: str
    cell: str | None = None
    changes: tuple[str, ...] = ()

    def hold(self, seed: int) -> Holdings:
        """What everybody holds under a seed, before anybody lends."""
        _, cell = one_cell(self.recipe, self.cell, self.changes)
        cell = replace(cell, sharing=None, guards=None, run=replace(cell.run, seed=seed))
        return start(cell, obtained(cell)).now.vault.holdings

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What happens to updates before they leave the silo."""
        _, cell = one_cell(self.recipe, self.cell, self.changes)
        return cell.guards.guards if cell.guards else ()

    def block(self, number: int) -> Arrive | None:
        """Recipes that can be run over silos have one block."""
        return None
