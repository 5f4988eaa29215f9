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
    history = result.facts["per_round"]
    valid_floor = (
        Federation.start(erasure.before.now.vault.holdings, Popularity(), erasure.before.clock.seed)
        .run(1)
        .evaluate("valid")["NDCG@20"]
    )
    charts.curve(
        one,
        [h["round"] for h in history],
        [h["NDCG@20"] for h in history],
        "NDCG@20 (validation)",
        valid_floor,
    )
    one.set_title("Devices learn together", fontsize=12)
    charts.bars(
        two,
        {
            "popularity": floor["NDCG@20"],
            "federated": result.metrics["NDCG@20"],
            "after\nerasure": after["NDCG@20"],
        },
        "NDCG@20 (test)",
        (charts.GREY, charts.BLUE, charts.GREEN),
    )
    two.set_title("Quality before and after an erasure", fontsize=12)
    charts.histograms(
        three, erasure.scores(), "score of the erased records", (charts.ORANGE, charts.GREEN)
    )
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
    page.chart(
        charts.svg(made),
        "Validation quality over rounds and of item popularity; test "
        "quality before and after an erasure; scores of the erased records.",
    )
    page.heading("Who lends what")
    page.table(["group", "people", "records lent"], lending)
    page.heading("Quality on the test set, full ranking, training items masked")
    names = ["HR@20", "NDCG@20", "Recall@20", "coverage@20", "popularity@20"]
    rows: list[list[object]] = [
        ["item popularity", *[floor[n] for n in names]],
        ["federated", *[result.metrics[n] for n in names]],
        ["after erasure", *[after[n] for n in names]],
    ]
    page.table(["model", *names], rows)
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
        page.table(
            ["check", "asks", "verdict", "after", "retrained", "doing nothing"],
            [
                [f.check, question(f.check), f.verdict, f.value, *_references(f)]
                for f in evidence.report.findings
                if f.value is not None
            ],
        )
        for line in legend(f.verdict for f in evidence.report.findings):
            page.text(line, note=True)
    page.heading(f"What user {erasure.person.user}, one of them, is shown")
    page.text(f"User {erasure.person.user} {erasure.person.description}.")
    both = zip(erasure.shown_before, erasure.shown_after, strict=False)
    page.table(
        ["recommended before", "recommended after"],
        [[a.title or a.item, b.title or b.item] for a, b in both],
    )
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
    """Return the values of the retrained models (mean) and of the no-op; '' if missing."""
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
        "In a receipt the sum before is sealed with the requester's key, because a person who "
        "knows all but one record could test guesses against it. This data is public.",
        note=True,
    )
    page.text("To repeat the proof, in the folder of this page:")
    page.code("rescind verify additive/receipt.json --data additive")
