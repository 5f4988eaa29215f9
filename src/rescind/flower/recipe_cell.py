"""Select one cell of a recipe, and check that it can run over silos."""

from __future__ import annotations

from pathlib import Path

from rescind.errors import ConfigError
from rescind.experiments.cell import CONTROLS
from rescind.experiments.recipe import Cell, read
from rescind.experiments.recipe_file import locate


def one_cell(recipe: str, cell: str | None, changes: tuple[str, ...] = ()) -> tuple[Path, Cell]:
    """Return the recipe's path and the selected cell, with the first of its seeds."""
    found = read(locate(recipe), changes, cell)
    names = list(dict.fromkeys(c.name for c in found.cells))
    if len(names) != 1:
        raise ConfigError(
            f"{found.path} has {len(names)} cells. Choose one with --cell: {', '.join(names)}."
        )
    chosen = found.cells[0]
    if chosen.guards is not None and chosen.guards.epsilon is not None:
        raise ConfigError(
            "guards.epsilon is not allowed over silos: only a run in one process can keep a "
            "privacy budget. Remove it; run.json reports the epsilon of the noise on the silos."
        )
    _check_method(chosen)
    _check_forget(chosen)
    if chosen.data.variant:
        _check_stream(chosen)
    return found.path, chosen


def _check_method(cell: Cell) -> None:
    """Refuse a method that is chosen by the number of items, which silos do not know."""
    if cell.method.for_items(0) is not cell.method:
        raise ConfigError(
            f"{type(cell.method).__name__} is chosen when the data is known. Over silos, name the "
            f"method: --set method.name=Gram, or LocalGram for a large catalogue."
        )


def _check_forget(cell: Cell) -> None:
    """Refuse audit controls and several separate withdrawals."""
    request = cell.forget
    if request is not None and request.name in CONTROLS:
        raise ConfigError(
            f"'{request.name}' is a control of an audit and needs retrained models, which are made "
            f"in one process (rescind run). Choose a cell with an unlearner."
        )
    if request is not None and len(request.clients) > 1:
        raise ConfigError(
            f"in this cell each of clients {list(request.clients)} leaves in a separate run, but "
            f"silos forget permanently. Name one: --set forget.client={request.clients[0]}."
        )


def _check_stream(cell: Cell) -> None:
    """Refuse settings of a stream that need all data in one process."""
    method = cell.method
    if cell.sharing is not None or cell.forget is not None:
        raise ConfigError(
            "[sharing] and [forget] are not allowed in a stream of blocks. Remove them; requests "
            "come with rescind request add."
        )
    for field, allowed in (("carry", "best"), ("reset_private", False), ("mask", "block")):
        value = getattr(method, field, allowed)
        if value != allowed:
            raise ConfigError(
                f"{type(method).__name__} with {field} = {value!r} needs private values or past "
                f"records of all devices, so it runs in one process only (rescind run). Over "
                f"silos: --set method.{field}={str(allowed).lower()}."
            )
