"""Names of files for the parts of people who are answered together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

HARMLESS = "@+,="
"""Characters that every disk and every shell takes in a name, beside letters, digits and `_.-~`."""
LONGEST = 200
"""Characters of a name: disks take 255."""


def file_names(users: Sequence[str]) -> list[str]:
    """Return a name for a file of each user: the id, with what a disk may not take escaped.

    Some disks ignore capitals, so one of two names that differ in nothing else gets a number. "#"
    would be escaped, so no id has such a name.
    """
    names, times = list[str](), Counter[str]()
    for user in users:
        name = quote(user, safe=HARMLESS)[:LONGEST]
        name = f"%2E{name[1:]}" if name.startswith(".") else name  # a hidden file is not found
        times[name.casefold()] += 1
        number = times[name.casefold()]
        names.append(name if number == 1 else f"{name}#{number}")
    return names
