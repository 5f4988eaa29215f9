"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def _settled(run: Path) -> Path:
    """Finish a forgetting of this run that was interrupted, before any command reads it."""
    if run.is_dir():
        from rescind.storage.learning import settle

        settle(run)
    return run


Run = Annotated[
    Path, Argument(help="The folder of a finished run, e.g. runs/demo.", callback=_settled)
]
Recipe = Annotated[str, Argument(help="A TOML file, or the name of a recipe (paper/table).")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
_SET = "Change a setting of the unlearner, e.g. rounds=20, damping=measured. Repeatable."
ChangeUnlearner = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_SET)]
_FILE = "or a CSV file with the column"
Nodes = Annotated[
    list[str] | None,
    Option(
        metavar="IDS", help=f"Of a graph: nodes to erase, with their edges: 12,40; {_FILE} node."
    ),
]
Edges = Annotated[
    list[str] | None,
    Option(metavar="PAIRS", help=f"Of a graph: edges to erase: 12-40,12-55; {_FILE}s node, other."),
]
NodeLabels = Annotated[
    list[str] | None,
    Option(metavar="IDS", help="Of a graph: nodes whose label to erase, as in --nodes."),
]
