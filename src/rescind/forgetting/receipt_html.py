"""The receipt for people: one HTML file that says what was asked, done, measured and not covered.

The signed file is `receipt.json`; this page only tells it, and adds pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from rescind.audits.finding import Finding, legend, question
from rescind.core.claims import AFTER
from rescind.errors import DataError
from rescind.forgetting.receipt import LEVELS, Receipt, canonical, digest
from rescind.reporting import charts
from rescind.reporting.html import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ASKED = {
    "Unshare": "took back what they had lent: the server's copy goes, their device keeps its own",
    "Erase": "asked to erase records everywhere, from the server and from their device",
    "Withdraw": "left, with everything they had",
}
SUMMARY = {
    "PASS": "By every check that judged, the model is not told apart from models that never had "
    "the records. That is what these checks can see at these sample sizes, and no more.",
    "FAIL": "At least one check tells the model apart from models that never had the records: "
    "the request is not fulfilled for the model.",
    "INCONCLUSIVE": "The checks could not tell. Nothing is claimed about the model.",
    "VOID": "A check's own controls did not behave, so what it measured means nothing.",
}
# Dark enough to be read on white; the word itself stands beside, so no colour is needed.
COLOURS = {"PASS": "#00694c", "FAIL": "#a33c00"}
NARROW = (
    "<style>td:not(.number) { overflow-wrap: anywhere; } td.number { white-space: nowrap; } "
    "td:first-child { min-width: 6.5rem; } "
    "table { display: block; max-width: 100%; overflow-x: auto; }</style>"
)
"""On a phone digests break, and a wide table scrolls rather than pushing the page aside."""
ORDER = (charts.RED, charts.BLUE, charts.GREEN, charts.ORANGE, charts.GREY)
"""Before forgetting, after it, retrained, then whatever comes."""


def page(
    receipt: Receipt,
    findings: Sequence[Finding] | None = None,
    figures: Mapping[str, str] | None = None,
) -> str:
    """The whole page.

    findings: those of the receipt, with the curves and samples that a receipt does not carry
    figures: further pictures as SVG, by what each one says
    """
    shown = receipt.findings if findings is None else tuple(findings)
    if shown != receipt.findings:
        raise DataError(
            "the findings given are not those of the receipt, and a page must not say anything "
            "that was not signed. Give the ones it was issued with."
        )
    out = Page("Receipt of forgetting", [NARROW])
    _headline(out, receipt)
    _asked_and_done(out, receipt)
    _measured(out, shown)
    for says, svg in _pictures(shown, figures or {}).items():
        out.chart(svg, says)
    out.heading("What is kept")
    out.table(
        ["what", "bytes", "why it may stay"], [[k.name, k.bytes, k.says] for k in receipt.kept]
    )
    out.heading("What this does not cover")
    _list(out, receipt.not_covered)
    _how_to_verify(out, receipt)
    out.heading("Settings of the method")
    out.facts({name: str(value) for name, value in receipt.done.method.items()})
    return out.html()


def _headline(out: Page, receipt: Receipt) -> None:
    colour = COLOURS.get(receipt.verdict, "#555")
    level = f"{receipt.done.level}: {LEVELS[receipt.done.level]}"
    out.parts.append(
        f'<p style="border-left:.4rem solid {colour};padding:.4rem 1rem;margin:1.5rem 0">'
        f'<strong style="color:{colour}">{escape(receipt.verdict)}</strong> · '
        f"<strong>{escape(level)}</strong><br>{escape(SUMMARY.get(receipt.verdict, ''))}</p>"
    )


def _asked_and_done(out: Page, receipt: Receipt) -> None:
    asked, done = receipt.asked, receipt.done
    many = asked.people != 1
    who = f"{asked.people:,} people" if many else "One person"
    # "One person took back", "took back what they had lent": the words fit both.
    what = ASKED.get(asked.kind, f"asked for: {asked.kind}")
    records = "1 record" if asked.records == 1 else f"{asked.records:,} records"
    out.heading("What was asked")
    out.text(f"{who} {what}. This is about {records}.")
    out.text(
        "The records themselves are not in the receipt. It holds a digest of the request under a "
        "key that only the requester has: nobody else can try whether a given record was meant.",
        note=True,
    )
    out.heading("What was done")
    online = ", ".join(f"{role}: {count:,}" for role, count in done.online.items())
    out.facts(
        {
            "When": receipt.time.replace("T", " ").replace("Z", " UTC"),
            "Method": f"{done.method.get('name', 'unnamed')} (its settings are at the end)",
            "Forgot by": done.unlearning,
            "Rounds": f"{done.rounds:,}, with {done.client_rounds:,} client rounds in all",
            "Had to be online": online or "nobody",
            "Seconds": f"{done.seconds:,.2f}",
            "Model afterwards": done.model_after,
            "Data": done.data or "not stated (it is people's own)",
            "Code": ", ".join(f"{name} {text}" for name, text in receipt.code.items() if text),
        }
    )
    if AFTER in receipt.claims:
        out.heading("The sum, before and after")
        out.text(
            "This learner keeps one sum over everybody, in whole numbers, and the records were "
            "subtracted from it. There is one right sum afterwards: that over what remains. Its "
            "digest is stated below, so whoever holds the remaining data can add it up again and "
            "compare, bit for bit. The digest of the sum before is sealed under the requester's "
            "key: who knows all but one record could try guesses against it. Parts that devices "
            "still owe, or have lost, are counted as outstanding."
        )
        out.facts(receipt.claims)
        out.code("rescind verify receipt.json --data RUN")
    elif receipt.claims:
        out.text("Claims that somebody with the data can check (sealed: with the key as well):")
        out.facts(receipt.claims)


def _measured(out: Page, findings: Sequence[Finding]) -> None:
    out.heading("What was measured")
    if not findings:
        out.text("Nothing. No check was run, so nothing is claimed about the model.")
        return
    out.text(
        "Each check asks how well the model after forgetting can be told from models that were "
        "trained without the records. Far from them on either side is a failure: below, too, the "
        "records left a mark."
    )
    head = ["check", "asks", "verdict", "measured", "95 % interval", "retrained", "margin"]
    out.table([*head, "records"], [_row(finding) for finding in findings])
    _list(out, legend(finding.verdict for finding in findings))
    names = list(dict.fromkeys(name for finding in findings for name in finding.controls))
    if names:
        out.text(
            "The same measure where the answer is known. Nothing deleted, or scores merely "
            "shifted, must be caught; a true retraining under another seed must pass."
        )
        controlled = [f for f in findings if f.controls]
        rows = [[f.check, *(_or_dash(f.controls.get(n)) for n in names)] for f in controlled]
        out.table(["check", *names], rows)
    limits = [f"{finding.check}: {finding.note}" for finding in findings if finding.note]
    if limits:
        out.text("What these checks cannot show:")
        _list(out, limits)


def _row(finding: Finding) -> list[object]:
    ends = finding.interval
    return [
        finding.check,
        question(finding.check) or "–",
        finding.verdict,
        _or_dash(finding.value),
        "–" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}",
        _or_dash(finding.reference),
        _or_dash(finding.margin),
        int(finding.n),
    ]


def _or_dash(value: float | None) -> float | str:
    return "–" if value is None else float(value)


def _list(out: Page, sentences: Sequence[str]) -> None:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    out.parts.append(f"<ul>{items}</ul>")


def _how_to_verify(out: Page, receipt: Receipt) -> None:
    out.heading("How to check this")
    out.text(
        "This page can be changed by anybody; the signed receipt is receipt.json. Get the "
        "issuer's public key by another way than this page (it should be the one below), then:"
    )
    out.code(
        f"rescind verify receipt.json \\\n  --key {receipt.public_key}\n"
        "# is it about my request?\n"
        "rescind verify receipt.json --event request.json --event-key receipt.key \\\n"
        f"  --key {receipt.public_key}"
    )
    out.facts(
        {
            "This receipt": digest(canonical(receipt)),
            "The receipt before": receipt.previous or "none, it is the first",
            "Public key": receipt.public_key,
        }
    )
    out.text(
        "A valid signature says who states this and that it is unchanged. It does not make the "
        "statement true: that is what the measurements and their controls are for.",
        note=True,
    )


def _pictures(findings: Sequence[Finding], figures: Mapping[str, str]) -> dict[str, str]:
    """SVG by what it says: a row of panels for each finding that brought curves or samples."""
    made: dict[str, str] = {}
    for finding in findings:
        panels = [draw for draw, has in ((_scores, finding.samples), (_roc, finding.curves)) if has]
        if not panels:
            continue
        canvas, axes = charts.figure(len(panels), width=4.6)
        for draw, ax in zip(panels, axes, strict=True):
            draw(ax, finding)
        said = {_scores: "scores of the records by model", _roc: "how well an attacker finds them"}
        made[f"{finding.check}: {' and '.join(said[draw] for draw in panels)}."] = charts.svg(
            canvas
        )
    return made | dict(figures)


def _scores(ax: Axes, finding: Finding) -> None:
    """Where the records stand by each model's scores."""
    given = {name: values for name, values in finding.samples.items() if len(values)}
    if given:
        charts.histograms(ax, given, "score of the records", _colours(len(given)))


def _roc(ax: Axes, finding: Finding) -> None:
    """True against false alarms of the attack, with the band of each curve where it has one."""
    for (name, curve), colour in zip(
        finding.curves.items(), _colours(len(finding.curves)), strict=True
    ):
        ax.plot(curve["fpr"], curve["tpr"], color=colour, linewidth=2, label=name)
        if "low" in curve and "high" in curve:
            ax.fill_between(
                curve["fpr"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
            )
    ax.plot([0, 1], [0, 1], color=charts.GREY, linestyle="--", linewidth=1.2, label="guessing")
    ax.set_xlabel("false alarms", fontsize=11)
    ax.set_ylabel("records found", fontsize=11)
    ax.set_aspect("equal")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.legend(fontsize=9, frameon=False, loc="lower right")


def _colours(count: int) -> list[str]:
    return [ORDER[place % len(ORDER)] for place in range(count)]
