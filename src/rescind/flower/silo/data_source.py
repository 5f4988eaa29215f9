"""Load a silo's data from a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rescind.core.federation import Federation
from rescind.core.guards import Guard
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive
from rescind.data import Dataset
from rescind.data.catalogue import ENTRIES
from rescind.data.importing import imported_names
from rescind.errors import ConfigError, DataError
from rescind.experiments.cell import DataSettings
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained, prepare
from rescind.experiments.recipe import Cell
from rescind.experiments.recipe_file import locate
from rescind.experiments.streams import Stream
from rescind.flower.recipe_cell import one_cell
from rescind.flower.silo.intake import Names
from rescind.flower.silo.own_people import OwnPeople
from rescind.flower.silo.storage import Store


@lru_cache(maxsize=1)
def _stream(recipe: str, cell: str | None, changes: tuple[str, ...], seed: int) -> Stream:
    """Load the stream once per process: blocks are requested one by one."""
    _, chosen = one_cell(recipe, cell, changes)
    return Stream.of(prepare(chosen.data), seed)


@dataclass(frozen=True)
class RecipeData:
    """The dataset of a recipe's cell: for all clients of all silos, or of one silo's own people."""

    recipe: str
    cell: str | None = None
    changes: tuple[str, ...] = ()
    people: OwnPeople | None = None
    """How a table of the silo's own people is numbered; None: the table has those of all silos."""

    def check_own(self) -> None:
        """Refuse a table of own people where silos cannot number alone, or without its items."""
        if self.people is None:
            return
        if self.is_graph or self._cell.data.variant:
            raise ConfigError(
                "--own is for tables of users and items, not for graphs or streams of blocks: "
                "their silos need the whole table (docs/deploy.md)."
            )
        self.people.check(prepare(self._cell.data))

    @property
    def own(self) -> bool:
        """Return whether the table has this silo's people only."""
        return self.people is not None

    @property
    def _cell(self) -> Cell:
        return one_cell(self.recipe, self.cell, self.changes)[1]

    @property
    def settings(self) -> DataSettings:
        """Return which data it is: a dataset and its filters."""
        return self._cell.data

    @property
    def imported(self) -> str:
        """Return the name of the imported table; "" of published and generated data.

        Also "" where the recipe draws who leaves: that is a trial, for which nobody asked.
        """
        cell = self._cell
        drawn = cell.forget is not None and cell.forget.draw is not None
        name = cell.data.name
        return name if name not in ENTRIES and name in imported_names() and not drawn else ""

    @property
    def is_graph(self) -> bool:
        """Return whether the data is a graph, whose nodes have numbers and no ids."""
        return self._cell.method.model.task == "nodes"

    def hold(self, seed: int) -> tuple[Holdings, Labels]:
        """Read the holdings of all clients before lending, and their ids; of a stream, block 0.

        The data is read anew: rows may have been added since the last run.
        """
        if self._cell.data.variant:
            _stream.cache_clear()
            stream = _stream(self.recipe, self.cell, self.changes, seed)
            return stream.first, stream.labels
        fed = self._start(seed)
        return fed.now.vault.holdings, fed.labels

    def _start(self, seed: int) -> Federation:
        cell = replace(self._cell, sharing=None, guards=None, forget=None).with_seed(seed)
        found = obtained(cell)
        return start(cell, self.numbered(found) if isinstance(found, Dataset) else found)

    def numbered(self, table: Dataset) -> Dataset:
        """Return a table with the numbers that the run uses."""
        return self.people.numbered(table) if self.people else table

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Return the guards applied to updates before they leave the silo."""
        guards = self._cell.guards
        return guards.guards if guards else ()

    def note_in(self, store: Store) -> None:
        """Note in a silo's folder which data it has."""
        recipe = str(locate(self.recipe).resolve())
        place = [] if self.people is None else [self.people.silo, self.people.silos]
        items = "" if self.people is None else str(self.people.items.resolve())
        store.note(
            recipe=recipe, cell=self.cell or "", changes=list(self.changes),
            own_items=items, own_place=[str(n) for n in place],
        )  # fmt: skip

    @classmethod
    def noted_in(cls, store: Store) -> RecipeData:
        """Return the data that was noted in a silo's folder."""
        notes = store.notes
        if "recipe" not in notes:
            raise DataError(
                f"{store.folder} does not say which recipe its data is from. Let the silo join "
                f"again (rescind flower join)."
            )
        people = None
        if items := notes["own_items"]:
            people = OwnPeople(Path(items), *map(int, notes["own_place"]))
        cell = str(notes["cell"]) or None
        return cls(str(notes["recipe"]), cell, tuple(notes["changes"]), people)

    def names(self) -> Names:
        """Read the original ids of users and items, and how many there are."""
        if self.is_graph:
            fed = self._start(0)
            return Names(fed.labels, fed.world.sizes.clients, fed.world.sizes.items)
        dataset = self.numbered(prepare(self._cell.data))
        return Names(Labels.of(dataset), len(dataset.users), len(dataset.items))

    def block(self, number: int, seed: int) -> tuple[Arrive, Labels] | None:
        """Return a block of a stream, counted from 0, and its ids; None if there is none."""
        if not self._cell.data.variant:
            return None
        stream = _stream(self.recipe, self.cell, self.changes, seed)
        later = tuple(stream.later)
        return (later[number - 1], stream.labels) if number <= len(later) else None
