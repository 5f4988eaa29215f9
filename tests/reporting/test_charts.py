"""Figures: what decides how they are drawn."""

from __future__ import annotations

import pytest

from rescind.reporting import charts


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ({"one": 0.8, "two": 0.003}, "linear"),  # shares: a bar a third as long is a third
        ({"one": 8000.0, "two": 30.0}, "log"),
        ({"one": 8000.0, "two": 3000.0}, "linear"),
        ({"one": 8000.0, "two": 0.0}, "linear"),
    ],
)
def test_lying_bars_are_logarithms_only_where_lengths_could_not_be_seen(values, scale):
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    charts.bars_across(ax, {name: (mean, 0.0) for name, mean in values.items()}, "seconds")
    assert ax.get_xscale() == scale
    assert [bar.get_width() for bar in ax.patches] == list(values.values())
