"""The receipt as an HTML page for a person. The signed file is `receipt.json`.

First what a person wants to know: three sentences, three steps and a picture. Then how to check it,
then the details, folded, and the digests last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rescind.audits.finding import Finding, counted, legend, question
from rescind.core.claims import AFTER, PEOPLE
from rescind.core.words import count_of
from rescind.errors import DataError
from rescind.privacy.sealing import shown
from rescind.receipts import pictures, words
from rescind.receipts.how_to_check import how_to_check
from rescind.receipts.receipt import Receipt, canonical, digest, opened
from rescind.reporting.html import Badge, Page, word_of

DELETED = {
    "Unshare": "the server's copy of the records was deleted; the device keeps its own",
    "Erase": "the records were deleted from {here}{devices}",
    "EraseLabels": "the labels were deleted from {here}; the nodes stay",
    "EraseEdges": "the edges were deleted from {here}; the nodes stay",
    "Withdraw": "all data of the person was deleted from {here}{devices}",
}
"""What was done to the records. Nobody measured it, and other copies may be left."""
SUMMARY = {
    "PASS": "This is what these checks can detect at these sample sizes, not more.",
    "FAIL": "The request is not fulfilled for the model.",
    "INCONCLUSIVE": "The checks claim nothing about the model.",
    "VOID": "The controls of a check gave wrong results, so its measurement is not valid.",
    "UNAUDITED": "Nothing was measured on the model.",
}
ROLES = {"requester": "devices of those who asked", "others": "devices of others"}
FOR_THE_REQUESTER = "This page has the exact numbers and is for the requester alone."
NOT_TO_SEND = (
    "Do not send this page: it has the exact numbers of {people} together. Send each of them the "
    "signed file, {file}, and their own part of the request, if there are parts."
)
SAME_MODEL = "The model is the same as before, bit for bit."
SIMULATED = (
    "This run was made in one process, without silos. What this page calls devices and clients was "
    "simulated on the operator's machine: no device of a person took part."
)
FOR_STRANGERS = "Numbers are bands. The exact ones are sealed."


def page(
    receipt: Receipt,
    findings: Sequence[Finding] | None = None,
    key: bytes | None = None,
    name: str = "receipt",
    of_many: bool = False,
) -> str:
    """Return the page.

    findings: those of the receipt, with the curves and samples that a receipt does not contain
    key: the requester's, to show exact numbers. Default: the page for strangers
    name: of the receipt's file, without .json
    of_many: for each of several who asked together, who have a part of the request and no key
    """
    issued, receipt = receipt, receipt if key is None else opened(receipt, key)
    measured = receipt.findings if findings is None else tuple(findings)
    if measured != receipt.findings:
        raise DataError(
            "the given findings are not those of the receipt, and a page must not show anything "
            "that was not signed. Give the findings that the receipt was issued with."
        )
    out = Page("Receipt of forgetting")
    _first(out, receipt, key is not None and words.same_model(receipt, key), name)
    out.heading("What this does not cover")
    out.listing(receipt.not_covered)
    how_to_check(out, issued, name, of_many=of_many)
    out.heading("Details")
    if words.of_one_process(receipt):
        out.text(SIMULATED, note=True)
    _asked_and_done(out, receipt)
    _measured(out, receipt, measured)
    with out.folded("What is kept", words.records(len(receipt.kept), "thing")):
        rows = [[kept.name, kept.bytes, kept.says] for kept in receipt.kept]
        out.table(["what", "bytes", "why it may stay"], rows, "What is kept", stacked=True)
    if not words.about_rows(receipt):  # no method did it
        with out.folded("Settings of the method"):
            out.facts({name: str(value) for name, value in receipt.done.method.items()})
    terms = words.explained("".join(out.parts))
    if terms:
        with out.folded("Words on this page", words.records(len(terms), "word")):
            out.facts(terms)
    _digests(out, issued, receipt)
    return out.html()


def _first(out: Page, receipt: Receipt, same: bool, name: str) -> None:
    """Add what a person reads first. same: the model is bit for bit the one before"""
    count = receipt.asked.people
    several = not isinstance(count, str) and count > 1
    if several:  # sent by mistake, it tells each of them about the others
        out.warning(NOT_TO_SEND.format(people=words.people(count), file=f"{name}.json"))
    out.text(words.answered(receipt))
    level, verdict = receipt.done.level, receipt.verdict
    means = words.NO_MODEL if words.about_rows(receipt) else SUMMARY.get(verdict, "")
    unchanged = f" {SAME_MODEL}" if same else ""
    out.summary(
        words.sentences(receipt),
        words.badges(receipt),
        words.tone(receipt),
        f"The operator states the level {level}: {words.level_says(receipt)}.{unchanged} The "
        f"verdict of the checks is {verdict}: {means}",
    )
    out.parts.append(pictures.steps(receipt))
    drawn = pictures.lines(receipt.findings)
    if drawn:
        out.parts.append(drawn)
    if not several:
        out.text(FOR_STRANGERS if isinstance(count, str) else FOR_THE_REQUESTER, note=True)


def _asked_and_done(out: Page, receipt: Receipt) -> None:
    with out.folded("What was asked and done"):
        who, count = words.people(receipt.asked.people), words.amount(receipt)
        out.text(f"Asked by {who} about {count}. {_deleted(receipt)}".strip())
        out.text(
            "The records themselves are not in the receipt. It holds a digest of the request under "
            "the requester's key. The operator has it, too, until they delete it; nobody else can "
            "test which records it is about.",
            note=True,
        )
        out.facts(_facts(receipt))
        if AFTER in receipt.claims:
            out.text(
                "This learner keeps one integer sum over all users. The only correct sum after a "
                "request is the sum over the remaining data. Its digest stands at the end, so "
                "whoever has the run can compare it, bit for bit."
            )
            out.code("rescind verify receipt.json --data RUN")


def _facts(receipt: Receipt) -> dict[str, str]:
    """Return what was done, line by line; of stored rows nothing about training."""
    done, rows = receipt.done, words.about_rows(receipt)
    online = ", ".join(f"{ROLES.get(r, r)}: {shown(n)}" for r, n in done.online.items())
    of_clients = count_of(done.client_rounds, "client round")
    trained = {
        "Rounds": f"{shown(done.rounds)}, with {of_clients} in all",
        "Had to be online": online or "no one",
    }
    method = {"Method": f"{done.method.get('name', 'unnamed')} (its settings are below)"}
    return {
        "When": receipt.time.replace("T", " ").replace("Z", " UTC"),
        "Request": receipt.asked.kind,
        **({} if rows else method),
        "Forgot by": done.unlearning,
        **({} if rows else trained),
        "Seconds": shown(done.seconds),
    }


def _deleted(receipt: Receipt) -> str:
    """Return what the operator states about the records; '' of a request that is not known."""
    if receipt.done.level == "L0":
        return "The operator states: they are hidden and no longer used, not deleted yet."
    devices = "" if words.about_rows(receipt) else " and its devices"
    what = DELETED.get(receipt.asked.kind, "").format(here=words.here(receipt), devices=devices)
    elsewhere = "Copies elsewhere stand under “What this does not cover”."
    return f"The operator states: {what}. {elsewhere}" if what else ""


def _measured(out: Page, receipt: Receipt, findings: Sequence[Finding]) -> None:
    with out.folded("What was measured", _tally(findings)):
        if findings:
            _checks(out, receipt, findings)
        else:
            out.text("No check was run, so nothing is claimed about the model.")
        drawn = pictures.curves(findings)
        if drawn:
            out.charts(drawn)


def _tally(findings: Sequence[Finding]) -> str:
    verdicts = [word_of(finding.verdict) for finding in findings]
    return ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))


def _checks(out: Page, receipt: Receipt, findings: Sequence[Finding]) -> None:
    told = (
        "Each check measures how well the model after forgetting can be distinguished from models "
        "that were trained without what was taken back. A value far above or far below theirs "
        "fails: both are a trace."
    )
    out.text(words.NO_MODEL if words.about_rows(receipt) else told)
    head = ["check", "verdict", "asks"]
    numbers = ["measured", "95 % interval", "retrained", "margin", "counted"]
    exact = any(finding.value is not None for finding in findings)
    rows = [[*_asks(f), *(_numbers(f) if exact else ())] for f in findings]
    columns = [*head, *(numbers if exact else ())]
    out.table(columns, rows, "Checks and their verdicts", stacked=True)
    judged = [f.verdict for f in findings]
    if not words.about_rows(receipt):
        out.listing(list(legend(judged)))
    names = list(dict.fromkeys(name for finding in findings for name in finding.controls))
    if names:
        out.text(
            "Controls: the same measure where the answer is known. Models with nothing deleted, "
            "or with shifted scores only, must fail; one retrained under another seed must pass."
        )
        controlled = [f for f in findings if f.controls]
        values = [[f.check, *(_or_dash(f.controls.get(n)) for n in names)] for f in controlled]
        out.table(["check", *names], values, "Controls", stacked=True)
    limits = [f"{_by_whom(finding)}: {finding.note}" for finding in findings if finding.note]
    if limits:
        out.text("What was said of single checks, and what they cannot show:")
        out.listing(limits)


def _by_whom(finding: Finding) -> str:
    own = " (the operator's own work, not a measurement)" if finding.check == "exactness" else ""
    return f"{finding.check}{own}"


def _asks(finding: Finding) -> list[object]:
    return [finding.check, Badge.of(finding.verdict), question(finding.check) or "–"]


def _numbers(finding: Finding) -> list[object]:
    ends = finding.interval
    return [
        _or_dash(finding.value),
        "–" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}",
        _or_dash(finding.reference),
        _or_dash(finding.margin),
        counted(finding) or "–",
    ]


def _or_dash(value: float | None) -> float | str:
    return "–" if value is None else float(value)


def _digests(out: Page, issued: Receipt, receipt: Receipt) -> None:
    """Add the long numbers that are compared, never read."""
    with out.folded("Digests, claims and versions"):
        out.facts(
            {
                "This receipt": digest(canonical(issued)),
                "The receipt before": issued.previous or "none, this is the first",
                "Public key": issued.public_key,
                "Request, under the requester's key": receipt.asked.digest,
                "Model afterwards": receipt.done.model_after or "not stated",
                "Data": receipt.done.data or "not stated (private data)",
                "Code": ", ".join(f"{name} {text}" for name, text in receipt.code.items() if text),
            }
        )
        if receipt.claims:
            out.text("Claims that can be checked with the data (sealed: also needs the key):")
            out.facts(receipt.claims)
        if PEOPLE in receipt.claims:
            out.text(f"\u201c{PEOPLE}\u201d counts accounts. No count tells who made them.")
