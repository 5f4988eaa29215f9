"""Models of other libraries take part where they are installed; else the error says how."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from rescind.errors import ConfigError
from rescind.life.adapters import PEERS, RecBole, Refit
from rescind.life.entry import Arrival, Setting
from rescind.life.find import find
from rescind.life.ledger import Ledger
from rescind.life.run import setting_of
from rescind.life.story import Story

LIBRARY = {"implicit ALS": "implicit", "RecBole BPR": "recbole"}


@pytest.mark.parametrize("name", list(PEERS))
def test_without_the_library_the_error_says_what_to_install(
    name: str, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = LIBRARY[name]
    for module in [m for m in sys.modules if m.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=f"Install it first: pip install {library}"):
        find(name).make(setting_of(story), 0)


@pytest.mark.parametrize("name", list(PEERS))
def test_with_the_library_a_model_is_fitted_again_and_equal(name: str, story: Story) -> None:
    if find_spec(LIBRARY[name]) is None:
        pytest.skip(f"{LIBRARY[name]} is not installed; it is no dependency")
    ledger = Ledger()
    learn, requests = story.of_block(0)
    for event in (e for step in learn for e in step.events):
        ledger.apply(event)
    setting = setting_of(story)
    entry, told = (PEERS[name].build(setting, 0) for _ in range(2))
    entry.relive(ledger.blocks())
    told.relive(ledger.blocks())
    assert entry.digest() == told.digest()
    for step in requests:
        entry.forget(ledger.asked(step.events))
        for event in step.events:
            ledger.apply(event)
    never = PEERS[name].build(setting, 0)
    never.relive(ledger.blocks())
    assert entry.digest() == never.digest() != told.digest()
    none = np.zeros(0, dtype=np.int64)
    people = np.arange(setting.users)
    assert entry.scores(people, [(none, none)] * len(people)).shape == (len(people), setting.items)
    assert LIBRARY[name] in entry.settings()["library"]


class Fake(RecBole):
    """RecBole without RecBole: everybody gets the items they have."""

    def _trained(self, folder: Any) -> tuple[Any, Any]:
        assert (folder / "life" / "life.inter").read_text().splitlines()[1:] == ["0\t1", "2\t3"]
        assert len(sys.argv) == 1
        return SimpleNamespace(), None

    def _scored(self, dataset: Any, model: Any, items: int) -> Any:
        return np.asarray(self.trained.todense(), dtype=np.float32)


def test_who_was_not_trained_is_scored_by_those_with_the_same_items() -> None:
    model = Fake("BPR")
    model.fit(csr_matrix(([1.0, 1.0], ([0, 2], [1, 3])), shape=(4, 4)))
    asked = csr_matrix(([1.0, 1.0], ([0, 1], [3, 3])), shape=(2, 4))
    known, stranger = model.full_scores(np.array([0, 3]), asked)
    assert known.tolist() == [0.0, 1.0, 0.0, 0.0]  # trained: the history does not matter
    assert int(np.argmax(stranger)) == 3


class Remembers:
    """A model that keeps what it worked out for a list, as implicit's does."""

    def fit(self, matrix: Any) -> None:
        self.popular = np.asarray(matrix.sum(0)).ravel()

    def full_scores(self, users: Any, mine: Any) -> Any:
        self.squared = self.popular**2
        return np.tile(self.popular, (len(users), 1))


def test_a_list_changes_no_digest() -> None:
    entry = Refit(Setting(3, 4), 0, Remembers)
    some = Arrival(0, np.arange(3), np.arange(3), np.zeros(3, int), np.ones(3, bool))
    entry.arrive(some)
    told = entry.digest()
    entry.scores(np.array([0]), [(np.array([1]), np.array([0]))])
    assert entry.digest() == told
    entry.relive([some.only(some.user < 2)])
    assert entry.digest() != told  # of other records it is another
