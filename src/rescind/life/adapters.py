"""Models of other libraries as entries: they fit a matrix of people and items, again and again.

Fitting again on what remains is how any model can forget. `Refit` takes whatever has `fit` and
`recommend` (as in implicit), or `fit` and `full_scores` (for models of RecBole and others that
score all items of a person at once).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescind.data.arrays import Ints
from rescind.errors import ConfigError
from rescind.life.entry import Arrival, Asked, Entry, Setting, joined
from rescind.life.rows import Row


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


NAME = "life"
"""The name of the table of interactions that RecBole reads."""
FEW = 1e-6
"""Weight of people with nothing in common: they count only where nobody has more."""


def needed(module: str, package: str) -> Any:
    """Return a module of another library, or raise an error that names what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"this row needs {package} ({error}). Install it first: pip install {package}."
        ) from None


class Peer(Refit):
    """A model of another library; its version is part of the settings."""

    def __init__(self, setting: Setting, seed: int, make: Callable[..., Any], package: str) -> None:
        super().__init__(setting, seed, make)
        self.package = package

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "library": f"{self.package} {version(self.package)}"}


def _als(setting: Setting, seed: int) -> Entry:
    als = needed("implicit.als", "implicit").AlternatingLeastSquares
    make = partial(als, factors=32, num_threads=1, use_gpu=False)
    return Peer(setting, seed, make, "implicit")


def _bpr(setting: Setting, seed: int) -> Entry:
    needed("recbole.config", "recbole")
    make = partial(RecBole, "BPR", epochs=8, learning_rate=0.01)
    return Peer(setting, seed, make, "recbole")


PEERS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("implicit ALS", _als, "alternating least squares; fits again"),
        Row("RecBole BPR", _bpr, "pairwise ranking; fits again"),
    )
}
"""Rows that are played only if they are named, because their libraries must be installed."""


class RecBole:
    """A general recommender of RecBole, with `fit` and `full_scores`.

    model: its name in RecBole    settings: of its configuration, for example epochs=20
    """

    def __init__(self, model: str, random_state: int = 0, **settings: Any) -> None:
        self.model, self.seed, self.settings = model, random_state, settings
        self.table: NDArray[Any] = np.zeros((0, 0), dtype=np.float32)
        """Scores of everybody who was trained. [people, items]"""
        self.known: Ints = np.zeros(0, dtype=np.int64)
        """The people of the rows of `table`."""
        self.trained: Any = None
        """What they were trained on. sparse [people, items]"""

    def fit(self, user_items: Any) -> None:
        """Train from the start on a sparse table of people and items."""
        people, items = user_items.nonzero()
        with tempfile.TemporaryDirectory() as folder, _no_arguments(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what its own dependencies will change
            _write(Path(folder), people, items)
            dataset, model = self._trained(Path(folder))
        self.known = np.unique(people)
        self.trained = user_items[self.known]
        self.table = self._scored(dataset, model, user_items.shape[1])

    def _trained(self, folder: Path) -> tuple[Any, Any]:
        recbole = {
            name: needed(f"recbole.{name}", "recbole")
            for name in ("config", "data", "trainer", "utils")
        }
        config = _config_class(recbole["config"])(
            self.model, NAME, config_dict=self._config(folder)
        )
        recbole["utils"].init_seed(self.seed, True)
        dataset = recbole["data"].create_dataset(config)
        data, _, _ = recbole["data"].data_preparation(config, dataset)
        model = recbole["utils"].get_model(self.model)(config, data.dataset)
        trainer = recbole["trainer"].Trainer(config, model)
        trainer.fit(data, saved=False, verbose=False, show_progress=False)
        return data.dataset, model.eval()

    def _config(self, folder: Path) -> dict[str, Any]:
        """Return settings: all records are for training, on one processor, without files."""
        return {
            "data_path": str(folder), "checkpoint_dir": str(folder / "saved"),
            "USER_ID_FIELD": "user_id", "ITEM_ID_FIELD": "item_id",
            "load_col": {"inter": ["user_id", "item_id"]},
            "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "order": "RO", "group_by": "user",
                          "mode": "full"},
            "seed": self.seed, "reproducibility": True, "use_gpu": False, "worker": 0,
            "eval_step": 0, "log_wandb": False, "show_progress": False, "state": "ERROR",
            **self.settings,
        }  # fmt: skip

    def _scored(self, dataset: Any, model: Any, items: int) -> NDArray[Any]:
        """Return the scores of everybody; items that nobody has are scored below all others."""
        import torch

        rows = dataset.token2id("user_id", [str(user) for user in self.known])
        names = dataset.id2token("item_id", np.arange(1, dataset.item_num)).astype(np.int64)
        with torch.no_grad():
            found = model.full_sort_predict({"user_id": torch.from_numpy(rows).long()})
        found = found.reshape(len(rows), -1)[:, 1 : dataset.item_num].double().numpy()
        table = np.full((len(rows), items), found.min() - 1.0, dtype=np.float32)
        table[:, names] = found
        return table

    def full_scores(self, users: Ints, user_items: Any) -> NDArray[Any]:
        """Return scores of all items. [len(users), items]

        Who was not trained gets the mean of those with the most items in common.
        """
        place = np.searchsorted(self.known, users).clip(max=len(self.known) - 1)
        common = np.asarray((user_items @ self.trained.T).todense(), dtype=np.float32) + FEW
        strangers = (common / common.sum(1, keepdims=True)) @ self.table
        return np.where((self.known[place] == users)[:, None], self.table[place], strangers)


def _config_class(module: Any) -> Any:
    """Return RecBole's configuration, without its change of numpy.

    Version 1.2 writes names like np.float into numpy for everybody; with numpy 2 this fails.
    """
    return type("Config", (module.Config,), {"compatibility_settings": lambda _: None})


def _write(folder: Path, people: Ints, items: Ints) -> None:
    rows = "".join(f"{u}\t{i}\n" for u, i in zip(people.tolist(), items.tolist(), strict=True))
    path = folder / NAME / f"{NAME}.inter"
    path.parent.mkdir()
    path.write_text("user_id:token\titem_id:token\n" + rows, encoding="utf-8")


@contextlib.contextmanager
def _no_arguments() -> Iterator[None]:
    """Hide the arguments of this program, which RecBole would read as its own."""
    given, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = given
