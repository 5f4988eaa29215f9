"""Results of the demonstration about one person's request."""

from __future__ import annotations

from dataclasses import dataclass

from rescind.core.federation import Federation
from rescind.core.labels import Recommendation
from rescind.core.records import Records
from rescind.forgetting.forget import Evidence
from rescind.receipts.verify import Check


@dataclass(frozen=True)
class Person:
    """The person whose recommendations are shown, one of those who erase data."""

    user: str
    """Original id."""
    held: int
    """All their records, also those that are held out to measure the model."""
    learnt: int
    """Those that are not held out: lent, or learnt on their device alone."""
    lent: int
    among: int
    """Number of people who lend a part and erase it."""

    @property
    def description(self) -> str:
        """Return how this person was chosen, in one line."""
        return (
            f"holds {self.held} items: {self.held - self.learnt} are kept for tests, and of the "
            f"other {self.learnt} they lend {self.lent} ({self.learnt} is the median of the "
            f"{self.among} people who lend a part and erase it)"
        )


@dataclass(frozen=True)
class Subtraction:
    """Answer of the additive learner to the same request."""

    alone: float
    """CPU seconds to subtract one person's loans."""
    together: float
    """CPU seconds to subtract all of them, receipt included."""
    before: str
    """Digests of the sum before, after, and of the remaining data summed again."""
    after: str
    recomputed: str
    proof: Check

    @property
    def says(self) -> str:
        """Return the proof in words."""
        return "exact, bit for bit" if self.proof.holds else f"FAILED: {self.proof.says}"


@dataclass(frozen=True)
class Erasure:
    """An erasure of lent records, and the models before and after it."""

    person: Person
    people: int
    subtraction: Subtraction
    lent: Records
    evidence: Evidence
    before: Federation
    after: Federation
    shown_before: list[Recommendation]
    shown_after: list[Recommendation]

    def scores(self) -> dict[str, list[float]]:
        """Return both models' scores of the erased records, for people who still have others.

        People who erased all their data get popular items, so they have nothing to compare.
        """
        shown = self.lent[self.after.world.available[self.lent.client]]
        return {
            "before": self.before.query(shown).tolist(),
            "after": self.after.query(shown).tolist(),
        }

    def means(self) -> dict[str, float]:
        """Return the mean of these scores, before and after."""
        return {when: sum(v) / max(len(v), 1) for when, v in self.scores().items()}
