"""Progress bars, with a known total and without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rescind.reporting.progress import RoundBar


def result(round_: int) -> SimpleNamespace:
    return SimpleNamespace(now=SimpleNamespace(state=SimpleNamespace(round=round_)), until=None)


@pytest.mark.parametrize(
    ("rounds", "text", "done"),
    [(152, "forgetting: 152 rounds", 152), (None, "forgetting", 2)],
)
def test_a_bar_shows_the_round_or_counts_calls(capsys, rounds, text, done):
    """An unlearner continues from round 150, with or without a known total."""
    with RoundBar("forgetting", rounds) as bar:
        for round_ in (151, 152):
            bar(result(round_))
    (task,) = bar.bar.tasks
    assert (task.completed, task.total) == (done, rounds)
    assert capsys.readouterr().err.strip() == text
