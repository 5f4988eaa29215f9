"""The report of the demonstration: a page and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rescind.audits.battery import NO_OP
from rescind.audits.finding import Finding, legend, question
from rescind.core.federation import Federation
from rescind.core.params import digest
from rescind.methods.baselines.popularity import Popularity
from rescind.reporting import charts
from rescind.reporting.html import Page

if TYPE_CHECKING:
    from rescind.demo.erasure import Erasure, Subtraction
    from rescind.experiments.learning_run import Result


def draw(result: Result, floor: dict[str, float], after: dict[str, float], erasure: Erasure) -> Any:
    """Draw the picture: quality over rounds, quality after erasure, scores of erased records."""
    made, (one, two, three) = charts.figure(3)
    history, before = result.facts["per_round"], erasure.before
    popular = Federation.start(before.now.vault.holdings, Popularity(), before.clock.seed).run(1)
    rounds, values = ([h[name] for h in history] for name in ("round", "NDCG@20"))
    valid_floor = popular.evaluate("valid")["NDCG@20"]
    charts.curve(one, rounds, values, "NDCG@20 (validation)", valid_floor)
    one.set_title("Devices learn together", fontsize=12)
    tested = {"popularity": floor, "federated": result.metrics, "after\nerasure": after}
    heights = {name: metrics["NDCG@20"] for name, metrics in tested.items()}
    charts.bars(two, heights, "NDCG@20 (test)", (charts.GREY, charts.BLUE, charts.GREEN))
    two.set_title("Quality before and after an erasure", fontsize=12)
    colours = (charts.ORANGE, charts.GREEN)
    charts.histograms(three, erasure.scores(), "score of the erased records", colours)
    three.set_title("Scores of what was taken back", fontsize=12)
    return made


def page(
    result: Result,
    floor: dict[str, float],
    after: dict[str, float],
    erasure: Erasure,
    lending: list[tuple[str, int, int]],
    made: Any,
) -> str:
    """Return the report as HTML."""
    page = Page("rescind: lend, learn, take back")
    means, evidence = erasure.means(), erasure.evidence
    data = result.facts["data"]
    page.text(
        f"{data['users']:,} people and {data['items']:,} items of {data['name']} "
        f"({data['source']}). Each device trained on its own records; the server saw sums. "
        f"Then {erasure.people} people erased what they had lent."
    )
    about = (
        "Validation quality over rounds and of item popularity; test quality before and after an "
        "erasure; scores of the erased records."
    )
    page.chart(charts.svg(made), about)
    page.heading("Who lends what")
    page.table(["group", "people", "records lent"], lending)
    page.heading("Quality on the test set, full ranking, training items masked")
    names = ["HR@20", "NDCG@20", "Recall@20", "coverage@20", "popularity@20"]
    tested = {"item popularity": floor, "federated": result.metrics, "after erasure": after}
    page.table(["model", *names], [[m, *(v[n] for n in names)] for m, v in tested.items()])
    page.heading(f"{erasure.people} people erase {len(erasure.lent):,} records")
    page.text(
        f"The mean score of the erased records went from {means['before']:.3f} to "
        f"{means['after']:.3f}. The same rounds were run again without them, with the same random "
        f"numbers, so this is exact: nothing was learnt from them. The signed receipt next to this "
        f"page (receipt.html, receipt.json) states it."
    )
    _subtracted(page, erasure.subtraction, erasure.person.user)
    if evidence.report is not None:
        page.heading(f"The audit: {evidence.report.verdict}")
        page.text(
            "Each check compares the new model with models that never had the records, and with "
            "doing nothing. A check that cannot detect doing nothing is powerless and does not "
            "count."
        )
        found = [f for f in evidence.report.findings if f.value is not None]
        page.table(
            ["check", "asks", "verdict", "after", "retrained", "doing nothing"],
            [[f.check, question(f.check), f.verdict, f.value, *_references(f)] for f in found],
        )
        for line in legend(f.verdict for f in evidence.report.findings):
            page.text(line, note=True)
    page.heading(f"What user {erasure.person.user}, one of them, is shown")
    page.text(f"User {erasure.person.user} {erasure.person.description}.")
    both = zip(erasure.shown_before, erasure.shown_after, strict=False)
    titles = [[a.title or a.item, b.title or b.item] for a, b in both]
    page.table(["recommended before", "recommended after"], titles)
    page.text(
        "These numbers show one run with one seed. Quality alone cannot show forgetting. Here it "
        "is shown by training without the records, and by the audit.",
        note=True,
    )
    page.heading("How to reproduce it")
    page.code(f"rescind demo --seed {result.facts['seed']}")
    page.facts(
        {
            "data digest": data["digest"],
            "model (saved: the one that forgot)": digest(erasure.after.now.state.public),
            **result.facts["versions"],
        }
    )
    return page.html()


def _references(finding: Finding) -> list[object]:
    found = (finding.reference, finding.controls.get(NO_OP))
    return ["" if number is None else number for number in found]


def _subtracted(page: Page, found: Subtraction, user: str) -> None:
    """Add the additive learner's answer: three digests of its sum, and what they prove."""
    page.heading(f"The additive learner on the same request: {found.says}")
    page.text(
        f"Gram keeps one sum over all people, in whole numbers, so the loans were subtracted: "
        f"those of user {user} in {1000 * found.alone:.0f} ms, all of them in "
        f"{1000 * found.together:.0f} ms of CPU. The remaining data was then summed again. The two "
        f"sums are the same to the last bit, so this model cannot be told from one that never had "
        f"the records."
        if found.proof.holds
        else f"The loans were subtracted, and the proof failed: {found.proof.says}."
    )
    page.facts(
        {
            "sum before": found.before,
            "sum after, by subtraction": found.after,
            "sum of the remaining data, computed again": found.recomputed,
        }
    )
    page.text(
        "In a receipt the sum before is sealed with the requester's key, and the sum after with "
        "the run's: a person who knows all but one record could test guesses against them. "
        "This data is public.",
        note=True,
    )
    page.text("To repeat the proof, in the folder of this page:")
    page.code("rescind verify additive/receipt.json --data additive")
