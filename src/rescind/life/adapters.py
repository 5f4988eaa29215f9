"""Models of other libraries as entries: they fit a matrix of people and items, again and again.

Fitting again on what remains is how any model can forget. `Refit` takes whatever has `fit` and
`recommend` (as in implicit), or `fit` and `full_scores` (for models of RecBole and others that
score all items of a person at once).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.errors import ConfigError
from rescind.life.entry import Arrival, Asked, Entry, Setting, joined


class Refit(Entry):
    """Any object with `fit(user_items)` and `recommend`, fitted again after each block and request.

    make: returns the model; called with `random_state=seed` if it takes that
    """

    def __init__(self, setting: Setting, seed: int, make: Callable[..., Any]) -> None:
        super().__init__(setting, seed)
        self.make = make
        self.model: Any = None
        self.held: Arrival | None = None
        self._fitted = ""
        """Digest of the model when it was fitted: to score, some keep more arrays in themselves."""

    def settings(self) -> dict[str, Any]:
        """Return the name of the model, and what a `partial` gives it."""
        made = getattr(self.make, "func", self.make)
        given = [*getattr(self.make, "args", ()), *getattr(self.make, "keywords", {}).items()]
        name = getattr(made, "__name__", type(made).__name__)
        return {"how": "Refit", "model": name, **({"given": repr(given)} if given else {})}

    def arrive(self, arrival: Arrival) -> None:
        self._fit(joined([arrival] if self.held is None else [self.held, arrival]))

    def relive(self, arrivals: Sequence[Arrival]) -> None:
        self._fit(joined(arrivals))

    def forget(self, asked: Asked) -> None:
        assert self.held is not None, "no block has arrived yet"
        if asked.kind != "unshare":  # a loan is not read here: records stay
            self._fit(self.held.only(~asked.names(self.held)))

    def _fit(self, held: Arrival) -> None:
        self.held = held
        seeded = "random_state" in inspect.signature(self.make).parameters
        self.model = self.make(random_state=self.seed) if seeded else self.make()
        if not hasattr(self.model, "fit"):
            raise ConfigError(
                f"{self.make!r} makes a model without fit. Give one with fit and recommend."
            )
        takes = inspect.signature(self.model.fit).parameters
        quiet = {"show_progress": False} if "show_progress" in takes else {}
        self.model.fit(self._matrix(held.user, held.item, self.setting.users), **quiet)
        self._fitted = self._digest()

    def _matrix(self, user: Ints, item: Ints, people: int) -> Any:
        from scipy.sparse import csr_matrix

        ones = np.ones(len(user), dtype=np.float32)
        return csr_matrix((ones, (user, item)), shape=(people, self.setting.items))

    def scores(self, users: Ints, histories: Sequence[tuple[Ints, Ints]]) -> NDArray[Any]:
        """Return scores by the history alone, so that nobody has to be known to the model."""
        assert self.model is not None, "no block has arrived yet"
        owner = np.repeat(np.arange(len(users)), [len(item) for item, _ in histories])
        item = np.concatenate([np.zeros(0, dtype=np.int64), *(item for item, _ in histories)])
        mine = self._matrix(owner, item, len(users))
        if hasattr(self.model, "full_scores"):
            return np.asarray(self.model.full_scores(users, mine))
        return self._listed(users, mine)

    def _listed(self, users: Ints, mine: Any) -> NDArray[Any]:
        """Return scores from the list of all items, best first; items left out come last."""
        assert self.model is not None
        takes = inspect.signature(self.model.recommend).parameters
        more: dict[str, Any] = {"N": self.setting.items, "filter_already_liked_items": False}
        more |= {"recalculate_user": True} if "recalculate_user" in takes else {}
        items, scores = self.model.recommend(np.arange(len(users)), mine, **more)
        out = np.full((len(users), self.setting.items), -np.inf)
        items, scores = np.asarray(items), np.asarray(scores, dtype=np.float64)
        rows, places = np.nonzero(items >= 0)
        out[rows, items[rows, places]] = scores[rows, places]
        least = np.min(np.where(np.isfinite(out), out, np.inf), axis=1, keepdims=True)
        return np.where(np.isfinite(out), out, np.where(np.isfinite(least), least, 0.0) - 1.0)

    def digest(self) -> str:
        """Return a digest of what the model held in arrays when it was fitted."""
        return self._fitted

    def _digest(self) -> str:
        state = hashlib.sha256()
        for name, value in sorted(vars(self.model).items()):
            array = getattr(value, "data", None) if hasattr(value, "indptr") else value
            if isinstance(array, np.ndarray):
                state.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return f"sha256:{state.hexdigest()}"
