"""Answer a folder of requests, one file each; made to be called again and again by cron.

    requests/
      anna.json            {"withdraw": "7", "received": "2026-11-16"}
      ben.json             {"erase": {"user": "9", "items": ["50", "172"]}, "due": "2026-12-01"}
      answered/anna/       receipt.json, receipt.html, receipt.key, request.json: for the user;
                           the key and the exact page lie here alone. about.json: for the operator
      refused/x.json       why a request could not be answered
      log.jsonl            one line per answer or refusal, without ids of users

A request is answered once, whenever the command is killed: the run itself knows, under a key, which
request replaced it (`succession`). The file of a request is deleted when its answer is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from calendar import monthrange
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rescind.core.federation import Federation
from rescind.core.files import locked, make_folder, sync_folder, write_atomically
from rescind.core.records import Event
from rescind.errors import DataError, RescindError
from rescind.experiments.forget_run import Answer, answer, request_digest
from rescind.experiments.read_request import Kind, NamedRecords, Source
from rescind.forgetting.forget import Audits
from rescind.forgetting.receipt import parse
from rescind.forgetting.receipt_html import page
from rescind.forgetting.succession import KEY, PAGE, PROOF, RECEIPT, moved_request, settle
from rescind.privacy.keys import erasure_key
from rescind.storage.events import event_text
from rescind.storage.run_folder import MOVED, check_finished

ANSWERED, REFUSED, LOG, ABOUT = "answered", "refused", "log.jsonl", "about.json"
REQUEST = "request.json"
"""The exact request, with which the user can check that the receipt is about it."""
_TAKEN = "another request of this name was answered. Give the file another name."
_KEYS = ("withdraw", "erase", "received", "due")
_EXAMPLE = '{"withdraw": "7"} or {"erase": {"user": "7", "items": ["50"]}}'
Times = tuple[datetime, datetime]
"""When a request came, and when it is due."""


@dataclass(frozen=True)
class Waiting:
    """A file in the queue, readable or not: somebody waits for its answer."""

    path: Path
    received: datetime
    due: datetime

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Unreadable(Waiting):
    """A file that holds no request that can be read. Its clock runs all the same."""

    why: str


@dataclass(frozen=True)
class Asked(Waiting):
    """A request in the queue."""

    kind: Kind
    source: Source

    @property
    def digest(self) -> str:
        """Return a digest under a secret, by which runs know the request."""
        return request_digest(self.kind, self.source)


@dataclass(frozen=True)
class Pass:
    """What one call did, and what is left."""

    answered: tuple[str, ...]
    refused: tuple[str, ...]
    failed: tuple[str, ...]
    """Answered, but the audit was FAIL or VOID."""
    waiting: tuple[Waiting, ...]
    """Not answered yet, unreadable files, too."""
    run: Path
    """The run that stands now."""


def work_through(folder: Path, run: Path, audits: Audits = "standard", workers: int = 2,
                 most: int | None = None, now: datetime | None = None) -> Pass:  # fmt: skip
    """Answer the open requests of a folder, those that are due first.

    most: requests to answer in this call
    """
    from rescind.audits.finding import FAILED

    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. Make it, and put requests into it.")
    check_finished(current(run))
    answered, refused, failed = list[str](), list[str](), list[str]()
    with locked(folder):
        _tidy(folder)
        asked, wrong = _read_all(folder)
        asked, taken = _not_answered(folder, asked)
        for path, why in [(x.path, x.why) for x in wrong] + [(x.path, _TAKEN) for x in taken]:
            refused += _refuse(folder, path, why)
        for one in sorted(asked, key=lambda one: (one.due, one.name))[:most]:
            try:
                done = _answer(folder, run, one, audits, workers)
            except RescindError as error:
                _exact_request(folder, one.name).unlink(missing_ok=True)
                refused += _refuse(folder, one.path, str(error))
                continue
            verdict = _hand_over(folder, one, done, now or datetime.now(UTC))
            answered.append(one.name)
            failed += [one.name] if verdict in FAILED else []
        asked, wrong = _read_all(folder)
        left = (*asked, *wrong)
    return Pass(tuple(answered), tuple(refused), tuple(failed), left, current(run))


def _not_answered(folder: Path, asked: list[Asked]) -> tuple[list[Asked], list[Asked]]:
    """Delete files whose answer is complete; return what is left, and files with a used name."""
    left, taken = list[Asked](), list[Asked]()
    for one in asked:
        about = folder / ANSWERED / one.name / ABOUT
        if not about.is_file():
            left.append(one)
        elif json.loads(about.read_text(encoding="utf-8"))["asked"] == one.digest:
            one.path.unlink()  # it was killed between the answer and this
        else:
            taken.append(one)
    return left, taken


def current(run: Path) -> Path:
    """Return the run that stands now: the last one that replaced this run."""
    for link in links(run):
        run = link
    return run


def links(run: Path) -> Iterator[Path]:
    """Yield a run and all that replaced it; an interrupted replacement is finished first."""
    while True:
        yield run
        new = settle(run) if run.is_dir() else None
        if new is None or not new.is_dir() or not (run / MOVED).is_file():
            return
        run = new


def _answer(folder: Path, run: Path, one: Asked, audits: Audits, workers: int) -> Answer:
    """Answer a request, or return its answer if some run of the chain gave it."""

    def keep(fed: Federation, event: Event, _: int) -> None:
        text = event_text(event, fed.labels).encode()
        write_atomically(_exact_request(folder, one.name), text, private=True)

    for link in links(run):
        last = link
        if one.digest == moved_request(link):
            break
    case = one.name if one.name.isprintable() else ""  # a strange name is no reason to refuse
    return answer(
        last, one.kind, one.source, None, audits, workers=workers, on_start=keep, case=case
    )


def _exact_request(folder: Path, name: str) -> Path:
    """Return where the exact request waits for its answer: a kill must not lose it."""
    return folder / ANSWERED / f".{name}.request"


def _hand_over(folder: Path, one: Asked, done: Answer, now: datetime) -> str:
    """Put the receipt where the user gets it; the folder appears complete, then the file goes."""
    receipt = done.evidence.receipt
    about = {
        "request": one.name,
        "asked": one.digest,
        "received": one.received.isoformat(),
        "due": one.due.isoformat(),
        "answered": now.isoformat(timespec="seconds"),
        "late": now > one.due,
        "run": str(done.folder),
        "verdict": receipt.verdict,
        "level": done.evidence.exact.done.level,
    }
    place = folder / ANSWERED / one.name
    hidden = place.with_name(f".{one.name}.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    make_folder(hidden)
    hidden.chmod(0o700)
    for name in (RECEIPT, KEY, PAGE, PROOF):
        if (done.folder / name).is_file():
            shutil.copy2(done.folder / name, hidden / name)
    exact = _exact_request(folder, one.name)
    if exact.is_file():  # not if rescind forget answered it before the queue did
        shutil.copy2(exact, hidden / REQUEST)
    write_atomically(hidden / ABOUT, json.dumps(about, indent=2).encode())
    os.replace(hidden, place)
    sync_folder(place.parent)
    _log(folder, {"event": "answered", **about})
    exact.unlink(missing_ok=True)
    one.path.unlink()
    (folder / REFUSED / one.path.name).unlink(missing_ok=True)
    _keep_once(place, done.folder)
    return receipt.verdict


def _keep_once(place: Path, run: Path) -> None:
    """Take out of a run what is for the user alone, if it was handed over: key and exact page."""
    told = place / RECEIPT
    if not ((run / KEY).is_file() and told.is_file()):
        return
    receipt = told.read_bytes()
    if (run / RECEIPT).read_bytes() == receipt:
        write_atomically(run / PAGE, page(parse(receipt)).encode(), private=True)
        (run / KEY).unlink()


def _refuse(folder: Path, path: Path, why: str) -> list[str]:
    """Note why a request cannot be answered; return its name if this is new."""
    note = folder / REFUSED / path.name
    file = blake2b(path.read_bytes(), key=erasure_key(), digest_size=32).hexdigest()
    told = {"request": path.stem, "why": why, "file": file}
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")).get("file") == file:
        return []
    write_atomically(note, json.dumps(told, indent=2).encode(), private=True)
    _log(folder, {"event": "refused", "request": path.stem})  # `why` may name a user
    return [path.stem]


def _log(folder: Path, line: dict[str, Any]) -> None:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    with open(folder / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": at, **line}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _tidy(folder: Path) -> None:
    """Finish what a kill left: half a folder, half a line, an answer without a line in the log.

    A note about a request whose file is gone goes, too: it may name a user, and nobody waits.
    """
    for note in (folder / REFUSED).glob("*.json"):
        if not (folder / note.name).exists():
            note.unlink()
    log = folder / LOG
    text = log.read_bytes() if log.is_file() else b""
    if text and not text.endswith(b"\n"):
        write_atomically(log, text[: text.rfind(b"\n") + 1])
    logged = {one.get("request") for one in log_lines(folder) if one.get("event") == "answered"}
    for hidden in (folder / ANSWERED).glob(".*.partial"):
        shutil.rmtree(hidden, ignore_errors=True)
    for exact in (folder / ANSWERED).glob(".*.request"):
        name = exact.name[1 : -len(".request")]
        if (folder / ANSWERED / name).is_dir() or not (folder / f"{name}.json").is_file():
            exact.unlink()
    for about in sorted((folder / ANSWERED).glob(f"*/{ABOUT}")):
        facts = json.loads(about.read_text(encoding="utf-8"))
        if about.parent.name not in logged:
            _log(folder, {"event": "answered", **facts})
        _keep_once(about.parent, Path(facts["run"]))


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the log of a folder."""
    log = folder / LOG
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def _read_all(folder: Path) -> tuple[list[Asked], list[Unreadable]]:
    asked, wrong = [], []
    for path in sorted(folder.glob("*.json")):
        table: Any = None
        try:
            table = _json(path)
            asked.append(_read(path, table))
        except DataError as error:
            wrong.append(Unreadable(path, *_times_of(path, table), str(error)))
    return asked, wrong


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}). Write {_EXAMPLE}.") from None


def _read(path: Path, table: Any) -> Asked:
    """Read a request; raise `DataError` with what it must hold."""
    kinds = [k for k in ("withdraw", "erase") if isinstance(table, dict) and k in table]
    if len(kinds) != 1 or not table.keys() <= set(_KEYS):
        raise DataError(f"{path} must have one of withdraw and erase. Write {_EXAMPLE}.")
    if kinds == ["withdraw"]:
        kind: Kind = "withdraw"
        source: Source = str(table["withdraw"])
    else:
        given = table["erase"]
        if not isinstance(given, dict) or not given.get("user") or not given.get("items"):
            raise DataError(f"{path}: erase needs a user and items. Write {_EXAMPLE}.")
        kind, source = "erase", NamedRecords(str(given["user"]), tuple(map(str, given["items"])))
    received, due = (_date(path, table.get(name)) for name in ("received", "due"))
    return Asked(path, *_deadline(path, received, due), kind, source)


def _deadline(path: Path, received: datetime | None, due: datetime | None) -> Times:
    """Return when a request came and is due; without words of its own, by the file's time."""
    since = received or datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return since, due or month_after(since)


def _times_of(path: Path, table: Any) -> Times:
    """Return both for a file that is wrong: of what can be read in it, else by the file's time."""
    found = {}
    for name in ("received", "due"):
        with suppress(DataError):
            found[name] = _date(path, table.get(name) if isinstance(table, dict) else None)
    return _deadline(path, found.get("received"), found.get("due"))


def month_after(received: datetime) -> datetime:
    """Return when a request is due that does not say: one month later, GDPR Art. 12(3).

    The same day of the next month, or its last day: 30 days would be too late in February.
    """
    years, month = divmod(received.month, 12)
    year, month = received.year + years, month + 1
    day = min(received.day, monthrange(year, month)[1])
    return received.replace(year=year, month=month, day=day)


def _date(path: Path, text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise DataError(f"{path}: '{text}' is not a date. Write 2026-11-30.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def metrics_text(folder: Path, done: Pass, now: datetime) -> str:
    """Return what to watch, in the text format of Prometheus (node_exporter's textfile folder)."""
    lines = log_lines(folder)
    answered = [one for one in lines if one["event"] == "answered"]
    late = [one for one in done.waiting if one.due < now]
    next_due = min((one.due.timestamp() for one in done.waiting), default=0.0)
    values = {
        ("requests_open", "gauge", "Requests that wait for an answer"): len(done.waiting),
        ("requests_overdue", "gauge", "Open requests past their deadline"): len(late),
        ("requests_next_due_seconds", "gauge", "Time of the next deadline, 0 if none"): next_due,
        ("requests_answered_total", "counter", "Answered requests"): len(answered),
        ("requests_answered_late_total", "counter", "Answered after the deadline"): sum(
            bool(one.get("late")) for one in answered
        ),
        ("requests_refused", "gauge", "Requests that could not be answered"): len(
            list((folder / REFUSED).glob("*.json"))
        ),
        ("requests_last_pass_seconds", "gauge", "Time of the last pass"): now.timestamp(),
    }
    out = []
    for (name, kind, told), value in values.items():
        out += [f"# HELP rescind_{name} {told}", f"# TYPE rescind_{name} {kind}"]
        out.append(f"rescind_{name} {value:.0f}")
    return "\n".join(out) + "\n"
