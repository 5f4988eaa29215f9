"""Verdicts in the lines of cells that forget: their column, and the checks that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rescind.experiments.recipe_file import Column

VERDICT = Column("forget.verdict", title="verdict")
"""What a table shows of an audit: by accuracy alone, a no-op looks as good as it can be."""


def named(metric: str) -> Column:
    """Return the column that a user names: verdicts by their title, too, all others by path."""
    return VERDICT if metric == VERDICT.title else Column(metric)


def counted(words: Sequence[str]) -> str:
    """Return the words of several seeds: one word if they agree, else each with its count."""
    counts = Counter(words)
    return words[0] if len(counts) == 1 else ", ".join(f"{word} {n}" for word, n in counts.items())


@dataclass(frozen=True)
class Failed:
    """The checks that a cell failed."""

    seeds: int
    """Seeds of the cell that were audited."""
    checks: Mapping[str, int]
    """By check, in how many of these seeds it failed (for any of several requests)."""

    def told(self, cell: str) -> str:
        """Say which checks failed, and in how many seeds if not in all."""
        names = [
            check if count == self.seeds else f"{check} ({count} of {self.seeds} seeds)"
            for check, count in self.checks.items()
        ]
        return f"Checks that '{cell}' failed: {'; '.join(names)}."


def failed_checks(
    lines: Mapping[tuple[str, int], Mapping[str, Any]], columns: Iterable[Column]
) -> dict[str, Failed]:
    """Return what cells failed, by cell, if verdicts are among the columns.

    lines: by cell and seed. Their text "failed" is not taken apart: names of checks have commas
    """
    if all(column.path != VERDICT.path for column in columns):
        return {}
    failed: dict[str, Counter[str]] = {}
    seeds: Counter[str] = Counter()
    for (cell, _), line in sorted(lines.items()):
        verdicts = (line.get("forget") or {}).get("verdicts") or {}
        seeds[cell] += bool(verdicts)
        found = [check for check, word in verdicts.items() if "FAIL" in str(word)]
        failed.setdefault(cell, Counter()).update(found)
    return {cell: Failed(seeds[cell], dict(checks)) for cell, checks in failed.items() if checks}


ARITHMETIC = 1e-3
"""Below this distance two trainings of one model may differ by the order of their sums."""


def not_as_claimed(lines: Mapping[tuple[str, int], Mapping[str, Any]]) -> tuple[str, ...]:
    """Name cells whose unlearner claims to be exact and leaves another model than retraining.

    On small data an audit cannot tell the two apart. lines: by cell and seed
    """
    worst: dict[str, float] = {}
    for (cell, _), line in lines.items():
        done = line.get("forget") or {}
        if done.get("exact") and (done.get("distance") or 0.0) > ARITHMETIC:
            worst[cell] = max(worst.get(cell, 0.0), done["distance"])
    return tuple(
        f"'{cell}' claims to be exact (exact = True) and is not: distance {far:.2g}, where 0 is "
        f"the retraining and 1 the model from before."
        for cell, far in worst.items()
    )
