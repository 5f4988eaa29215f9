"""An estimator that is interrupted is as before or as after, and so is what it saves."""

from __future__ import annotations

import pytest

from interrupting import CASES, CORE, VERBS, Tried, tried
from rescind.estimators import gram, seq_gram
from rescind.estimators.state import State

SOME = 11
"""Every so many lines are tried here, bytecodes of all files in tests/security."""


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize(("form", "verb"), CASES)
def test_an_interrupt_leaves_no_half(tmp_path, form, verb):
    tries, found = tried(form, verb, tmp_path, "line", SOME, CORE)
    assert tries > 5
    assert found == {""}


def unmarked(state, change):
    """What a change was before: nothing is marked."""
    state.made = {}
    state.book.apply(change)
    return state.counted_by


@pytest.mark.parametrize(
    ("form", "verb"), [("Gram", "a user"), ("SeqGram", "records"), ("GraphGram", "a client")]
)
def test_control_without_the_mark_somebody_stays_in_the_sum(tmp_path, monkeypatch, form, verb):
    monkeypatch.setattr(State, "change", unmarked)
    _, found = tried(form, verb, tmp_path, "line", 1, CORE)
    assert len(found) > 1


def out_of_memory(total, *_):
    """A count that gives up in its midst."""
    total.view(-1)[: total.numel() // 2] += 17
    raise MemoryError


@pytest.mark.parametrize("form", ["Gram", "SeqGram", "log", "timed log"])
def test_a_count_that_ends_in_its_midst_leaves_no_half(tmp_path, monkeypatch, form):
    case, call = Tried(form, tmp_path), VERBS[form]["a user"]
    outcomes = case.outcomes(call)
    model = case.load()
    with monkeypatch.context() as patch:
        patch.setattr(gram, "add_pairs", out_of_memory)
        patch.setattr(seq_gram.ordered, "add_sequences", out_of_memory)
        with pytest.raises(MemoryError):
            call(model)
    assert case.wrong(model, call, outcomes) == ""
