"""Answer a folder of requests, one file each; made to be called again and again by cron.

    requests/
      anna.json            {"withdraw": "7", "received": "2026-11-16"}
      ben.json             {"erase": {"user": "9", "items": ["50", "172"]}, "due": "2026-12-01"}
      answered/anna/       receipt.json, receipt.html, receipt.key, request.json: for the user;
                           the key and the exact page lie here alone
                           receipt-NAME.json, .html, .key, .request.json: of rows of imported data
                           about.json: for the operator
      refused/x.json       why a request could not be answered, and when it is due
      log.jsonl            one line per answer or refusal, without ids of users

A request is answered once, whenever the command is killed: the run itself knows, under a key, which
request replaced it (`succession`). The file of a request is deleted when its answer is complete:
the run has forgotten, and rows of imported data are deleted, too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.core.federation import Federation
from rescind.core.files import locked, make_folder, sync_folder, write_atomically
from rescind.core.records import Event
from rescind.data.blocklist import Blocklist
from rescind.data.erasing import items_of
from rescind.data.importing import imported_names
from rescind.errors import DataError, RescindError
from rescind.experiments.beyond_run import FORGOT, asked_of_run, in_part, not_learnt
from rescind.experiments.earlier_answers import (
    NO_RECEIPT,
    SAME,
    Earlier,
    first_answer,
    stays_away,
    told_before,
)
from rescind.experiments.forget_run import Answer, answer, answered_in
from rescind.experiments.leaving import forgotten_before, let_in_again, note_leaving
from rescind.experiments.left_in_others import OTHERS, Left, noted, settle_others
from rescind.experiments.other_runs import others_with
from rescind.experiments.read_request import Source
from rescind.experiments.request_files import (
    ABOUT,
    ANSWERED,
    LOG,
    REFUSED,
    Asked,
    Waiting,
    has_file,
    note_about,
    read_all,
)
from rescind.experiments.request_log import add_to_log, log_lines
from rescind.experiments.request_states import (
    TAKEN,
    about_answer,
    not_taken,
    read_table,
    refuse,
)
from rescind.forgetting.data_erasure import erase, finish
from rescind.forgetting.forget import FEWEST, Audits
from rescind.forgetting.receipt import parse
from rescind.forgetting.receipt_html import page
from rescind.forgetting.run_chain import answer_to, chain, check_not_outlived, current
from rescind.forgetting.succession import (
    KEY,
    PAGE,
    PROOF,
    RECEIPT,
    moved_request,
)  # fmt: skip
from rescind.storage.events import event_text
from rescind.storage.run_folder import (
    check_finished,
    check_free,
    read_facts,
)  # fmt: skip

REQUEST = "request.json"
"""The exact request, with which the user can check that the receipt is about it."""


@dataclass(frozen=True)
class Pass:
    """What one call did, and what is left."""

    answered: tuple[str, ...]
    refused: tuple[str, ...]
    """Those that cannot be answered, in each call until somebody mends or removes the file."""
    failed: tuple[str, ...]
    """Answered, but the audit was FAIL or VOID."""
    late: dict[str, str]
    """By how much a request was answered after its deadline, by its name."""
    before: dict[str, str]
    """Answered before, by its name: the request of this folder that got the same answer; "" if
    `rescind forget` gave it, which kept no exact request."""
    others: tuple[Left, ...]
    """Answered now or before, but other runs on the same data still have some of it."""
    rows: dict[str, str]
    """What became of the imported rows of an answered request, by its name."""
    no_receipt: frozenset[str]
    """Answered without a new receipt: everything was erased before, and it is noted that they
    left."""
    waiting: tuple[Waiting, ...]
    """Not answered yet, unreadable files, too."""
    run: Path
    """The run that stands now."""


def work_through(folder: Path, run: Path, audits: Audits = "standard", workers: int = 2,
                 most: int | None = None, now: datetime | None = None,
                 tell: Callable[[str], Any] = lambda _: None) -> Pass:  # fmt: skip
    """Answer the open requests of a folder, those that are due first.

    most: requests to answer in this call    tell: gets a line before an audit, which takes minutes
    """
    from rescind.audits.finding import FAILED

    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. Make it, and put requests into it.")
    check_free(current(run))  # not one refusal for each request
    check_finished(current(run))
    check_not_outlived(current(run))
    answered, refused = dict[str, dict[str, Any]](), list[str]()
    with locked(folder):
        _tidy(folder)
        asked, wrong = read_all(folder, now or datetime.now(UTC))
        asked, taken = not_taken(folder, asked)
        refused += [refuse(folder, one, one.why) for one in wrong]
        refused += [refuse(folder, one, TAKEN) for one in taken]
        for one in sorted(asked, key=lambda one: (one.due, one.name))[:most]:
            try:
                if not about_answer(folder, one.name).is_file():
                    _give(folder, run, one, audits, workers, tell)
                answered[one.name] = _complete(folder, run, one, now or datetime.now(UTC))
            except RescindError as error:
                _exact_request(folder, one.name).unlink(missing_ok=True)
                refused.append(refuse(folder, one, str(error)))
        others = tuple(settle_others(folder))
        asked, wrong = read_all(folder, now or datetime.now(UTC))
        left = (*asked, *wrong)
    failed = tuple(name for name, about in answered.items() if about["verdict"] in FAILED)
    rows = {name: about["rows"] for name, about in answered.items() if about.get("rows")}
    before = {name: about.get(SAME, "") for name, about in answered.items() if about.get("before")}
    late = {name: _lateness(about) for name, about in answered.items() if about["late"]}
    without = frozenset(name for name, about in answered.items() if about.get(NO_RECEIPT))
    return Pass(
        tuple(answered), tuple(refused), failed, late, before, others, rows, without, left,
        current(run),
    )  # fmt: skip


def _lateness(about: dict[str, Any]) -> str:
    """Say how late an answer is, by what is known of it."""
    due, answered = (datetime.fromisoformat(about[name]) for name in ("due", "answered"))
    days = (answered.astimezone(UTC).date() - due.astimezone(UTC).date()).days
    if not days:  # the request named an hour
        return f"answered late (due {about['due']})"
    return f"answered {days} day{'' if days == 1 else 's'} late (due {due:%Y-%m-%d})"


def _give(
    folder: Path, run: Path, one: Asked, audits: Audits, workers: int, tell: Callable[[str], Any]
) -> None:
    """Answer a request, or hand over its answer if some run of the chain, or the folder, has it."""

    def keep(fed: Federation, event: Event, records: int) -> None:
        if audits != "none" and records >= FEWEST:
            tell(
                f"auditing: {one.name}; with {FEWEST} records or more, models are trained for "
                f"comparison. Without: --audits none"
            )
        text = event_text(event, fed.labels).encode()
        write_atomically(_exact_request(folder, one.name), text, private=True)

    *before, last = chain(run)
    returned = one.items is None and let_in_again(last, one.user)
    moved = [link for link in before if one.digest == moved_request(link)]
    source: Source = one.source
    if moved and not returned:
        last = moved[0]
    else:  # since then the run was learnt again, which forgets the chain; or they came back
        if earlier := told_before(folder, one, last):
            _hand_over_again(folder, one, last, earlier)
            return
        if stays_away(one, last) and (by_hand := answer_to(one.digest, last)):
            _hand_over(folder, one, answered_in(by_hand))
            return
        of_run, data = asked_of_run(one.source, last)
        if of_run is None:
            _answer_by_rows(folder, one, last, data)
            return
        source = of_run
        if one.items is None and forgotten_before(last, one.user):
            _answer_by_note(folder, one, last)
            return
    done = answer(
        last, one.kind, source, None, audits, workers=workers, on_start=keep, case=_case(one),
        known_as=one.digest,
    )  # fmt: skip
    _hand_over(folder, one, done)


def _answer_by_rows(folder: Path, one: Asked, run: Path, data: str) -> None:
    """Answer by the rows alone, which `_complete` deletes. Who withdraws is not learnt later."""
    if one.items is None:
        Blocklist().with_withdrawn(one.user).add_to_dataset(data)
    about = _known(one, run, "UNAUDITED", "L1") | {"only_rows": True}
    before = forgotten_before(run, one.user)
    about |= {
        "forgotten_before": before,
        "in_run": FORGOT if before else not_learnt(one.source, run),
    }
    with _appearing(folder, one, about):
        pass


def _answer_by_note(folder: Path, one: Asked, run: Path) -> None:
    """Answer a withdrawal of somebody whom the run forgot before: `_complete` notes that they left.

    Which receipt is about it is unknown here: it may name others, too.
    """
    about = _known(one, run, "UNAUDITED", "")
    about |= {"before": True, "forgotten_before": True, NO_RECEIPT: True}
    with _appearing(folder, one, about):
        pass


def _case(one: Asked) -> str:
    """Return the case number: the name of the file. A strange name is no reason to refuse."""
    return one.name if one.name.isprintable() else ""


def _exact_request(folder: Path, name: str) -> Path:
    """Return where the exact request waits for its answer: a kill must not lose it."""
    return folder / ANSWERED / f".{name}.request"


def _hand_over(folder: Path, one: Asked, done: Answer) -> None:
    """Put the receipt where the user gets it."""
    evidence, exact = done.evidence, _exact_request(folder, one.name)
    about = _known(one, done.folder, evidence.receipt.verdict, evidence.exact.done.level)
    about |= {"before": not exact.is_file(), "in_run": in_part(one.source, exact)}
    if about["before"] and (same := first_answer(folder, one.digest, done.folder / RECEIPT)):
        about[SAME] = same  # otherwise rescind forget answered it before the queue did
    with _appearing(folder, one, about) as place:
        for name in (RECEIPT, KEY, PAGE, PROOF):
            if (done.folder / name).is_file():
                shutil.copy2(done.folder / name, place / name)
        if exact.is_file():
            shutil.copy2(exact, place / REQUEST)


def _hand_over_again(folder: Path, one: Asked, run: Path, earlier: Earlier) -> None:
    """Put the receipt of an earlier answer where the user gets it, if it is still there.

    Its key and the exact page lie with the first answer alone.
    """
    about = _known(one, run, earlier.verdict, earlier.level) | {"before": True, SAME: earlier.name}
    if earlier.no_receipt:
        about[NO_RECEIPT] = True
    with _appearing(folder, one, about) as place:
        if earlier.place is not None:
            receipt = (earlier.place / RECEIPT).read_bytes()
            write_atomically(place / RECEIPT, receipt)
            write_atomically(place / PAGE, page(parse(receipt)).encode(), private=True)
            if (earlier.place / PROOF).is_file():
                shutil.copy2(earlier.place / PROOF, place / PROOF)


def _known(one: Asked, run: Path, verdict: str, level: str) -> dict[str, Any]:
    """Return what is known of an answer before the imported rows are deleted."""
    data = (read_facts(run) or {}).get("data", {})
    return {
        "request": one.name,
        "asked": one.digest,
        "written": one.path.stat().st_mtime_ns,
        "received": one.received.isoformat(timespec="seconds"),
        "due": one.due.isoformat(timespec="seconds"),
        "run": str(run),
        "imported": data["name"] if data.get("source") == "imported" else "",
        "verdict": verdict,
        "level": level,
    }


@contextmanager
def _appearing(folder: Path, one: Asked, about: dict[str, Any]) -> Iterator[Path]:
    """Yield a folder to put an answer into; it appears complete, with what is known of it."""
    place = folder / ANSWERED / one.name
    hidden = place.with_name(f".{one.name}.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    make_folder(hidden)
    hidden.chmod(0o700)
    yield hidden
    write_atomically(hidden / ABOUT, json.dumps(about, indent=2).encode())
    os.replace(hidden, place)
    sync_folder(place.parent)


def _complete(folder: Path, run: Path, one: Asked, now: datetime) -> dict[str, Any]:
    """Delete the imported rows, then the file of the request; return what is known of the answer.

    Who withdraws and was forgotten before is noted as one who left: the erasure did not say so.
    Killed at any moment, the next call goes on from here: until then the request is open. Other
    runs are looked for first: without the file nobody knows any more what to look for.
    """
    path = about_answer(folder, one.name)
    about = read_table(path)
    if "answered" not in about:
        of_run = about.pop("in_run", "")
        if about.get("forgotten_before") and one.items is None:
            note_leaving(current(run), one.user)
        if name := about["imported"]:
            receipt = path.with_name(f"receipt-{name}.json")
            about["rows"] = of_run + _delete_rows(receipt, name, one, about.get(SAME, ""))
        if runs := others_with(current(run), {one.user: one.items}):
            about[OTHERS] = noted(folder, one, runs)
        about |= {"answered": now.isoformat(timespec="seconds"), "late": now > one.due}
        write_atomically(path, json.dumps(about, indent=2).encode())
    line = {"event": "answered", **about}
    if not any(line.items() <= logged.items() for logged in log_lines(folder)):
        add_to_log(folder, line)
    _exact_request(folder, one.name).unlink(missing_ok=True)
    note_about(folder, one.path).unlink(missing_ok=True)
    _keep_once(path.parent, Path(about["run"]))
    one.path.unlink()
    return about


def _delete_rows(receipt: Path, name: str, one: Asked, same: str) -> str:
    """Delete what an imported dataset has of a request; say what became of it.

    receipt: where to write the receipt of that; if it is there, a call before was killed
    same: the request that was answered before and asked the same, if there is one
    """
    if name not in imported_names():
        missing = f"rescind data erase {name} --user USER"
        return f"the data '{name}' is not on this machine. Where it is, give {missing}"
    try:
        finish(name)
        held = [item for item in items_of(name, one.user) if one.items is None or item in one.items]
        if held:
            erase(name, [one.user], held, receipt, _case(one))
    except RescindError as error:
        raise DataError(
            f"the run has forgotten, but '{name}' still has the rows: {error} The answer is not "
            f"complete; the next call goes on with it."
        ) from None
    if receipt.is_file():
        return f"deleted from '{name}'; its receipt: {receipt.name}"
    # Whoever deleted them had a receipt written: an answer of this folder that is named otherwise,
    # or rescind data erase. Notes have no ids, so it cannot be found here.
    where = "no new receipt is needed: if they were deleted before, the receipt of then is about it"
    why = f"see the answer to {same}" if same else where
    return f"'{name}' had none of them any more, {why}"


def _keep_once(place: Path, run: Path) -> None:
    """Take out of a run what is for the user alone, if it was handed over: key and exact page."""
    told = place / RECEIPT
    if not ((run / KEY).is_file() and told.is_file()):
        return
    receipt = told.read_bytes()
    if (run / RECEIPT).read_bytes() == receipt:
        write_atomically(run / PAGE, page(parse(receipt)).encode(), private=True)
        (run / KEY).unlink()


def _tidy(folder: Path) -> None:
    """Remove what a kill left: half a folder, half a line.

    A note about a request whose file is gone goes, too: it may name a user, and nobody waits.
    """
    for note in (folder / REFUSED).glob("*.json"):
        if not has_file(folder, note):
            note.unlink()
    log = folder / LOG
    text = log.read_bytes() if log.is_file() else b""
    if text and not text.endswith(b"\n"):
        write_atomically(log, text[: text.rfind(b"\n") + 1])
    for hidden in (folder / ANSWERED).glob(".*.partial"):
        shutil.rmtree(hidden, ignore_errors=True)
    for exact in (folder / ANSWERED).glob(".*.request"):
        name = exact.name[1 : -len(".request")]
        if (folder / ANSWERED / name).is_dir() or not (folder / f"{name}.json").is_file():
            exact.unlink()
    for path in sorted((folder / ANSWERED).glob(f"*/{ABOUT}")):
        _keep_once(path.parent, Path(read_table(path)["run"]))
