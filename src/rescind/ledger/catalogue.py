"""The items that people may lend: their original ids, in a fixed order, and their titles.

Boxes hold the place of an item in this order, so the order of a state folder never changes. Items
may be added at its end: the sum has a place for each pair i >= j, which more items do not move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rescind.core.files import write_atomically
from rescind.errors import ConfigError, DataError

FILE = "catalogue.json"


class Catalogue:
    """Original ids (text) and titles of all items."""

    def __init__(self, ids: Sequence[str], titles: Sequence[str] | None = None) -> None:
        self.ids = tuple(map(str, ids))
        self.titles = tuple(map(str, titles)) if titles is not None else self.ids
        self._index = {name: place for place, name in enumerate(self.ids)}
        if len(self.titles) != len(self.ids) or len(self._index) != len(self.ids):
            raise DataError("a catalogue needs one title per item, and no id twice.")

    def __len__(self) -> int:
        return len(self.ids)

    def index_of(self, item: str) -> int:
        try:
            return self._index[item]
        except KeyError:
            raise DataError(
                f"there is no item {item!r} in the catalogue (GET /v1/catalogue)."
            ) from None

    def indices_of(self, items: Iterable[str]) -> NDArray[np.int32]:
        """Return the places of original ids, sorted, each once."""
        return np.array(sorted({self.index_of(item) for item in items}), np.int32)

    def names_of(self, indices: Iterable[int]) -> list[str]:
        ids = self.ids
        return [ids[int(place)] for place in indices]

    def begins_with(self, earlier: Catalogue) -> bool:
        """Return whether all items of an earlier catalogue have the same places here."""
        return self.ids[: len(earlier)] == earlier.ids

    def with_items(self, listed: Catalogue) -> Catalogue:
        """Return the catalogue with the items of a newer list: its titles, and new ones at the end.

        Raises `ConfigError` if the list lacks an item: somebody may lend it.
        """
        missing = [one for one in self.ids if one not in listed._index]
        if missing:
            raise ConfigError(
                f"{len(missing):,} of the {len(self):,} items of this service are not in the list, "
                f"such as {missing[0]!r}. Items can be added, not taken away."
            )
        title = dict(zip(listed.ids, listed.titles, strict=True))
        ids = (*self.ids, *(one for one in listed.ids if one not in self._index))
        return Catalogue(ids, [title[one] for one in ids])

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()

    @property
    def text(self) -> str:
        """All ids and titles, as `of_text` reads them."""
        return json.dumps({"ids": self.ids, "titles": self.titles}, ensure_ascii=False)

    @classmethod
    def of_text(cls, text: str | bytes) -> Catalogue:
        table = json.loads(text)
        return cls(table["ids"], table["titles"])

    def save(self, state: Path) -> None:
        """Write the catalogue into a state folder. It is public: items, not people."""
        write_atomically(state / FILE, self.text.encode(), private=True)  # as all files there

    @classmethod
    def load(cls, state: Path) -> Catalogue:
        try:
            return cls.of_text((state / FILE).read_bytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"cannot read the catalogue {state / FILE}: {error}. Put the file back, or give "
                f"--items: the same ids in the same order."
            ) from None
