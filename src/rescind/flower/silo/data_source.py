"""Load a silo's data from a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from rescind.core.guards import Guard
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive
from rescind.errors import DataError
from rescind.experiments.cell import DataSettings
from rescind.experiments.learning_run import obtained, prepare, start
from rescind.experiments.recipe import Cell
from rescind.experiments.recipe_file import locate
from rescind.experiments.streams import Stream
from rescind.flower.recipe_cell import one_cell
from rescind.flower.silo.storage import Store


@lru_cache(maxsize=1)
def _stream(recipe: str, cell: str | None, changes: tuple[str, ...], seed: int) -> Stream:
    """Load the stream once per process: blocks are requested one by one."""
    _, chosen = one_cell(recipe, cell, changes)
    return Stream.of(prepare(chosen.data), seed)


@lru_cache(maxsize=1)
def _names(
    recipe: str, cell: str | None, changes: tuple[str, ...]
) -> tuple[Labels, tuple[int, int]]:
    """Load the original ids once per process, and the number of users and items."""
    _, chosen = one_cell(recipe, cell, changes)
    if chosen.data.variant:
        dataset = prepare(chosen.data)
        return Labels.of(dataset), (len(dataset.users), len(dataset.items))
    fed = start(replace(chosen, sharing=None, guards=None, forget=None), obtained(chosen))
    return fed.labels, (fed.world.sizes.clients, fed.world.sizes.items)


@dataclass(frozen=True)
class RecipeData:
    """The dataset of a recipe's cell, for all clients of all silos."""

    recipe: str
    cell: str | None = None
    changes: tuple[str, ...] = ()

    @property
    def _cell(self) -> Cell:
        return one_cell(self.recipe, self.cell, self.changes)[1]

    @property
    def settings(self) -> DataSettings:
        """Return which data it is: a dataset and its filters."""
        return self._cell.data

    def hold(self, seed: int) -> Holdings:
        """Return the holdings of all clients before lending; of a stream, the first block."""
        if self._cell.data.variant:
            return _stream(self.recipe, self.cell, self.changes, seed).first
        cell = replace(self._cell, sharing=None, guards=None, forget=None)
        cell = cell.with_seed(seed)
        return start(cell, obtained(cell)).now.vault.holdings

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Return the guards applied to updates before they leave the silo."""
        guards = self._cell.guards
        return guards.guards if guards else ()

    def note_in(self, store: Store) -> None:
        """Note in a silo's folder which data it has."""
        recipe = str(locate(self.recipe).resolve())
        store.note(recipe=recipe, cell=self.cell or "", changes=list(self.changes))

    @classmethod
    def noted_in(cls, store: Store) -> RecipeData:
        """Return the data that was noted in a silo's folder."""
        notes = store.notes
        if "recipe" not in notes:
            raise DataError(
                f"{store.folder} does not say which recipe its data is from. Let the silo join "
                f"again (rescind flower join)."
            )
        return cls(str(notes["recipe"]), str(notes["cell"]) or None, tuple(notes["changes"]))

    def labels(self) -> Labels:
        """Return the original ids of users and items."""
        return _names(self.recipe, self.cell, self.changes)[0]

    def sizes(self) -> tuple[int, int]:
        """Return the number of users and of items."""
        return _names(self.recipe, self.cell, self.changes)[1]

    def block(self, number: int, seed: int) -> Arrive | None:
        """Return a block of a stream, counted from 0; None if there is none."""
        if not self._cell.data.variant:
            return None
        later = tuple(_stream(self.recipe, self.cell, self.changes, seed).later)
        return later[number - 1] if number <= len(later) else None
