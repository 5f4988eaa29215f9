"""Pictures of a receipt: three steps, where the model lies between two others, and curves.

Steps and lines are drawn in the colours of the page, so they serve light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rescind.audits.finding import UNCHANGED, Finding, question
from rescind.receipts.receipt import Receipt
from rescind.receipts.words import (
    NEVER,
    NO_MODEL,
    STILL,
    about_rows,
    here,
    only_the_loan,
    would_have_noticed,
)
from rescind.reporting import charts
from rescind.reporting.html import TONES, Badge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER = (charts.RED, charts.BLUE, charts.GREEN, charts.ORANGE, charts.GREY)
"""Colours: before forgetting, after it, retrained, then others."""
FORGOT, KEPT = 22.0, 88.0
"""Places on a line, in per cent of its width: models to be like, and one that forgot nothing."""
SIGNS = {"good": "M4 9.5 8 13.5 15 5.5", "open": "M5 9.5h9", "bad": "M5 5l9 9M14 5l-9 9"}
INFLUENCE = {
    "L0": ("open", "Not claimed: the records are hidden and no longer used."),
    "L1": ("open", "Not shown."),
    "L2": ("good", "The operator states: approximately."),
    "L3": ("good", "The operator states: exactly. The model never had what was taken back."),
}
ABOUT_ROWS = "Not part of this receipt: a run that learnt from the rows has one of its own."
ELSEWHERE = "Copies elsewhere stand below."
CHECKED = {
    "PASS": "These checks found no trace, at this sample size.",
    "FAIL": "The checks found a trace.",
    "VOID": "The checks gave nothing: a control went wrong.",
    "INCONCLUSIVE": "The checks could not decide.",
    "UNAUDITED": "No check was run.",
}


def steps(receipt: Receipt) -> str:
    """Return the three steps of a forgetting, each with a sign and a word on how far it came."""
    gone, verdict = receipt.done.level != "L0", receipt.verdict
    deleted = f"The operator states: done. {ELSEWHERE}" if gone else "Not claimed: they are hidden."
    if gone and receipt.asked.kind == "Unshare":
        deleted = f"The operator states: done; the device keeps its own copy. {ELSEWHERE}"
    tone, influence = INFLUENCE[receipt.done.level]
    tone = tone if verdict == "PASS" else "open"  # a tick needs a measurement
    checked, copy, of = CHECKED.get(verdict, f"The verdict: {verdict}."), "Records", "Influence"
    if about_rows(receipt):
        influence, checked = ABOUT_ROWS, NO_MODEL
    if only_the_loan(receipt):
        influence += f" {STILL}"
        copy, of = "Lent copy", "Influence of the lent copy"
    rows = (
        ("good" if gone else "open", f"{copy} deleted from {here(receipt)}", deleted),
        (tone, f"{of} taken out of the model", influence),
        (TONES.get(verdict, "open"), "Measured", checked),
    )
    return f'<ol class="steps">{"".join(_step(*row) for row in rows)}</ol>'


def _step(tone: str, name: str, says: str) -> str:
    sign = (
        f'<svg viewBox="0 0 19 19" width="28" height="28" class="sign {tone}" aria-hidden="true">'
        f'<circle cx="9.5" cy="9.5" r="8.5"/><path d="{SIGNS[tone]}"/></svg>'
    )
    return f"<li>{sign}<span><strong>{escape(name)}</strong><br>{escape(says)}</span></li>"


def lines(findings: Sequence[Finding]) -> str:
    """Draw a line per check that would have noticed: where the model is between two others.

    Returns '' if no check has the numbers: strangers do not see them.
    """
    told = [f for f in findings if f.value is not None and would_have_noticed(f)]
    told = [f for f in told if f.verdict in TONES]
    if not told:
        return ""
    rows = "".join(_line(finding) for finding in told)
    return (
        f'<figure class="picture"><ul class="lines">{rows}</ul>'
        f"<figcaption>{_key()} Each line is one check. The shaded part counts as equal to "
        f"{NEVER}.</figcaption></figure>"
    )


def _line(finding: Finding) -> str:
    value, never, margin = finding.value, finding.reference, finding.margin
    if value is None or never is None or margin is None:
        return ""
    apart, scale = finding.controls[UNCHANGED] - never, KEPT - FORGOT

    def place(measured: float) -> float:
        return min(max(FORGOT + scale * (measured - never) / apart, 2.0), 98.0)

    half = scale * margin / abs(apart)
    left, right = max(FORGOT - half, 0.0), min(FORGOT + half, 100.0)
    low, high = sorted(place(end) for end in finding.interval or (value, value))
    tone = TONES[finding.verdict]
    asks = question(finding.check) or finding.check
    drawn = (
        f'<svg width="100%" height="26" aria-hidden="true">'
        f'<rect class="band" x="{left:.1f}%" y="3" width="{right - left:.1f}%" height="20" rx="4"/>'
        f'<line class="axis" x1="0" x2="100%" y1="13" y2="13"/>'
        f'<svg x="{KEPT}%" y="13" overflow="visible">{_diamond()}</svg>'
        f'<line class="mark-{tone}" x1="{low:.1f}%" x2="{high:.1f}%" y1="13" y2="13" '
        f'stroke-width="3"/>'
        f'<circle class="mark-{tone}" cx="{place(value):.1f}%" cy="13" r="6"/></svg>'
    )
    said = f"{finding.check}: {asks}"
    return f"<li><span>{escape(said)}</span>{drawn}{Badge.of(finding.verdict).html}</li>"


def _diamond() -> str:
    return '<path class="mark-none" d="M0-7 7 0 0 7-7 0z"/>'


def _key() -> str:
    dot = (
        '<svg width="14" height="14" aria-hidden="true">'
        '<circle class="mark-good" cx="7" cy="7" r="6"/></svg>'
    )
    diamond = (
        '<svg width="14" height="14" aria-hidden="true">'
        f'<svg x="7" y="7" overflow="visible">{_diamond()}</svg></svg>'
    )
    return f"{dot} this model, with its 95 % interval. {diamond} a model that forgot nothing."


def curves(findings: Sequence[Finding]) -> dict[str, str]:
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
    return made


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
