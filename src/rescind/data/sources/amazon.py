"""Amazon Video Games 2018 in the 5-core form of LC-Rec.

`Games.inter.json` maps each user number to item numbers in the order of the reviews;
`Games.item2id` gives the product code of each item number. There are no ratings and no times.
"""

from __future__ import annotations

import json

import numpy as np

from rescind.data.canonical import Canonical
from rescind.data.sources.archive import Files
from rescind.data.sources.text_columns import cut, decode, whole
from rescind.data.split import rank_in_owner
from rescind.errors import DataError


def read(files: Files) -> Canonical:
    """Read both files; `position` is the index in a user's history, 0 for the oldest."""
    label = files.label("Games.inter.json")
    try:
        histories = json.loads(decode(files.read("Games.inter.json"), label, "utf-8"))
    except (json.JSONDecodeError, RecursionError) as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        raise DataError(f"{label}, line {line}, column {column}: not JSON ({error}).") from error
    if not isinstance(histories, dict) or not all(
        isinstance(items, list) and all(type(item) is int and item >= 0 for item in items)
        for items in histories.values()
    ):
        raise DataError(f"{label}: it must map each user to a list of item numbers.")
    numbers = whole(list(histories), label, "user")
    order = np.argsort(numbers, kind="stable")
    lists = list(histories.values())
    user = np.repeat(numbers[order], [len(lists[at]) for at in order])
    item = np.asarray([item for at in order for item in lists[at]], dtype=np.int64)
    position = rank_in_owner(user).astype(np.int16)
    columns = {"user": user, "item": item, "rating": None, "timestamp": None, "position": position}
    table = cut(files, "Games.item2id", "\t", ("code", "item"))
    by_number = np.argsort(table.whole("item"), kind="stable")
    return Canonical(columns, {"source_id": np.asarray(table["code"])[by_number]})
