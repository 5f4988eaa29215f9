"""Read a request to a run on disk, answer it, and purge the old run."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from rescind.core.federation import Federation
from rescind.core.files import make_folder, write_atomically
from rescind.core.method import Unlearner
from rescind.core.params import digest, nbytes
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.data.simulated_lending import draw_regret
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.experiments.stream_run import measured_again
from rescind.forgetting.blocklist import Blocklist
from rescind.forgetting.forget import Audits, Evidence, forget
from rescind.forgetting.receipt import Issued, write
from rescind.forgetting.receipt_html import page
from rescind.reporting.html import Page
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.provenance import versions
from rescind.storage.run_folder import MOVED, check_finished, read_facts, write_facts

Kind = Literal["erase", "unshare", "withdraw"]
DRAW = "draw:"
RECEIPT, PAGE = "receipt.json", "receipt.html"
REPORT = "report.html"
FORGOT = "-forgot-"
"""Between the name of a run and the number of answered requests."""
LEFT = ("run.json", "withheld.json", MOVED, RECEIPT, PAGE, "receipt.key", REPORT)
"""Files that stay in the folder of a run after forgetting: no records and no model. The key of an
earlier requester stays until it is handed over."""


@dataclass(frozen=True)
class Answer:
    """An answered request."""

    fed: Federation
    evidence: Evidence
    folder: Path
    """The new run."""
    key_file: Path
    """The requester's key."""


def read_request(
    fed: Federation, kind: Kind, source: str, withheld: Blocklist | None = None
) -> Event:
    """Return the event of a request. source: a CSV file, `draw:0.3`, or a user id to withdraw.

    The file has a column `user` and optionally `item`, with original ids. Without items, it means
    all records that a user holds (erase) or shares (unshare). `draw:0.3` takes all shared records
    of a random 30 % of the sharing users, for experiments.

    withheld: digests of earlier requests, to detect users who have left
    """
    withheld = withheld or Blocklist()
    if kind == "withdraw":
        return Withdraw(_client(fed, source, withheld))
    if source.startswith(DRAW):
        records = draw_regret(fed.world.shared, fed.clock, _fraction(source))
    else:
        records = _from_file(fed, Path(source), kind, withheld)
    if not len(records):
        raise ConsentError(
            f"the request names no records that can be {kind}d. "
            f"Give ids of users and items in the run (`rescind recommend` shows ids)."
        )
    return Erase(records) if kind == "erase" else Unshare(records)


def _fraction(source: str) -> float:
    try:
        return float(source.removeprefix(DRAW))
    except ValueError:
        raise ConfigError(f"'{source}' is not a fraction. Write draw:0.3 for 30 %.") from None


def _client(fed: Federation, user: str, withheld: Blocklist) -> int:
    """Return the number of a user; raise without suggesting other names if the user has left."""
    if withheld.left(user, fed.labels):
        raise ConsentError(
            f"user '{user}' has left this run, so there is nothing to forget. See the receipt of "
            f"the earlier request."
        )
    return fed.labels.client(user, fed.world.sizes.clients)


def _from_file(fed: Federation, path: Path, kind: Kind, withheld: Blocklist) -> Records:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            names, rows = tuple(table.fieldnames or ()), list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a request: {error}.") from None
    if "user" not in names:
        raise DataError(
            f"{path} has no column 'user' (its first line is "
            f"'{', '.join(map(str, names))}'). Write a header 'user,item' or 'user' and original "
            f"ids below."
        )
    if not rows:
        raise DataError(f"{path} names no users: it has no line below its header.")
    sizes, held = fed.world.sizes, fed.now.vault.holdings.records
    whole = fed.world.shared if kind == "unshare" else held
    pairs, people = [], []
    for number, row in enumerate(rows, 2):
        user, item = (row.get("user") or "").strip(), (row.get("item") or "").strip()
        if "item" in names and not item:  # a damaged line must not erase a whole user
            raise DataError(
                f"{path}, line {number}: user '{user}' has no item. Add one, or write a file with "
                f"only the column 'user' to name all records of a user."
            )
        try:
            client = _client(fed, user, withheld)
            if item:
                pairs.append((client, fed.labels.item(item, sizes.items)))
            else:
                people.append(client)
        except (ConsentError, DataError) as error:
            raise type(error)(f"{path}, line {number}: {error}") from None
    named = Records.of([c for c, _ in pairs], [i for _, i in pairs])
    everything = whole[torch.isin(whole.client, torch.tensor(people, dtype=torch.int64))]
    return named + everything[~everything.among(named)]


def answer(
    run: Path,
    kind: Kind,
    source: str,
    method: Unlearner | None = None,
    audits: Audits = "standard",
    out: Path | None = None,
    workers: int = 2,
    watch: tuple[Callable[..., Any], ...] = (),
    on_retrain: Callable[[int, int], Any] = lambda *_: None,
    on_start: Callable[[Federation, Event, int], Any] = lambda *_: None,
    away: Sequence[str] = (),
) -> Answer:
    """Answer a request to a run: write a new run without the records and a receipt, purge the old.

    The old run is purged after the new one is complete on disk. on_retrain: called with (finished,
    total) reference models    on_start: called with the run, the request and its number of records
    away: ids of users whose devices cannot be reached
    """
    check_finished(run)
    facts = read_facts(run) or {}
    fed = load_federation(run / "model")
    event = read_request(fed, kind, source, Blocklist.read(run))
    request = fed.request(event)
    new = out or _next(run)
    if new.exists() and any(new.iterdir()):
        raise ConfigError(f"{new} is not empty. Choose another folder with --out.")
    previous = (run / RECEIPT).read_bytes() if (run / RECEIPT).is_file() else None
    fed.apply(event)  # fail before any output if the request is invalid
    on_start(fed, event, len(request.records))
    watched = Federation(**{**vars(fed), "watch": (*fed.watch, *watch)})
    after, evidence = forget(
        watched, event, method, audits,
        previous=previous, data=_public_data(facts), workers=workers, progress=on_retrain,
        away=[fed.labels.client(user, fed.world.sizes.clients) for user in away],
    )  # fmt: skip
    after = Federation(**{**vars(after), "watch": ()})
    make_folder(new)
    save_federation(after, new / "model")
    key_file = write(Issued(evidence.receipt, evidence.key), new / RECEIPT)
    findings = evidence.report.findings if evidence.report else None
    write_atomically(new / PAGE, page(evidence.receipt, findings, key=evidence.key).encode())
    (new / PAGE).chmod(0o600)  # it has the exact numbers
    withheld = Blocklist.read(run).after(event, request.records, fed.labels)
    withheld.write(new)
    write_facts(new, _facts(facts, after, evidence))
    withheld.write(run)  # a rerun into the old folder must leave the records out, too
    _purge_folder(run, new)
    return Answer(after, evidence, new, key_file)


def _public_data(facts: dict[str, Any]) -> str:
    """Return the digest of a published dataset; '' for imported data, which may be private."""
    data = facts.get("data", {})
    return "" if data.get("source") == "imported" else str(data.get("digest", ""))


def _next(run: Path) -> Path:
    """Return the next free name: seed-0, seed-0-forgot-1, seed-0-forgot-2, ..."""
    stem, _, number = run.name.rpartition(FORGOT)
    name = stem if stem and number.isdigit() else run.name
    count = 1
    while (run.parent / f"{name}{FORGOT}{count}").exists():
        count += 1
    return run.parent / f"{name}{FORGOT}{count}"


def _facts(facts: dict[str, Any], after: Federation, evidence: Evidence) -> dict[str, Any]:
    state, vault = after.now.state, after.now.vault
    k = tuple(int(name.split("@")[1]) for name in facts["metrics"]["test"] if name.startswith("HR"))
    asked, done = evidence.exact.asked, evidence.exact.done
    forgotten = {
        "kind": asked.kind,
        "records": asked.records,
        "people": asked.people,
        "by": done.unlearning,
        "level": done.level,
        "verdict": evidence.receipt.verdict,
        "rounds": done.rounds,
        "client_rounds": done.client_rounds,
        "seconds": done.seconds,
    }
    quality: dict[str, Any] = {"metrics": {s: after.evaluate(s, k) for s in ("valid", "test")}}
    if "matrix" in facts:
        quality = measured_again(facts, after)
    return {
        **facts,
        **quality,
        "shared": len(after.world.shared),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "round": state.round,
        "per_round": [],  # the old model is deleted
        "seconds": {"wall": done.seconds, "cpu": done.seconds},
        "kept_bytes": {
            "server": nbytes(state.public) + nbytes(state.own) + state.memory.nbytes,
            "devices": vault.nbytes,
        },
        "model": {"public": digest(state.public), "private": digest(vault.private)},
        "forgotten": [*facts.get("forgotten", []), forgotten],
        "privacy": {**facts.get("privacy", {}), **after.method.promise(after)},
        "published": after.method.published(after),
    }


def _moved_page(run: Path, new: Path) -> str:
    out = Page(f"{run.name}: its records were forgotten")
    out.text(
        f"Records of this run were erased or taken back. Its model, its report and everything else "
        f"that was made with them were deleted. The new run without them is {new.name}; its "
        f"receipt.html shows what was requested, done and measured."
    )
    out.text("Kept here: the settings and the results of the old run (run.json).")
    out.code(f"rescind verify {new.name}/{RECEIPT}")
    return out.html()


def _purge_folder(run: Path, new: Path) -> None:
    """Delete everything of the old run but its results and the name of the new run."""
    write_atomically(run / MOVED, (json.dumps({"to": new.name}) + "\n").encode())
    facts = read_facts(run) or {}
    facts.pop("model", None)  # its digest would help to test guesses
    write_facts(run, facts)
    write_atomically(run / REPORT, _moved_page(run, new).encode())
    for path in run.iterdir():
        if path.name in LEFT:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
