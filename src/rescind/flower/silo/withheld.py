"""A silo's list of who left and what was erased (`withheld.json`): by key of the original id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rescind.data.blocklist import FILE, Blocklist
from rescind.errors import DataError

BY = "key of the original id"
"""Written into the list. A list without it is of an earlier version and has numbers."""


def has_numbers(listed: Blocklist) -> bool:
    """Return whether a silo's list names people by numbers, as earlier versions did.

    Nodes of a graph have nothing but numbers, which do not change.
    """
    return listed.by != BY and bool(listed.erased or listed.withdrawn)


def read_list(folder: Path) -> Blocklist:
    """Read the list of a silo; empty if there is none. Refuse one that still has numbers."""
    listed = Blocklist.read(folder)
    if has_numbers(listed):
        raise DataError(
            f"{folder / FILE} names users by numbers, as earlier versions did. Let the silo join "
            f"again (rescind flower join): that converts it."
        )
    return replace(listed, by=BY)
