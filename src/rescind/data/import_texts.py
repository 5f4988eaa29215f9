"""Number short texts by first appearance, one batch of a large file after another.

Ids are mostly short: "A000123456" and its length are two numbers of 64 bits and a small one. So a
table of those numbers finds a text again without its bytes, in one place of memory. Arrow's own
dictionaries look a text up in two places, and once more where batches are joined.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLOTS = 2**12
_WIDTH = 3  # two numbers of a text; its length and its number


class Texts:
    """Texts seen so far.

    The result depends on their order alone: the table begins with a random number, so that nobody
    can make a file whose texts all want the same place of it.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._seed = np.uint64(secrets.randbits(64))
        self._table = np.zeros((_SLOTS, _WIDTH), dtype=np.uint64)
        self._known = 0
        self._found: list[Any] = []
        self._given_up = False

    def dictionary(self, parts: list[Any]) -> Any:
        """Return Arrow columns without nulls as one dictionary column; None if a text is long.

        After that it stays None: the table has numbers of texts that were never returned.
        """
        import pyarrow as pa

        numbers = []
        for part in parts:
            some = None if self._given_up else self._number(part)
            if some is None:
                self._given_up = True
                return None
            numbers.append(some)
        return pa.DictionaryArray.from_arrays(
            np.concatenate(numbers), pa.concat_arrays(self._found)
        )

    def _number(self, column: Any) -> NDArray[np.int32] | None:
        from rescind.data.import_kernels import move_texts, number_texts

        rows = len(column)
        _, places, data = column.buffers()
        ends = np.frombuffer(places, dtype=np.int32)[column.offset :][: rows + 1]
        letters = np.frombuffer(data or b"", dtype=np.uint8)
        numbers, firsts = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.int32)
        done = new = 0
        while done < rows:
            done, new = number_texts(
                letters, ends, done, self._seed, self._table, self._known, new, firsts, numbers
            )
            if done < 0:
                return None
            if done < rows:  # the table is half full
                larger = np.zeros((4 * len(self._table), _WIDTH), dtype=np.uint64)
                move_texts(self._table, self._seed, larger)
                self._table = larger
        self._known += new
        self._found.append(column.take(firsts[:new]))
        return numbers
