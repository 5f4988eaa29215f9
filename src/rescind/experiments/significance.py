"""Differences between cells, paired by seed, with p-values corrected for multiple comparisons,
and how far one more run may lie from the mean of some.

The same seed gives the same split, so cells are compared seed by seed with a paired t-test. The
p-values are adjusted by Holm's procedure over all comparisons of a table; only significant
differences are printed in bold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rescind.experiments.table_forms import rows_as_markdown
from rescind.experiments.tables import ResultTable, cells_by_name

LEVEL = 0.05
"""A difference is significant if its adjusted p is below this level."""

ROUNDING = 1e-9
"""Differences that lie closer are equal: results are recorded with six digits."""
ONE_RUN = "one run"
"""What is said of a difference that is the same for all seeds: more of them say nothing."""
ENOUGH = 5
"""Seeds from which on the corrected test can be expected to find a difference of twice its spread:
for six comparisons the mean must exceed 2.2 spreads at 5 seeds, 6.3 at 3 and 54 at 2."""


@dataclass(frozen=True)
class Difference:
    """The differences of one cell to another, paired by seed."""

    cell: str
    metric: str
    values: tuple[float, ...]
    apart: int = 0
    """Seeds that both have, on different rows: no pairs, and left out."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float | None:
        """The standard error; None for a single pair."""
        if len(self.values) < 2:
            return None
        if max(self.values) - min(self.values) < ROUNDING:
            return 0.0
        return statistics.stdev(self.values) / len(self.values) ** 0.5

    @property
    def p(self) -> float | None:
        """The p-value of the two-sided paired t-test; None for a single pair, and if none varies.

        Where the split is fixed and nothing is drawn, all seeds are one run, and no sample.
        """
        if not self.error:
            return None
        from scipy.special import stdtr

        return float(2 * stdtr(len(self.values) - 1, -abs(self.mean) / self.error))

    @property
    def effect(self) -> float | None:
        """Hedges' g of the paired differences: mean / standard deviation, bias-corrected.

        None for fewer than three pairs, and if nothing varies.
        """
        freedom = len(self.values) - 1
        if freedom < 2 or not self.error:
            return None
        half = freedom / 2
        unbias = math.exp(math.lgamma(half) - math.lgamma(half - 0.5)) / math.sqrt(half)
        return unbias * self.mean / statistics.stdev(self.values)


def differences(
    table: ResultTable, against: str, cells: Sequence[str] | None = None
) -> tuple[Difference, ...]:
    """Subtract one cell from every other cell (or from `cells`) on the same data, by seed."""
    known = cells_by_name(table.recipe)
    base = {e.metric: e.by_seed for e in table.entries if e.cell == against}
    of_rows = {e.metric: e.data_by_seed for e in table.entries if e.cell == against}
    out = []
    for e in table.entries:
        if e.cell == against or e.cell not in (known if cells is None else cells):
            continue
        if known[e.cell].data == known[against].data:
            other, rows = base[e.metric], of_rows[e.metric]
            both = [seed for seed in e.by_seed if seed in other]
            pairs = [s for s in both if e.data_by_seed.get(s) == rows.get(s)]
            values = tuple(e.by_seed[seed] - other[seed] for seed in pairs)
            apart = len(both) - len(pairs)
            out += [Difference(e.cell, e.metric, values, apart)] if values else []
    return tuple(out)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Compute Holm's adjusted p-values in the given order; None stays None and does not count.

    The k-th smallest of m is multiplied by m - k + 1, at least the one before, at most 1.
    """
    order = sorted((p, n) for n, p in enumerate(values) if p is not None)
    out: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - rank)))
        out[place] = least
    return out


def prediction_margin(values: Sequence[float]) -> float | None:
    """Return how far one more run may lie from the mean of these: t(n - 1) sd sqrt(1 + 1 / n).

    The 95 % prediction interval of a normal distribution. None for a single run.
    """
    count = len(values)
    if count < 2:
        return None
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 1 - LEVEL / 2))
    return quantile * statistics.stdev(values) * math.sqrt(1 + 1 / count)


def verdict(found: Difference, adjusted: float | None) -> str:
    """Return the corrected result in a word or two: higher, lower, no, one seed, or one run."""
    if adjusted is None:
        return "one seed" if found.error is None else ONE_RUN if found.mean else "no"
    return ("higher" if found.mean > 0 else "lower") if adjusted < LEVEL else "no"


def markdown_differences(found: Sequence[Difference], against: str) -> str:
    """Format differences in Markdown: a row per comparison, bold if significant."""
    return rows_as_markdown(_rows(found, against))


def _rows(found: Sequence[Difference], against: str) -> list[list[str]]:
    """Return the rows of a printed table, the heading first."""
    head = ["cell", "metric", "pairs", f"less {against}", "s.e.", "effect", "p", "Holm", "differs"]
    rows = [head]
    for one, adjusted in zip(found, holm([d.p for d in found]), strict=True):
        word, mean = verdict(one, adjusted), f"{one.mean:+.4f}"
        rows.append([
            one.cell, one.metric, str(len(one.values)),
            f"**{mean}**" if word in ("higher", "lower") else mean,
            "" if one.error is None else f"{one.error:.4f}",
            "" if one.effect is None else f"{one.effect:+.1f}",
            *(_chance(p) for p in (one.p, adjusted)),
            word,
        ])  # fmt: skip
    return rows


def _chance(p: float | None) -> str:
    """Return a p as text; a small one is never shown as none at all."""
    if p is None:
        return ""
    shown = f"{p:.3f}"
    return "<0.001" if shown == "0.000" else shown


def on_few_seeds(found: Sequence[Difference]) -> str:
    """Return a warning if the test has so few pairs that "no" says little; '' otherwise."""
    fewest = min((len(one.values) for one in found), default=ENOUGH)
    adjusted = holm([one.p for one in found])
    words = {verdict(one, p) for one, p in zip(found, adjusted, strict=True)}
    apart = any(one.apart for one in found)
    if fewest >= ENOUGH or not (apart or words - {"higher", "lower", ONE_RUN}):
        return ""
    resume = "" if apart else "--resume "  # those on other rows would stay
    return (
        f"With fewer than {ENOUGH} seeds on the same rows the corrected test finds only large "
        f"differences: 'no' means not shown. Run more: --seeds {ENOUGH} {resume}--record."
    )


def remark(found: Sequence[Difference]) -> str:
    """Return a remark with the number of comparisons and the meaning of the columns."""
    tested, apart = sum(d.p is not None for d in found), sum(d.apart for d in found)
    return (
        f"{len(found)} comparisons, {tested} of them tested (two pairs or more that differ), "
        f"{apart} pairs on different rows left out. p: paired t-test over seeds; Holm: adjusted "
        f"for all {tested}; effect: Hedges' g. Bold and 'differs': adjusted p below {LEVEL}."
    )
