"""The steps of a night: each is done once, and killed at any moment the same command goes on.

The journal of a night is in the ledger, under `night:NAME`. A step that fails is noted and the rest
goes on, so that a bad file keeps neither an answer nor the lists; the next night tries it again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.core.files import locked, make_folder, sweep
from rescind.core.home import home
from rescind.errors import RescindError
from rescind.home import Ledger, Request
from rescind.home.request import REFUSED
from rescind.night.config import Config, Witness

if TYPE_CHECKING:
    from rescind.proof.notes import Key

NEAR = timedelta(days=7)
"""A deadline that is nearer makes a night end with 10."""
FAILED, TO_MEND, WAITS, DONE = 1, 20, 10, 0
Tell = Callable[[str], Any]
Facts = dict[str, Any]


@dataclass(frozen=True)
class Night:
    """What a step needs. today: the day on which the night began, also if it goes on later"""

    config: Config
    ledger: Ledger
    tell: Tell
    today: date

    @property
    def name(self) -> str:
        return self.config.data.name

    @property
    def open(self) -> list[Request]:
        """Return what is open about this data, the most urgent first."""
        return [one for one in self.ledger.requests(open_only=True) if one.dataset == self.name]


def journal_of(name: str) -> str:
    """Return the name of the journal of the nights of some data."""
    return f"night:{name}"


def spool() -> Path:
    """Return the folder of what was read from a database and is not in the data yet."""
    return home() / "night"


def work(config: Config, ledger: Ledger, tell: Tell, today: date | None = None) -> int:
    """Go on with the night that was killed, or begin one; return the exit code."""
    journal = journal_of(config.data.name)
    make_folder(spool())
    with locked(spool()):
        done = ledger.journal(journal)
        if not done or "ended" in done:
            ledger.withdraw(journal)
            ledger.note(journal, "began", {"day": str(today or datetime.now(UTC).date())})
            done = ledger.journal(journal)
        night = Night(config, ledger, tell, date.fromisoformat(done["began"]["day"]))
        for step in STEPS:
            if step.__name__ not in done:
                facts = _tried(step, night)
                ledger.note(journal, step.__name__, {"at": f"{datetime.now(UTC):%FT%T}Z", **facts})
        code = code_of(ledger.journal(journal), night.open)
        ledger.note(journal, "ended", {"at": f"{datetime.now(UTC):%FT%T}Z", "code": code})
        return code


def _tried(step: Callable[[Night], Facts], night: Night) -> Facts:
    try:
        facts = step(night)
    except RescindError as error:
        facts = {"failed": str(error)}
    except Exception as error:  # a library's: answers and lists do not wait for it
        facts = {"failed": f"{type(error).__name__}: {error}", "lines": traceback.format_exc()}
    shown = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "lines")
    night.tell(f"{step.__name__:7} {shown or 'nothing to do'}")
    return facts


def code_of(done: dict[str, Facts], left: list[Request]) -> int:
    """Return the exit code: what is worst."""
    if any("failed" in facts for facts in done.values()):
        return FAILED
    if any(one.outcome == REFUSED or one.late for one in left) or done["answer"].get("late"):
        return TO_MEND
    near = datetime.now(UTC) + NEAR
    if any(one.outcome or one.due < near for one in left) or done["cosign"].get("away"):
        return WAITS
    return DONE


def append(night: Night) -> Facts:
    """Add new rows. A file counts once; of a database each day is asked for once."""
    from rescind.night.sources import files_at

    new, counts = night.config.new, {"rows": 0, "withheld": 0}
    if new.sql:
        _append_days(night, counts)
    wrong = []
    for path in files_at(night.config.at(new.path)) if new.path else ():
        try:
            _append(night, path, counts)
        except RescindError as error:  # the other files count
            wrong.append(str(error))
    return counts | ({"failed": " ".join(wrong)} if wrong else {})


def _append_days(night: Night, counts: dict[str, int]) -> None:
    """Ask the database for each day since the last one that it answered, to yesterday."""
    from rescind.night.sources import queried, write_csv

    new, journal = night.config.new, f"days:{night.name}"
    known = night.ledger.journal(journal).get("last", {})
    last = date.fromisoformat(known["day"]) if known else night.today - timedelta(days=2)
    while (day := last + timedelta(days=1)) < night.today:
        file = spool() / f"{night.name}-{day}.csv"
        if not file.is_file():
            days = {"yesterday": day, "today": day + timedelta(days=1)}
            columns, rows = queried(new.sql, new.query, night.config.base, **days)
            write_csv(file, columns, rows)
        _append(night, file, counts, separator=",", header=True, encoding="utf-8")
        night.ledger.note(journal, "last", {"day": str(day)})
        file.unlink()
        last = day


def _append(night: Night, file: Path, counts: dict[str, int], **read_as: Any) -> None:
    from rescind.data.importing import append_file, import_file, imported_names

    settings = {"columns": {**night.config.data.columns}, **read_as, "tell": night.tell}
    if night.name not in imported_names():
        counts["rows"] += len(import_file(file, night.name, **settings))
        return
    done = append_file(night.name, file, **settings)
    counts["rows"] += done.rows
    counts["withheld"] += done.withheld


def answer(night: Night) -> Facts:
    """Take in requests, and answer all that are open."""
    from rescind.audits.finding import FAILED as VERDICTS
    from rescind.receipts.receipt import parse
    from rescind.requests.answer import answer as answered

    wrong = _taken_in(night)
    ends, late = dict[str, int](), 0
    for one in night.open:
        try:
            end = answered(night.ledger, one.id, night.tell)
        except RescindError as error:  # others are answered
            wrong.append(f"{one.id}: {error}")
            continue
        ends[end.outcome] = ends.get(end.outcome, 0) + 1
        late += end.late and not end.open
        if end.receipt and one.audit != "none":
            verdict = parse(night.ledger.receipt(end.receipt)[0]).verdict
            wrong += [f"{one.id}: its audit was {verdict}."] * (verdict in VERDICTS)
    failed = {"failed": " ".join(wrong)} if wrong else {}
    return ends | ({"late": late} if late else {}) | failed


def _taken_in(night: Night) -> list[str]:
    """Write down what came; return what kept requests from being read."""
    from rescind.night.sources import add_rows, queried, read_csv
    from rescind.requests.adding import add_folder

    source, config = night.config.requests, night.config
    days = {"yesterday": night.today - timedelta(days=1), "today": night.today}
    try:
        if source.sql:
            found = queried(source.sql, source.query, config.base, **days)
            add_rows(night.ledger, night.name, "sql", found, source.audit)
        elif source.path and (path := config.at(source.path)).is_file():
            add_rows(night.ledger, night.name, path.name, read_csv(path), source.audit)
        elif source.path and path.suffix != ".csv":  # a table of requests may not be there yet
            add_folder(night.ledger, night.name, path, source.audit)
    except RescindError as error:
        return [str(error)]
    return []


def learn(night: Night) -> Facts:
    """Learn in the place of the model that stands, which answers until the new one is complete."""
    from rescind.experiments.advice import recipe_for
    from rescind.experiments.learning_run import run_cell

    how = night.config.learn
    (cell,) = recipe_for(night.name, how.method, how.settings).choose(None)
    result = run_cell(cell, night.config.run, again=True)
    return {"model": result.facts["model"]["public"]}


def export(night: Night) -> Facts:
    """Write the lists of the model that stands, also if learning failed."""
    from rescind.experiments.serving import tables
    from rescind.night.sinks import sink_named
    from rescind.storage.federations import load_federation
    from rescind.storage.run_folder import model_in

    to = night.config.export
    if not to.to:
        return {}
    fed = load_federation(model_in(night.config.run))
    hidden = listed_items(night.config, to.exclude)
    if to.items:
        hidden |= {*fed.labels.items} - listed_items(night.config, to.items)
    sink_named(to.sink)(found := tables(fed, to.k, hidden), night.config.at(to.to))
    return {name: len(next(iter(columns.values()))) for name, columns in found.items()}


def listed_items(config: Config, given: tuple[str, ...] | str) -> set[str]:
    """Return ids as they stand in the file of the night, or in a CSV that it names."""
    from rescind.errors import DataError
    from rescind.night.sources import read_csv

    if not isinstance(given, str):
        return {*given}
    columns, rows = read_csv(config.at(given))
    if "item" not in columns:
        raise DataError(f"{given} needs a column item; it has {', '.join(columns)}.")
    return {row[columns.index("item")].strip() for row in rows}


def cosign(night: Night) -> Facts:
    """Ask each witness to sign the log's checkpoint, then put the signatures into the papers.

    One that is away is asked the next night. One that refuses may know of another history.
    """
    from rescind.proof.reaching import Away
    from rescind.proof.witness_http import ask
    from rescind.receipts.log import open_log
    from rescind.requests.papers import prove_again

    away = []
    for witness in night.config.log.witnesses:
        try:
            ask(witness.url, witness_key(night.config, witness), open_log())
        except Away as error:
            away.append(f"{witness.url}: {error}")
    if not night.config.log.witnesses or away:
        return {"away": away} if away else {}
    return {"papers": prove_again(night.ledger, open_log())}


def witness_key(config: Config, witness: Witness) -> Key:
    """Return the key of a witness: as it stands in the file of the night, or in one it names."""
    from rescind.proof.notes import WITNESS, Key

    given = witness.key
    text = given if given.count("+") >= 2 else config.at(given).read_text(encoding="utf-8")
    return Key.parse(text.strip(), WITNESS)


def tidy(night: Night) -> Facts:
    """Remove what killed commands left."""
    from rescind.storage.learning import settle

    known = night.ledger.journal(f"days:{night.name}").get("last", {}).get("day", "")
    for file in spool().glob(f"{night.name}-????-??-??.csv"):
        if file.stem[-10:] <= known:  # its day is in the data
            file.unlink()
    for folder in (spool(), home() / "answers", home()):
        sweep(folder)
    if night.config.run.is_dir():
        settle(night.config.run)
    return {}


STEPS: tuple[Callable[[Night], Facts], ...] = (append, answer, learn, export, cosign, tidy)
