"""Whatever comes and goes: an estimator is that of a fit on what remains, bit for bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import rescind as rs
from rescind.errors import DataError

USERS = st.sampled_from(["ann", "bob", 7, "7", -3, "zoë"])
ITEMS = st.sampled_from([1, 2, 30, "1", "a film, with 'quotes'", "b", "c", "d"])
RECORDS = st.lists(st.tuples(USERS, ITEMS, st.integers(0, 5)), max_size=12)


class Machine(RuleBasedStateMachine):
    """Records come and go at random; a dictionary of pairs says what remains."""

    learner = rs.Gram
    made = rs.Gram

    @initialize(records=RECORDS)
    def fit(self, records):
        self.left = {}
        self.model = self.made().fit(self.remembered(records))

    @rule(records=RECORDS)
    def add(self, records):
        self.model.add(self.remembered(records))

    def remembered(self, records):
        for user, item, time in records:
            self.left[user, item] = min(time, self.left.get((user, item), time))
        return records

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def forget_a_user(self, data):
        gone = data.draw(st.sampled_from(sorted({u for u, _ in self.left}, key=repr)))
        self.model.forget(users=[gone])
        self.left = {(u, i): t for (u, i), t in self.left.items() if u != gone}

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def forget_an_item(self, data):
        gone = data.draw(st.sampled_from(sorted({i for _, i in self.left}, key=repr)))
        self.model.forget(items=[gone])
        self.left = {(u, i): t for (u, i), t in self.left.items() if i != gone}

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def forget_records(self, data):
        known = st.sampled_from(sorted(self.left, key=repr))
        gone = data.draw(st.lists(known, min_size=1, max_size=3))
        self.model.forget(records=gone)
        self.left = {pair: t for pair, t in self.left.items() if pair not in gone}

    @rule(user=USERS)
    def forget_who_is_not_there(self, user):
        if user not in {u for u, _ in self.left}:
            with pytest.raises(DataError, match="there is no user"):
                self.model.forget(users=[user])

    @rule(data=st.data())
    def recommend_to_somebody(self, data):
        """Weights are solved in the middle of a history, too."""
        if self.left:
            self.model.recommend(data.draw(st.sampled_from(sorted(self.left, key=repr)))[0])

    @rule()
    def save_and_load(self):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            self.model.save(path)
            self.model = self.learner.load(path)

    @invariant()
    def is_a_fit_on_what_remains(self):
        if not hasattr(self, "model"):
            return
        again = self.made().fit([(*pair, t) for pair, t in reversed(self.left.items())])
        same_state(self.model, again)


def same_state(model, again):
    """Sums, weights, ids and records are equal, and nothing else is reachable."""
    assert model.digest() == again.digest()
    assert torch.equal(model._weights(), again._weights())
    assert (model.users, model.items, len(model)) == (again.users, again.items, len(again))
    for user in model.users:
        assert model.recommend(user, k=8) == again.recommend(user, k=8)
    gone = model._state.total.sum() - again._state.total.sum()  # slots that nobody has hold nothing
    assert gone == 0
    for one, two in zip(contents(model), contents(again), strict=True):
        assert one == two


def contents(model):
    """Everything that is written to a file."""
    tensors, notes = model._packed()
    return [*((n, v.tolist()) for n, v in sorted(tensors.items())), *sorted(notes.items())]


class InOrder(Machine):
    learner = rs.SeqGram
    made = rs.SeqGram


class NextItem(InOrder):
    made = rs.SeqGram.sequences


few = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestGram = Machine.TestCase
TestGram.settings = few
TestSeqGram = InOrder.TestCase
TestSeqGram.settings = few
TestSequences = NextItem.TestCase
TestSequences.settings = few
