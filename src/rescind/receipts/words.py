"""A receipt in three sentences for a person: what was asked, what was done, what is shown.

Each sentence is written from what the receipt states. A stranger's receipt has bands instead of
numbers, and no controls, so its sentences claim less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rescind.audits.finding import JUDGING, UNCHANGED, VERDICTS, Finding
from rescind.core.claims import CASE, CLAIMED, CONFIRMED, ITEMS, NEXT, OPERATOR, RELEASE
from rescind.privacy.sealing import BOUND, sealed, shown
from rescind.receipts.receipt import LEVELS, TIME_FORMAT, Count, Receipt
from rescind.reporting.html import TONES, Badge

ASKED = {
    "Unshare": "stopped lending {n}",
    "Erase": "asked to erase {n}",
    "EraseLabels": "asked to erase {n} of their graph",
    "EraseEdges": "asked to erase {n} of their graph",
    "Withdraw": "left and asked to delete everything: {n}",
}
NOUNS = {"EraseLabels": "label", "EraseEdges": "edge"}
ROWS = "rows deleted"
"""What is done to rows alone: it changes stored data, and no model."""
NO_REPEAT = "no round to repeat"
"""How a retraining ends of which no round could be run: in a stream, of an earlier block."""
DONE = {
    ROWS: "{they} deleted from the imported data",
    NO_REPEAT: "no round that can be repeated used them, so the model is unchanged, bit for bit",
    "Retrain": "the model was trained again without them",
    "Subtract": "{they} subtracted from the sum that the model is made of",
    "Subtract, and retrain the softmax learner": "{they} subtracted from the sum, and the rest of "
    "the model was trained again without them",
}
"""What was done, by the name of the unlearner. Others are approximate, and named."""
SHORT = {"L0": "hidden", "L1": "not shown", "L2": "approximate", "L3": "exact"}
"""The levels in a word."""
OPEN_ENDS = {
    "INCONCLUSIVE": "The checks could not decide.",
    "VOID": "The audit is void, because a control got the wrong verdict: it shows nothing.",
    "UNAUDITED": "No check was run: nothing was measured.",
}
BY_LEVEL = {
    "L0": "The records are hidden and no longer used; nothing more is claimed.",
    "L1": "It is not shown that the influence is gone from the model.",
    "L2": "What was learnt in rounds that cannot be repeated may be left.",
    "L3": "That it is exact is what the operator states, from how the model was made, not from a "
    "measurement.",
}
"""What a level means where no audit passed."""
STILL = "Devices keep the records, and the model still learns from them there."
"""Of an Unshare: only the lent copy goes. A model that still learns on devices never forgot."""
NEVER = "models that never had what was taken back"
SEARCHED = "The stored files were searched again, and no row of the request was found."
NO_MODEL = f"No model was measured. {SEARCHED}"
"""What UNAUDITED means of stored rows."""
TERMS = {
    "claimed by code": "Code from outside this program says that nothing is left. Nobody vouches.",
    "retrained": "Models that were trained again: what forgetting must reach.",
    "no-op": "A model that forgot nothing. A check that does not notice it shows nothing.",
    "margin": "The largest difference from retrained models that counts as none.",
    "95 % interval": "The values that chance could explain, with 95 % confidence.",
    "client round": "One device trained once.",
    "item table": "The numbers that the model has for each item. Every device gets them.",
    "By lot": "An attack whose settings were drawn for this audit alone, and fixed before it.",
    "digest": "A short number computed from a file or a list. Another content has another digest.",
    "sealed": "Encrypted, or computed under a key: only its holder can read or compare it.",
}
"""Words that stay on a page, and what they mean."""


def explained(text: str) -> dict[str, str]:
    """Return the words that a page uses, each with its meaning. text: HTML"""
    words = re.sub(r"<[^>]+>", " ", text)
    return {word: meaning for word, meaning in TERMS.items() if word in words}


def only_the_loan(receipt: Receipt) -> bool:
    """Return whether a request took the lent copy alone out of the model.

    A service takes the records out of its sum altogether: its receipts name a release.
    """
    return (
        receipt.asked.kind == "Unshare"
        and RELEASE not in receipt.claims
        and learns_on_devices(receipt.done.method)
    )


def learns_on_devices(method: Mapping[str, Any]) -> bool:
    """Return whether a model learns what is not lent. method: its settings"""
    return method.get("source") != "shared"


def same_model(receipt: Receipt, key: bytes) -> bool:
    """Return whether, of a lent copy, the model after is the one before, bit for bit.

    receipt: with exact numbers    key: the requester's, under which the model before is stated
    """
    before, after = receipt.done.model_before, receipt.done.model_after
    return only_the_loan(receipt) and bool(after) and before == sealed(after, key)


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
    asked, who = receipt.asked, people(receipt.asked.people)
    what = ASKED.get(asked.kind, f"asked for {asked.kind} of {{n}}")
    said = f"{who[0].upper()}{who[1:]} {what.replace('{n}', amount(receipt))}."
    return said, _done(receipt), _shown(receipt)


def badges(receipt: Receipt) -> list[Badge]:
    """Return the verdict and the level, as words."""
    level = receipt.done.level
    means = "stored rows, no model" if about_rows(receipt) else SHORT[level]
    means += " for the lent copy" if only_the_loan(receipt) else ""
    means += f", {CLAIMED}" if CLAIMED in receipt.claims else ""
    stated = f"{level}: {means}" + (", as stated" if level in ("L2", "L3") else "")
    # A level is green only beside a measurement: alone it is the operator's word.
    tone = _tone_of_level(level) if receipt.verdict == "PASS" else "open"
    return [Badge.of(receipt.verdict), Badge(stated, tone)]


def level_says(receipt: Receipt) -> str:
    """Return what the level means for what was asked."""
    if about_rows(receipt):
        return "the rows are erased; this receipt is about stored rows, and about no model"
    means, code = LEVELS[receipt.done.level], receipt.claims.get(CLAIMED)
    means += f". {STILL.removesuffix('.')}" if only_the_loan(receipt) else ""
    return f"{means}. That it is removed exactly is {CLAIMED} {code}" if code else means


def verdict_says(receipt: Receipt) -> str:
    """Return what the verdict means for what was asked."""
    unaudited = about_rows(receipt) and receipt.verdict == "UNAUDITED"
    return NO_MODEL if unaudited else VERDICTS.get(receipt.verdict, "")


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
    return "one person" if count == 1 else f"{_number(count)} people"


def records(count: Count, noun: str = "record") -> str:
    """Return a number of records in words."""
    return f"1 {noun}" if count == 1 else f"{_number(count)} {noun}s"


def amount(receipt: Receipt) -> str:
    """Return what a request was about in words; items, too, where an item has several rows."""
    asked, items = receipt.asked, receipt.claims.get(ITEMS, "")
    if only_the_silo_counts(receipt):
        return "all records that their silo had"
    rows = asked.records
    if isinstance(rows, int) and items.isdecimal() and len(items) < 19 and int(items) != rows:
        return f"{records(int(items), 'item')} ({records(rows, 'row')})"
    return records(rows, NOUNS.get(asked.kind, "record"))


def only_the_silo_counts(receipt: Receipt) -> bool:
    """Return whether a user of a silo left: the server's count, mostly 0, would mislead."""
    return receipt.asked.kind == "Withdraw" and CONFIRMED in receipt.claims


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


def _done(receipt: Receipt) -> str:
    done, release, asked = receipt.done, receipt.claims.get(RELEASE), receipt.asked
    name, loan = done.unlearning.partition(" (")[0], only_the_loan(receipt)
    what = DONE.get(name, f"{name} changed the model to take out the influence")
    noun = NOUNS.get(asked.kind, "record")
    they = f"this {noun} was" if asked.records == 1 else f"these {noun}s were"
    if loan and name in DONE and name != NO_REPEAT:
        what = "the model was made as if they had never been lent"
    elif name == "Retrain" and done.level == "L2":
        what = "all rounds that can be repeated were run again without them"
    what = what.replace("{they}", they)
    what += ", as code from outside this program claims" if CLAIMED in receipt.claims else ""
    if loan:
        gone = "is no longer used" if done.level == "L0" else "was deleted"
        what = f"the copy that they had lent {gone}, and {what}"
    if release is not None and release.isdecimal():
        what = f"release {int(release):,} was made without them: {what}"
    at = datetime.strptime(receipt.time, TIME_FORMAT)
    said = f"The operator states: on {at.day} {at:%B} {at.year} {what}."
    return f"{said} {STILL}" if loan else said


def _shown(receipt: Receipt) -> str:
    level, verdict = receipt.done.level, receipt.verdict
    if about_rows(receipt):
        return "A model that learnt from the rows is answered for with a receipt of its own."
    if receipt.claims.get(NEXT, "made") != "made":
        return (
            "What was published before this still comes from them, and stays in use until the next "
            "release."
        )
    if verdict == "PASS":
        more = "" if level in ("L2", "L3") else f" {BY_LEVEL[level]}"
        return _passed(receipt.findings) + more
    if verdict == "FAIL":
        return _failed(receipt.findings, level)
    return f"{OPEN_ENDS.get(verdict, f'The verdict is {verdict}.')} {BY_LEVEL[level]}"


def _passed(findings: tuple[Finding, ...]) -> str:
    passed = [one for one in findings if one.verdict == "PASS"]
    noticing = sum(map(would_have_noticed, passed))
    if not noticing:
        return f"{records(len(passed), 'check')} could not tell it from {NEVER}."
    more = len(passed) - noticing
    besides = f" ({more} more passed, for which that is not known)" if more else ""
    return (
        f"{records(noticing, 'check')} that would have noticed a model that forgot nothing could "
        f"not tell it from {NEVER}, at this sample size{besides}."
    )


def _failed(findings: tuple[Finding, ...], level: str) -> str:
    judged = [one for one in findings if one.verdict in JUDGING and one.verdict != "UNAUDITED"]
    failed = sum(one.verdict == "FAIL" for one in judged)
    said = f"{failed} of {len(judged)} checks could tell it from {NEVER}"
    if level == "L3":
        return f"{said}, which contradicts the level that is stated: one of the two is wrong."
    return f"{said}, so it is not shown that the influence is gone."
