"""Bars of rounds: with a known end, and without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rescind.reporting.progress import RoundBar


def moment(round_: int) -> SimpleNamespace:
    return SimpleNamespace(now=SimpleNamespace(state=SimpleNamespace(round=round_)), until=None)


@pytest.mark.parametrize(
    ("rounds", "said", "done"),
    [(152, "forgetting: 152 rounds", 152), (None, "forgetting", 2)],
)
def test_a_bar_stands_at_the_round_or_counts_what_it_sees(capsys, rounds, said, done):
    """An unlearner goes on from round 150, and only it knows how far."""
    with RoundBar("forgetting", rounds) as bar:
        for round_ in (151, 152):
            bar(moment(round_))
    (task,) = bar.bar.tasks
    assert (task.completed, task.total) == (done, rounds)
    assert capsys.readouterr().err.strip() == said
