"""A silo's data as a recipe describes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rescind.core.guards import Guard
from rescind.core.holdings import Holdings
from rescind.core.records import Arrive
from rescind.errors import ConfigError
from rescind.experiments.cell import CONTROLS
from rescind.experiments.learning_run import obtained, prepare, start
from rescind.experiments.recipe import Cell, read
from rescind.experiments.recipe_file import locate
from rescind.experiments.streams import Stream


def one_cell(recipe: str, cell: str | None, changes: tuple[str, ...] = ()) -> tuple[Path, Cell]:
    """The cell of a recipe that is meant, with the first of its seeds."""
    found = read(locate(recipe), changes, cell)
    names = list(dict.fromkeys(c.name for c in found.cells))
    if len(names) != 1:
        raise ConfigError(
            f"{found.path} has {len(names)} cells; choose one with --cell: {', '.join(names)}."
        )
    chosen = found.cells[0]
    if chosen.guards is not None and chosen.guards.epsilon is not None:
        raise ConfigError(
            "a budget of epsilon is kept by runs in one process only. Leave guards.epsilon out: "
            "run.json says which epsilon the noise on the silos gives."
        )
    _can_forget(chosen)
    if chosen.data.variant:
        _can_stream(chosen)
    return found.path, chosen


def _can_forget(cell: Cell) -> None:
    """A request is answered over silos; what is measured beside retrains is not."""
    wanted = cell.forget
    if wanted is not None and wanted.name in CONTROLS:
        raise ConfigError(
            f"'{wanted.name}' is a control of an audit, which needs retrained models beside it; "
            f"they are made in one process (rescind run). Choose a cell with an unlearner."
        )
    if wanted is not None and len(wanted.clients) > 1:
        raise ConfigError(
            f"clients {list(wanted.clients)} leave each on its own in this cell, but silos forget "
            f"for good. Name one: --set forget.client={wanted.clients[0]}."
        )


def _can_stream(cell: Cell) -> None:
    """Blocks come to silos; what only one process can do with them is refused by name."""
    method = cell.method
    if cell.sharing is not None or cell.forget is not None:
        raise ConfigError(
            "a stream of blocks takes neither [sharing] nor [forget]. Leave them out; requests "
            "are made with --withdraw or --erase."
        )
    for field, allowed in (("carry", "best"), ("reset_private", False), ("mask", "block")):
        value = getattr(method, field, allowed)
        if value != allowed:
            raise ConfigError(
                f"{type(method).__name__} with {field} = {value!r} needs every device's private "
                f"values or past records in one place, so it runs in one process only "
                f"(rescind run). Over silos: --set method.{field}={str(allowed).lower()}."
            )


@lru_cache(maxsize=1)
def _stream(recipe: str, cell: str | None, changes: tuple[str, ...], seed: int) -> Stream:
    """Read once: a silo's process is asked for one block after another."""
    _, chosen = one_cell(recipe, cell, changes)
    return Stream.of(prepare(chosen.data), seed)


@dataclass(frozen=True)
class RecipeData:
    """The dataset of a recipe's cell; a silo takes its own clients out of it."""

    recipe: str
    cell: str | None = None
    changes: tuple[str, ...] = ()

    @property
    def _cell(self) -> Cell:
        return one_cell(self.recipe, self.cell, self.changes)[1]

    def hold(self, seed: int) -> Holdings:
        """What everybody holds under a seed, before anybody lends; of a stream, the first block."""
        if self._cell.data.variant:
            return _stream(self.recipe, self.cell, self.changes, seed).first
        cell = replace(self._cell, sharing=None, guards=None, forget=None)
        cell = cell.with_seed(seed)
        return start(cell, obtained(cell)).now.vault.holdings

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What happens to updates before they leave the silo."""
        guards = self._cell.guards
        return guards.guards if guards else ()

    def block(self, number: int, seed: int) -> Arrive | None:
        """A block of a stream, counted from 0; None: there is none."""
        if not self._cell.data.variant:
            return None
        later = tuple(_stream(self.recipe, self.cell, self.changes, seed).later)
        return later[number - 1] if number <= len(later) else None
