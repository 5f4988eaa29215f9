"""Charts: the choice of the scale."""

from __future__ import annotations

import pytest

from rescind.reporting import charts


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ({"one": 0.8, "two": 0.003}, "linear"),  # fractions: lengths must be proportional
        ({"one": 8000.0, "two": 30.0}, "log"),
        ({"one": 8000.0, "two": 3000.0}, "linear"),
        ({"one": 8000.0, "two": 0.0}, "linear"),
    ],
)
def test_horizontal_bars_are_logarithmic_only_if_values_differ_much(values, scale):
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    charts.bars_across(ax, {name: (mean, 0.0) for name, mean in values.items()}, "seconds")
    assert ax.get_xscale() == scale
    assert [bar.get_width() for bar in ax.patches] == list(values.values())
