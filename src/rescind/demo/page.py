"""The report of the demonstration: what was found about one request, a page and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rescind.audits.battery import NO_OP
from rescind.audits.finding import Finding, legend, question
from rescind.core.federation import Federation
from rescind.core.labels import Recommendation
from rescind.core.params import digest
from rescind.core.records import Records
from rescind.forgetting.forget import Evidence
from rescind.methods.baselines.popularity import Popularity
from rescind.receipts import words
from rescind.receipts.pictures import steps
from rescind.receipts.verify import Check
from rescind.reporting import charts
from rescind.reporting.html import Badge, Page

if TYPE_CHECKING:
    from rescind.experiments.learning_run import Result

Panel = Callable[[Any], None]


def panels(
    result: Result, floor: dict[str, float], after: dict[str, float], erasure: Erasure
) -> dict[str, Panel]:
    """Return what the picture shows, by title: how to draw each panel."""
    history, before = result.facts["per_round"], erasure.before
    popular = Federation.start(before.now.vault.holdings, Popularity(), before.clock.seed).run(1)
    rounds, values = ([h[name] for h in history] for name in ("round", "NDCG@20"))
    valid_floor = popular.evaluate("valid")["NDCG@20"]
    tested = {"popularity": floor, "federated": result.metrics, "after\nerasure": after}
    heights = {name: metrics["NDCG@20"] for name, metrics in tested.items()}
    scores, colours = erasure.scores(), (charts.ORANGE, charts.GREEN)
    return {
        "Devices learn together": lambda ax: charts.curve(
            ax, rounds, values, "NDCG@20 (validation)", valid_floor
        ),
        "Quality before and after an erasure": lambda ax: charts.bars(
            ax, heights, "NDCG@20 (test)", (charts.GREY, charts.BLUE, charts.GREEN)
        ),
        "Scores of what was erased": lambda ax: charts.histograms(
            ax, scores, "score of the erased records", colours
        ),
    }


def draw(drawn: Mapping[str, Panel]) -> Any:
    """Draw the panels beside each other, for a picture file."""
    made, axes = charts.figure(len(drawn))
    for ax, (title, panel) in zip(axes, drawn.items(), strict=True):
        panel(ax)
        ax.set_title(title, fontsize=12)
    return made


def page(
    result: Result,
    floor: dict[str, float],
    after: dict[str, float],
    erasure: Erasure,
    lending: list[tuple[str, int, int]],
    drawn: Mapping[str, Panel],
) -> str:
    """Return the report as HTML: what happened, pictures, then details, folded."""
    out = Page("rescind: lend, learn, take back")
    exact = erasure.evidence.exact
    data = result.facts["data"]
    out.summary(
        words.sentences(exact),
        words.badges(exact),
        words.tone(exact),
        f"{data['users']:,} people and {data['items']:,} items of {data['name']} "
        f"({data['source']}). People lent {sum(lent for *_, lent in lending):,} records; devices "
        f"trained; the server saw what was lent, and sums of the rest. The signed receipt lies "
        f"next to this page.",
    )
    out.link("Read the receipt, and how to check it", "receipt.html")
    out.parts.append(steps(exact))
    out.heading("What this does not cover")
    out.listing(exact.not_covered)
    out.heading("The run in pictures")
    out.charts({title: _alone(panel) for title, panel in drawn.items()})
    out.text(
        "These numbers show one run with one seed. Quality and scores cannot show forgetting: the "
        "operator states how the model was made, and the audit measures what is left.",
        note=True,
    )
    _shown_to(out, erasure)
    out.heading("Details")
    with out.folded("Who lends what", f"{sum(people for _, people, _ in lending):,} people"):
        out.table(["group", "people", "records lent"], lending, "Who lends what")
    with out.folded("Quality", "on the test set, full ranking, training items masked"):
        names = ["HR@20", "NDCG@20", "Recall@20", "coverage@20", "popularity@20"]
        tested = {"item popularity": floor, "federated": result.metrics, "after erasure": after}
        rows = [[m, *(v[n] for n in names)] for m, v in tested.items()]
        out.table(["model", *names], rows, "Quality of the models")
    _audited(out, erasure)
    out.text(f"The additive learner on the same request: {erasure.subtraction.says}.")
    out.code("rescind verify additive/receipt.json --data additive")
    with out.folded("How to reproduce it"):
        out.code(f"rescind demo --seed {result.facts['seed']}")
        out.facts(
            {
                "data digest": data["digest"],
                "model (saved: the one that forgot)": digest(erasure.after.now.state.public),
                **result.facts["versions"],
            }
        )
    return out.html()


def _alone(panel: Panel) -> str:
    """Draw one panel by itself: three beside each other cannot be read on a phone."""
    made, (ax,) = charts.figure(1)
    panel(ax)
    return charts.svg(made)


def _shown_to(out: Page, erasure: Erasure) -> None:
    """Add what one of the people is recommended before and after."""
    user = erasure.person.user
    out.heading(f"What user {user}, one of them, is shown")
    out.text(f"User {user} {erasure.person.description}.")
    both = zip(erasure.shown_before, erasure.shown_after, strict=False)
    titles = [[a.title or a.item, b.title or b.item] for a, b in both]
    out.table(["recommended before", "recommended after"], titles, "Recommendations")


def _audited(out: Page, erasure: Erasure) -> None:
    """Add the erasure, and what its audit found."""
    means, report = erasure.means(), erasure.evidence.report
    verdict = "" if report is None else report.verdict
    with out.folded(f"{erasure.people} people erase {len(erasure.lent):,} records", verdict):
        out.text(
            f"The mean score of the erased records went from {means['before']:.3f} to "
            f"{means['after']:.3f}. The same rounds were run again without them, with the same "
            f"random numbers: from that the operator states that it is exact."
        )
        if report is None:
            return
        out.text(
            "The audit: each check compares the new model with models that never had the records, "
            "and with doing nothing. A check that cannot detect doing nothing is powerless and "
            "does not count."
        )
        out.table(
            ["check", "verdict", "asks", "after", "retrained", "doing nothing"],
            [
                [f.check, Badge.of(f.verdict), question(f.check), f.value, *_references(f)]
                for f in report.findings
                if f.value is not None
            ],
            "Checks of the audit",
        )
        out.listing(legend(f.verdict for f in report.findings))


def _references(finding: Finding) -> list[object]:
    found = (finding.reference, finding.controls.get(NO_OP))
    return ["–" if number is None else number for number in found]


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
