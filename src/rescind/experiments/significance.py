"""Differences between cells, paired by seed: p by Student's t, corrected for how many there are.

The same seed is the same split, so cells are compared seed by seed. Three seeds cannot show small
differences, and of many comparisons some stand out by chance: p is adjusted by Holm's procedure
over all comparisons of a table, and only what remains is set in bold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rescind.experiments.tables import ResultTable, cells_by_name, rows_as_markdown

LEVEL = 0.05
"""Differences whose adjusted p is below count as such; everything else is noise until shown."""


@dataclass(frozen=True)
class Difference:
    """What a cell has more than another, paired by seed: the same seed means the same split."""

    cell: str
    metric: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean difference."""
        return statistics.fmean(self.values)

    @property
    def error(self) -> float | None:
        """Its standard error; None for a single pair."""
        if len(self.values) < 2:
            return None
        return statistics.stdev(self.values) / len(self.values) ** 0.5

    @property
    def p(self) -> float | None:
        """Of the paired t-test, two-sided, pairs - 1 degrees of freedom; None for a single pair."""
        if self.error is None:
            return None
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        from scipy.special import stdtr

        return float(2 * stdtr(len(self.values) - 1, -abs(self.mean) / self.error))

    @property
    def effect(self) -> float | None:
        """Hedges' g of the paired differences: their mean over their deviation, less its bias.

        None for fewer than three pairs, where the bias is all there is, and where nothing varies.
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
    """Every other cell (or these) on the data of one cell, less that cell, over common seeds."""
    known = cells_by_name(table.recipe)
    base = {
        e.metric: dict(zip(e.seeds, e.values, strict=True))
        for e in table.entries
        if e.cell == against
    }
    out = []
    for entry in table.entries:
        if entry.cell == against or entry.cell not in (known if cells is None else cells):
            continue
        if known[entry.cell].data != known[against].data:
            continue
        other = base[entry.metric]
        pairs = zip(entry.seeds, entry.values, strict=True)
        apart = tuple(value - other[seed] for seed, value in pairs if seed in other)
        if apart:
            out.append(Difference(entry.cell, entry.metric, apart))
    return tuple(out)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values, in the order given; None stays None and does not count.

    The k-th smallest of m is multiplied by m - k + 1, never below the one before, at most 1.
    """
    order = sorted((p, n) for n, p in enumerate(values) if p is not None)
    out: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - rank)))
        out[place] = least
    return out


def verdict(found: Difference, adjusted: float | None) -> str:
    """In one word: whether it is there after the correction."""
    if adjusted is None:
        return "one seed"
    return ("higher" if found.mean > 0 else "lower") if adjusted < LEVEL else "no"


def markdown_differences(found: Sequence[Difference], against: str) -> str:
    """Differences in Markdown: a row for each comparison, bold where it survives the correction."""
    head = ["cell", "metric", "pairs", f"less {against}", "s.e.", "effect", "p", "Holm", "differs"]
    rows = [head]
    for one, adjusted in zip(found, holm([d.p for d in found]), strict=True):
        said, mean = verdict(one, adjusted), f"{one.mean:+.4f}"
        rows.append([
            one.cell, one.metric, str(len(one.values)),
            f"**{mean}**" if said in ("higher", "lower") else mean,
            "" if one.error is None else f"{one.error:.4f}",
            "" if one.effect is None else f"{one.effect:+.1f}",
            *("" if p is None else f"{p:.3f}" for p in (one.p, adjusted)),
            said,
        ])  # fmt: skip
    return rows_as_markdown(rows)


def remark(found: Sequence[Difference]) -> str:
    """How many comparisons there are, and what the columns mean."""
    tested = sum(d.p is not None for d in found)
    return (
        f"{len(found)} comparisons, {tested} of them tested (two pairs or more). p: paired t-test "
        f"over seeds; Holm: adjusted for all {tested}; effect: Hedges' g of the paired "
        f"differences, from three pairs on. Bold and 'differs': adjusted p below {LEVEL}."
    )
