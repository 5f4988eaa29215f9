"""The receipt as an HTML page with pictures. The signed file is `receipt.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from rescind.audits.finding import Finding, legend, question
from rescind.core.claims import AFTER
from rescind.errors import DataError
from rescind.forgetting.receipt import LEVELS, Receipt, canonical, digest, opened
from rescind.forgetting.sealing import BOUND, shown
from rescind.reporting import charts
from rescind.reporting.html import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ASKED = {
    "Unshare": "took back shared records: the server's copy is deleted, the device keeps its own",
    "Erase": "asked to erase records from the server and from their device",
    "EraseLabels": "asked to erase labels of nodes; the nodes stay",
    "EraseEdges": "asked to erase edges of their graph; the nodes stay",
    "Withdraw": "left, and all their data was deleted",
}
SUMMARY = {
    "PASS": "No check that gave a verdict distinguishes the model from models that never had the "
    "records. This is what these checks can detect at these sample sizes, not more.",
    "FAIL": "At least one check distinguishes the model from models that never had the records: "
    "the request is not fulfilled for the model.",
    "INCONCLUSIVE": "The checks could not decide. Nothing is claimed about the model.",
    "VOID": "The controls of a check gave wrong results, so its measurement is not valid.",
}
# Dark enough on white. The verdict is also written as a word.
COLOURS = {"PASS": "#00694c", "FAIL": "#a33c00"}
NARROW = (
    "<style>td:not(.number) { overflow-wrap: anywhere; } td.number { white-space: nowrap; } "
    "td:first-child { min-width: 6.5rem; } "
    "table { display: block; max-width: 100%; overflow-x: auto; }</style>"
)
"""For phones: long digests wrap, and wide tables scroll."""
FOR_THE_REQUESTER = (
    "This page has the exact numbers and is for the requester. Strangers who have the same data "
    "could find out from them whose records these were; receipt.json shows them bands only."
)
FOR_STRANGERS = "Numbers are bands. The exact ones are sealed: receipt.key opens them."
ORDER = (charts.RED, charts.BLUE, charts.GREEN, charts.ORANGE, charts.GREY)
"""Colours: before forgetting, after it, retrained, then others."""


def page(
    receipt: Receipt,
    findings: Sequence[Finding] | None = None,
    figures: Mapping[str, str] | None = None,
    key: bytes | None = None,
) -> str:
    """Return the page.

    findings: those of the receipt, with the curves and samples that a receipt does not contain
    figures: further pictures as SVG, by caption
    key: the requester's, to show exact numbers. Default: the page for strangers
    """
    issued, receipt = receipt, receipt if key is None else opened(receipt, key)
    measured = receipt.findings if findings is None else tuple(findings)
    if measured != receipt.findings:
        raise DataError(
            "the given findings are not those of the receipt, and a page must not show anything "
            "that was not signed. Give the findings that the receipt was issued with."
        )
    out = Page("Receipt of forgetting", [NARROW])
    _headline(out, receipt)
    _asked_and_done(out, receipt)
    _measured(out, measured)
    for caption, svg in _pictures(measured, figures or {}).items():
        out.chart(svg, caption)
    out.heading("What is kept")
    out.table(
        ["what", "bytes", "why it may stay"], [[k.name, k.bytes, k.says] for k in receipt.kept]
    )
    out.heading("What this does not cover")
    _list(out, receipt.not_covered)
    _how_to_verify(out, issued)
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
    who = "One person" if asked.people == 1 else f"{shown(asked.people)} people"
    what = ASKED.get(asked.kind, f"asked for: {asked.kind}")
    records = "1 record" if asked.records == 1 else f"{shown(asked.records)} records"
    if receipt.format > 1:
        closed = done.model_after.startswith(BOUND)
        out.text(FOR_STRANGERS if closed else FOR_THE_REQUESTER, note=True)
    out.heading("What was requested")
    out.text(f"{who} {what}. The request concerns {records}.")
    out.text(
        "The records themselves are not in the receipt. It holds a digest of the request under a "
        "key that only the requester has, so others cannot test which records it is about.",
        note=True,
    )
    out.heading("What was done")
    online = ", ".join(f"{role}: {shown(count)}" for role, count in done.online.items())
    rounds, client_rounds = shown(done.rounds), shown(done.client_rounds)
    out.facts(
        {
            "When": receipt.time.replace("T", " ").replace("Z", " UTC"),
            "Method": f"{done.method.get('name', 'unnamed')} (its settings are at the end)",
            "Forgot by": done.unlearning,
            "Rounds": f"{rounds}, with {client_rounds} client rounds in all",
            "Had to be online": online or "no one",
            "Seconds": shown(done.seconds),
            "Model afterwards": done.model_after,
            "Data": done.data or "not stated (private data)",
            "Code": ", ".join(f"{name} {text}" for name, text in receipt.code.items() if text),
        }
    )
    if AFTER in receipt.claims:
        out.heading("The sum, before and after")
        out.text(
            "This learner keeps one integer sum over all users, and the records were subtracted "
            "from it. The only correct sum afterwards is the sum over the remaining data. Its "
            "digest is stated below, so whoever has the run can compare it, bit for bit, with the "
            "sum of the remaining data. The digest of the sum before is sealed under the "
            "requester's key: otherwise an attacker who knows all but one record could test "
            "guesses. For the same reason strangers see the sum after under the run's key. Parts "
            "that devices have not sent yet, or have lost, are counted as outstanding."
        )
        out.facts(receipt.claims)
        out.code("rescind verify receipt.json --data RUN")
    elif receipt.claims:
        out.text("Claims that can be checked with the data (sealed: also needs the key):")
        out.facts(receipt.claims)


def _measured(out: Page, findings: Sequence[Finding]) -> None:
    out.heading("What was measured")
    if not findings:
        out.text("No check was run, so nothing is claimed about the model.")
        return
    out.text(
        "Each check measures how well the model after forgetting can be distinguished from models "
        "that were trained without the records. A value far above or far below theirs fails: in "
        "both cases the records left a trace."
    )
    head = ["check", "asks", "verdict", "measured", "95 % interval", "retrained", "margin"]
    out.table([*head, "records"], [_row(finding) for finding in findings])
    _list(out, legend(finding.verdict for finding in findings))
    names = list(dict.fromkeys(name for finding in findings for name in finding.controls))
    if names:
        out.text(
            "Controls: the same measure where the answer is known. Models with nothing deleted, "
            "or with shifted scores only, must fail; one retrained under another seed must pass."
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
        int(finding.n) or "–",
    ]


def _or_dash(value: float | None) -> float | str:
    return "–" if value is None else float(value)


def _list(out: Page, sentences: Sequence[str]) -> None:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    out.parts.append(f"<ul>{items}</ul>")


def _how_to_verify(out: Page, receipt: Receipt) -> None:
    out.heading("How to check this")
    out.text(
        "This page is not signed; the signed receipt is receipt.json. Get the issuer's public key "
        "from another source than this page (it should be the key below), then run:"
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
            "The receipt before": receipt.previous or "none, this is the first",
            "Public key": receipt.public_key,
        }
    )
    out.text(
        "A valid signature shows who states this and that it is unchanged. It does not make the "
        "statement true: that is what the measurements and their controls are for.",
        note=True,
    )


def _pictures(findings: Sequence[Finding], figures: Mapping[str, str]) -> dict[str, str]:
    """Return SVG by caption: a row of panels for each finding with curves or samples."""
    made: dict[str, str] = {}
    for finding in findings:
        panels = [draw for draw, has in ((_scores, finding.samples), (_roc, finding.curves)) if has]
        if not panels:
            continue
        canvas, axes = charts.figure(len(panels), width=4.6)
        for draw, ax in zip(panels, axes, strict=True):
            draw(ax, finding)
        titles = {
            _scores: "scores of the records by model",
            _roc: "how well an attacker finds them",
        }
        caption = f"{finding.check}: {' and '.join(titles[draw] for draw in panels)}."
        made[caption] = charts.svg(canvas)
    return made | dict(figures)


def _scores(ax: Axes, finding: Finding) -> None:
    given = {name: values for name, values in finding.samples.items() if len(values)}
    if given:
        charts.histograms(ax, given, "score of the records", _colours(len(given)))


def _roc(ax: Axes, finding: Finding) -> None:
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
