"""What the demonstration finds out about one person's request."""

from __future__ import annotations

from dataclasses import dataclass

from rescind.core.federation import Federation
from rescind.core.labels import Recommendation
from rescind.core.records import Records
from rescind.forgetting.forget import Evidence
from rescind.forgetting.verify import Check


@dataclass(frozen=True)
class Person:
    """One of those who will regret it, whose recommendations are shown."""

    user: str
    """Their original id."""
    held: int
    lent: int
    among: int
    """How many lend a part and will regret it."""

    @property
    def who(self) -> str:
        """Who it is, and why this one, in one line."""
        return (
            f"holds {self.held} items and lends {self.lent}: in the middle of the {self.among} who "
            f"lend a part and will regret it"
        )


@dataclass(frozen=True)
class Subtraction:
    """The additive learner's answer to the same request."""

    alone: float
    """CPU seconds for the loans of one person."""
    together: float
    """CPU seconds for everybody's, with the receipt."""
    before: str
    """Digest of the sum before, after, and of what remains added up from nothing."""
    after: str
    anew: str
    proof: Check

    @property
    def says(self) -> str:
        """The proof in words."""
        return "exact, bit for bit" if self.proof.holds else f"FAILED: {self.proof.says}"


@dataclass(frozen=True)
class Erasure:
    """People erase what they lent, and the model is trained again without it."""

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
        """How the two models score the erased records of people who still have others.

        Who erased all they had gets what is popular, so there is nothing to compare.
        """
        shown = self.lent[self.after.world.available[self.lent.client]]
        return {
            "before": self.before.query(shown).tolist(),
            "after": self.after.query(shown).tolist(),
        }

    def means(self) -> dict[str, float]:
        """The mean of these scores."""
        return {when: sum(v) / max(len(v), 1) for when, v in self.scores().items()}
