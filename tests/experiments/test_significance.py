"""Paired differences: p, effect and the correction for how many there are."""

from __future__ import annotations

import statistics

import pytest
from scipy import stats

from rescind.experiments.significance import Difference, holm, markdown_differences, verdict

ONE = (0.52, 0.61, 0.55, 0.58)
OTHER = (0.50, 0.55, 0.56, 0.51)


def test_p_is_that_of_the_paired_t_test():
    apart = tuple(a - b for a, b in zip(ONE, OTHER, strict=True))
    expected = stats.ttest_rel(ONE, OTHER).pvalue
    assert Difference("x", "HR@20", apart).p == pytest.approx(expected)


def test_two_pairs_have_the_closed_form_of_cauchy():
    # One degree of freedom is Cauchy's distribution: p = 1 - 2/pi atan(t), and t = 3 here.
    found = Difference("x", "HR@20", (0.1, 0.2))
    assert found.p == pytest.approx(0.2048327647)
    assert found.effect is None


def test_a_single_pair_and_equal_ones_have_no_test():
    one = Difference("x", "HR@20", (0.2,))
    assert (one.error, one.p, one.effect) == (None, None, None)
    assert verdict(one, None) == "one seed"
    same, like = (Difference("x", "HR@20", (value,) * 3) for value in (0.1, 0.0))
    assert (same.p, verdict(same, None)) == (None, "one run")
    assert (like.p, verdict(like, None)) == (None, "no")
    other = Difference("y", "HR@20", (0.1, 0.2, 0.1, 0.2, 0.1))
    assert holm([same.p, other.p]) == [None, other.p], "it is no comparison"
    rounded = Difference("z", "HR@20", (0.30 - 0.20, 0.8 - 0.7, 0.1))
    assert len({*rounded.values}) > 1, "equal but for the last bit"
    assert rounded.p is None


def test_effect_is_the_mean_over_the_deviation_less_its_bias():
    values = (0.1, 0.2, 0.3)
    plain = statistics.fmean(values) / statistics.stdev(values)
    # Two degrees of freedom: gamma(1) / gamma(1/2) = 1 / sqrt(pi).
    assert Difference("x", "HR@20", values).effect == pytest.approx(plain * 0.5641895835)


def test_holm_multiplies_the_smallest_by_all_and_never_falls():
    # By hand: .01 * 3 = .03; .03 * 2 = .06; .04 * 1 = .04, raised to .06.
    assert holm([0.04, 0.01, None, 0.03]) == pytest.approx([0.06, 0.03, None, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_one_good_p_among_many_noisy_ones_is_not_bold():
    clear = Difference("clear", "HR@20", (0.09, 0.11, 0.13))
    noise = [Difference(f"n{k}", "HR@20", (0.1, -0.1, 0.01)) for k in range(9)]
    assert "**+0.1100**" in markdown_differences([clear], "base")
    crowded = markdown_differences([clear, *noise], "base")
    assert "**" not in crowded
    assert crowded.splitlines()[2].endswith("| no |")
