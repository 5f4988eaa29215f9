"""One cell of a recipe, checked for what a deployment can do."""

from __future__ import annotations

from pathlib import Path

from rescind.errors import ConfigError
from rescind.experiments.cell import CONTROLS
from rescind.experiments.recipe import Cell, read
from rescind.experiments.recipe_file import locate


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
