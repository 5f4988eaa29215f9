"""Find the earlier answer to a request that asks the same: people write again, often days later.

The run that gave it may be gone: one that is learnt again does not know which requests it answered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rescind.data.blocklist import Blocklist
from rescind.experiments.other_runs import still_has
from rescind.experiments.request_files import ABOUT, ANSWERED, Asked
from rescind.experiments.request_log import log_lines
from rescind.forgetting.succession import RECEIPT
from rescind.storage.run_folder import read_facts

SAME = "same_as"
"""In the notes on a request: the name of the one that was answered before and asked the same."""
NO_RECEIPT = "no_receipt"
"""In the notes on a request: it needed no receipt, because an earlier request erased everything."""


@dataclass(frozen=True)
class Earlier:
    """An answer that was given before."""

    name: str
    """The request that got it first."""
    verdict: str
    level: str
    place: Path | None
    """A folder that still has its receipt: that of the first, or of one that asked the same."""
    no_receipt: bool
    """It never had one: everything was erased before."""


def told_before(folder: Path, one: Asked, run: Path) -> Earlier | None:
    """Return the last answer to the same request, None if there is none that holds.

    run: the one that stands now
    """
    answers = [about for about in _answers_to(folder, one.digest) if "answered" in about]
    if not answers or not stays_away(one, run):
        return None
    last = max(answers, key=lambda about: datetime.fromisoformat(about["answered"]))
    first = _first(last)
    names = (first, *(about["request"] for about in answers if _first(about) == first))
    places = (folder / ANSWERED / name for name in names)
    place = next((place for place in places if (place / RECEIPT).is_file()), None)
    return Earlier(first, last["verdict"], last["level"], place, bool(last.get(NO_RECEIPT)))


def _first(about: dict[str, Any]) -> str:
    """Return the name of the request that got an answer first."""
    return str(about.get(SAME, about["request"]))


def first_answer(folder: Path, asked: str, receipt: Path) -> str:
    """Return the name of the request that got this receipt here, "" if none did.

    asked: the digest of the request. It alone does not tell: who came back may leave again
    receipt: in the run that gave it, by which it is known if the first copy was deleted
    """
    told = receipt.read_bytes()
    for about in _answers_to(folder, asked):
        copy = folder / ANSWERED / about["request"] / RECEIPT
        here = copy.read_bytes() == told if copy.is_file() else about["run"] == str(receipt.parent)
        if here and SAME not in about:
            return str(about["request"])
    return ""


def _answers_to(folder: Path, asked: str) -> list[dict[str, Any]]:
    """Return the notes on answers to a request. Of folders that were deleted the log has them."""
    kept = sorted((folder / ANSWERED).glob(f"*/{ABOUT}"))
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
    return [about for about in (*notes, *log_lines(folder)) if about.get("asked") == asked]


def stays_away(one: Asked, run: Path) -> bool:
    """Return whether a run has nothing that a request names, and would not learn it again.

    Who was let in again (`rescind data admit`) is off the list, also before she has new rows: the
    earlier answer is not about what comes then.
    """
    data = (read_facts(run) or {}).get("data", {})
    imported = data.get("source") == "imported"
    withheld = Blocklist.of_dataset(data["name"]) if imported else Blocklist.read(run)
    if one.items is None:
        listed = withheld.has_withdrawn(one.user)
    else:
        listed = all(withheld.has_erased(one.user, item) for item in one.items)
    return listed and not still_has(run, {one.user: one.items})
