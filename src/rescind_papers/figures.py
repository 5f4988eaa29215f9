"""Figures of the papers drawn from our results, each with a digest of its numbers."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from rescind.experiments.sweeps import draw as draw_sweep
from rescind.reporting import charts
from rescind_papers.exhibits import Row
from rescind_papers.index import Exhibit, Part, Shelf

QUICK = "quick: a small run; it only shows that the code runs"


def names(exhibit: Exhibit) -> dict[Part, str]:
    """Return the file name of each part; a derived figure has one file."""
    stem = f"{exhibit.paper}-{exhibit.name}"
    if exhibit.derive:
        return {exhibit.parts[0]: stem}
    several = len(exhibit.parts) > 1
    return {p: f"{stem}-{n}" if several else stem for n, p in enumerate(exhibit.parts, 1)}


def about(exhibit: Exhibit, part: Part, found: list[Row]) -> str:
    """Return the note stored in a picture: a digest of its numbers, to detect old pictures."""
    mine = [row.entry for row in found if exhibit.derive or row.part == part]
    shown = [(e.cell, e.metric, e.paper, e.mean, e.spread) for e in mine]
    return f"{exhibit.place} sha256:{sha256(repr(shown).encode()).hexdigest()}"


def stored_note(path: Path) -> str | None:
    """Return the note stored in a PNG; None if there is no file."""
    if not path.is_file():
        return None
    from PIL import Image

    with Image.open(path) as picture:
        return picture.info.get("Description")


def drawable(exhibit: Exhibit, found: list[Row]) -> dict[Part, str]:
    """Return the parts that have results, with their file names."""
    if not exhibit.figure:
        return {}
    ran = {row.part.recipe for row in found if row.entry.values}
    if exhibit.derive:
        return names(exhibit) if ran else {}
    return {part: name for part, name in names(exhibit).items() if part.recipe in ran}


def draw(
    exhibit: Exhibit, shelf: Shelf, found: list[Row], folder: Path, endings: tuple[str, ...]
) -> list[Path]:
    """Draw the parts of a figure that have results, in each file format. Quick ones are marked."""
    below = QUICK if any(row.quick for row in found) else ""
    out = []
    for part, name in drawable(exhibit, found).items():
        note = about(exhibit, part, found)
        for ending in endings:
            path = folder / f"{name}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if exhibit.derive:
                _gains(exhibit, found, path, note, below)
            else:
                table = shelf.table(part)
                known = [e for e in table.entries if e.cell in table.recipe.names]
                draw_sweep(replace(table, entries=tuple(known)), path, note, below)
            out.append(path)
    return out


def _gains(exhibit: Exhibit, found: list[Row], path: Path, note: str, below: str) -> None:
    """Draw a panel for each part: ours as bars, the paper's numbers as marks."""
    made, axes = charts.figure(len(exhibit.parts), width=4.6)
    for ax, part in zip(axes, exhibit.parts, strict=True):
        mine = [row.entry for row in found if row.part == part]
        values = {e.cell: (e.mean, e.spread or 0.0, e.paper) for e in mine}
        charts.bars_beside(ax, values, f"{part.title}: N@20, % over FT")
    charts.names_above(made, axes[0])
    charts.words_below(made, below)
    charts.write(made, path, note)
