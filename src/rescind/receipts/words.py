"""A receipt in three sentences for a person: what was asked, what was done, what is shown.

Each sentence is written from what the receipt states. A stranger's receipt has bands instead of
numbers, and no controls, so its sentences claim less.
"""

from __future__ import annotations

from datetime import datetime

from rescind.audits.finding import JUDGING, UNCHANGED, VERDICTS, Finding
from rescind.core.claims import CASE, CLAIMED, CONFIRMED, ITEMS, NEXT, OPERATOR, RELEASE
from rescind.privacy.sealing import BOUND, shown
from rescind.receipts import loan_words
from rescind.receipts.loan_words import NO_REPEAT, of_the_loan, only_the_loan
from rescind.receipts.receipt import LEVELS, TIME_FORMAT, Asked, Count, Receipt
from rescind.reporting.html import TONES, Badge

ASKED = {
    "Unshare": "stopped lending {n}",
    "Erase": "asked to erase {n}",
    "EraseLabels": "asked to erase {n} of their graph",
    "EraseEdges": "asked to erase {n} of their graph",
    "Withdraw": "left and asked to delete everything: {n}",
}
NOUNS = {"EraseLabels": "label", "EraseEdges": "edge"}
ANEW, ALL_THAT_CAN = "the model was trained again", "all rounds that can be repeated were run again"
ROWS = "rows deleted"
"""What deleting rows alone does: it changes stored data, and no model."""
DONE = {
    ROWS: "{they} deleted from the imported data",
    NO_REPEAT: "{they} deleted from the data; no round that can be repeated used them, so none was "
    "run, and the model is unchanged, bit for bit",
    "Retrain": f"{ANEW} without them",
    "Subtract": "{they} subtracted from the sum that the model is made of",
    "Subtract, and retrain the softmax learner": "{they} subtracted from the sum, and the rest of "
    "the model was trained again without them",
}
"""What was done, by the name of the unlearner. Others are approximate, and named."""
SHORT = {"L0": "hidden", "L1": "not shown", "L2": "approximate", "L3": "exact"}
"""The levels in a word."""
OPEN_ENDS = {
    "INCONCLUSIVE": "It was measured, and the checks could not decide whether it can be told from "
    "one that never saw them.",
    "VOID": "The audit is void, because a control got the wrong verdict: it shows nothing.",
    "UNAUDITED": "No check was run: nothing was measured.",
}
BY_LEVEL = {
    "L0": "The records are hidden and no longer used; nothing more is claimed.",
    "L1": "It is not shown that their influence is gone from the model.",
    "L2": "What the model learnt from them in rounds that cannot be repeated may be left.",
    "L3": "That nothing of them is left is what the operator states, from how the model was made, "
    "not from a measurement.",
}
"""What a level means where no audit passed."""
SEARCHED = "The stored files were searched again, and no row of the request was found."
NO_MODEL = f"No model was measured. {SEARCHED}"
"""What UNAUDITED means of stored rows."""


def answered(receipt: Receipt) -> str:
    """Return which request this answers, and when; by whom, if they said it."""
    case, who = receipt.claims.get(CASE, BOUND), receipt.claims.get(OPERATOR)
    what = "The request" if case.startswith(BOUND) else f"Request {case}"
    return f"{what} was answered on {receipt.time[:10]}{f' by {who}' if who else ''}."


def here(receipt: Receipt) -> str:
    """Return where the records were that a receipt is about."""
    if about_rows(receipt):
        return "the imported data"
    return "this service" if RELEASE in receipt.claims else "this run"


def about_rows(receipt: Receipt) -> bool:
    """Return whether a receipt is about stored rows alone, not about a model."""
    return receipt.done.unlearning == ROWS


def of_one_process(receipt: Receipt) -> bool:
    """Return whether a receipt is of a run without silos: its devices are simulated.

    Neither stored rows nor a service count who was online; over silos, claims name the silos.
    """
    return bool(receipt.done.online) and CONFIRMED not in receipt.claims


def sentences(receipt: Receipt) -> tuple[str, str, str]:
    """Return what was asked, what was done, and what is shown, for the person who asked."""
    return _asked(receipt), _done(receipt), _shown(receipt)


def badges(receipt: Receipt) -> list[Badge]:
    """Return the verdict and the level, as words."""
    level = receipt.done.level
    stated = f"{level}: {_short(receipt)}" + (", as stated" if level in ("L2", "L3") else "")
    # A level is green only beside a measurement: alone it is the operator's word.
    tone = _tone_of_level(level) if receipt.verdict == "PASS" else "open"
    return [Badge.of(receipt.verdict), Badge(stated, tone)]


def _short(receipt: Receipt) -> str:
    """Return the level in a few words."""
    if about_rows(receipt):
        return "stored rows, no model"
    said = SHORT[receipt.done.level]
    said = f"{said} for the lent copy" if only_the_loan(receipt) else said
    return f"{said}, {CLAIMED}" if CLAIMED in receipt.claims else said


def level_says(receipt: Receipt) -> str:
    """Return what the level means for what was asked."""
    level = receipt.done.level
    if about_rows(receipt):
        return "the rows are erased; this receipt is about stored rows, and about no model"
    said = loan_words.LEVELS[level] if only_the_loan(receipt) else LEVELS[level]
    code = receipt.claims.get(CLAIMED)
    return f"{said}. That it is removed exactly is {CLAIMED} {code}" if code else said


def verdict_says(receipt: Receipt) -> str:
    """Return what the verdict means for what was asked."""
    return said_of(receipt, VERDICTS.get(receipt.verdict, ""))


def said_of(receipt: Receipt, text: str) -> str:
    """Return a text about erased records and models as it is true of what was asked."""
    if about_rows(receipt):
        return text.replace(VERDICTS["UNAUDITED"], NO_MODEL)
    return of_the_loan(text) if only_the_loan(receipt) else text


def tone(receipt: Receipt) -> str:
    """Return how the summary is tinted: good only where the verdict and the level both are."""
    both = (TONES.get(receipt.verdict, "open"), _tone_of_level(receipt.done.level))
    return next(one for one in ("bad", "open", "good") if one in both)


def would_have_noticed(finding: Finding) -> bool:
    """Return whether the same measure on a model that forgot nothing lies outside the margin."""
    kept, never, margin = finding.controls.get(UNCHANGED), finding.reference, finding.margin
    if kept is None or never is None or margin is None:
        return False
    return abs(kept - never) > margin


def people(count: Count) -> str:
    """Return a number of people in words."""
    if count == 1:
        return "one person"
    return f"{_number(count)} people"


def records(count: Count, noun: str = "record") -> str:
    """Return a number of records in words."""
    return f"1 {noun}" if count == 1 else f"{_number(count)} {noun}s"


def items_and_rows(items: int, rows: int, noun: str = "record") -> str:
    """Return two counts of one request in words: "2 items (3 rows)", "3 records" if they agree."""
    if items == rows:
        return records(rows, noun)
    return f"{records(items, 'item')} ({records(rows, 'row')})"


def amount(receipt: Receipt) -> str:
    """Return what a request was about in words; items, too, where an item has several rows."""
    asked, items = receipt.asked, receipt.claims.get(ITEMS, "")
    if only_the_silo_counts(receipt):
        return "all records that their silo had"
    if isinstance(asked.records, int) and items.isdecimal() and len(items) < 19:
        return items_and_rows(int(items), asked.records)
    return records(asked.records, NOUNS.get(asked.kind, "record"))


def only_the_silo_counts(receipt: Receipt) -> bool:
    """Return whether a user of a silo left: the server's count, mostly 0, would mislead."""
    return receipt.asked.kind == "Withdraw" and CONFIRMED in receipt.claims


def day(time: str) -> str:
    """Return the date of a receipt's time, as 15 November 2026."""
    at = datetime.strptime(time, TIME_FORMAT)
    return f"{at.day} {at:%B} {at.year}"


def _tone_of_level(level: str) -> str:
    return "good" if level in ("L2", "L3") else "open"


def _number(count: Count) -> str:
    """Return a count for people to read; a band as "10 to 99", the lowest as "up to 9"."""
    if not isinstance(count, str):
        return shown(count)
    low, _, high = count.partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        return count
    return f"up to {high}" if low == "0" else f"{int(low):,} to {int(high):,}"


def _asked(receipt: Receipt) -> str:
    asked = receipt.asked
    what = ASKED.get(asked.kind, f"asked for {asked.kind} of {{n}}")
    count, who = amount(receipt), people(asked.people)
    return f"{who[0].upper()}{who[1:]} {what.replace('{n}', count)}."


def _done(receipt: Receipt) -> str:
    done, release = receipt.done, receipt.claims.get(RELEASE)
    name = done.unlearning.partition(" (")[0]
    if only_the_loan(receipt):
        return _loan_done(receipt, name)
    what = DONE.get(name, f"{name} changed the model to take out their influence")
    what = what.replace("{they}", _they(receipt.asked)) + _as_claimed(receipt)
    if name == "Retrain" and done.level == "L2":
        what = f"{ALL_THAT_CAN} without them"
    if release is not None and release.isdecimal():
        what = f"release {int(release):,} was made without them: {what}"
    return f"The operator states: on {day(receipt.time)} {what}."


def _loan_done(receipt: Receipt, name: str) -> str:
    what = f"{name} changed the model to take out the influence of that copy"
    what = loan_words.DONE.get(name, what)
    level = receipt.done.level
    if name == "Retrain" and level == "L2":
        what = f"{ALL_THAT_CAN} as if they had never been lent"
    copy = "is no longer used" if level == "L0" else "was deleted"
    what += _as_claimed(receipt)
    said = f"on {day(receipt.time)} the copy that they had lent {copy}, and {what}"
    return f"The operator states: {said}. {loan_words.STILL}"


def _as_claimed(receipt: Receipt) -> str:
    return ", as code from outside this program claims" if CLAIMED in receipt.claims else ""


def _they(asked: Asked) -> str:
    noun = NOUNS.get(asked.kind, "record")
    return f"this {noun} was" if asked.records == 1 else f"these {noun}s were"


def _shown(receipt: Receipt) -> str:
    level, verdict = receipt.done.level, receipt.verdict
    if about_rows(receipt):
        return (
            "It is about stored rows: a model that learnt from them is answered for by itself, "
            "with a receipt of its own."
        )
    if receipt.claims.get(NEXT, "made") != "made":
        return (
            "What was published before this still comes from them, and stays in use until the next "
            "release."
        )
    by_level = (loan_words.BY_LEVEL if only_the_loan(receipt) else BY_LEVEL)[level]
    if verdict == "PASS":
        more = "" if level in ("L2", "L3") else f" {by_level}"
        return said_of(receipt, _passed(receipt.findings)) + more
    if verdict == "FAIL":
        return said_of(receipt, _failed(receipt.findings, level))
    said = OPEN_ENDS.get(verdict, f"The verdict is {verdict}.")
    if verdict == "INCONCLUSIVE" and (why := _why_open(receipt.findings)):
        said = f"{said.removesuffix('.')}: {why}."
    return f"{said_of(receipt, said)} {by_level}"


def _why_open(findings: tuple[Finding, ...]) -> str:
    """Return why the controls leave it open: the last sentence about them. '' for strangers"""
    notes = [one.note for one in findings if one.check == "Q0 controls"]
    return notes[0].rpartition(". ")[2] if notes and ". " in notes[0] else ""


def _passed(findings: tuple[Finding, ...]) -> str:
    passed = [one for one in findings if one.verdict == "PASS"]
    noticing = sum(map(would_have_noticed, passed))
    if noticing:
        more = len(passed) - noticing
        besides = f" ({more} more passed, for which that is not known)" if more else ""
        return (
            f"{_checks(noticing)} that would have noticed a model that forgot nothing could not "
            f"tell it from models that never saw them, at this sample size{besides}."
        )
    return f"{_checks(len(passed))} could not tell it from models that never saw them."


def _checks(count: int) -> str:
    return "1 check" if count == 1 else f"{count} checks"


def _failed(findings: tuple[Finding, ...], level: str) -> str:
    judged = [one for one in findings if one.verdict in JUDGING and one.verdict != "UNAUDITED"]
    failed = sum(one.verdict == "FAIL" for one in judged)
    said = f"{failed} of {len(judged)} checks could tell it from models that never saw them"
    if level == "L3":
        return f"{said}, which contradicts the level that is stated: one of the two is wrong."
    return f"{said}, so it is not shown that their influence is gone."
