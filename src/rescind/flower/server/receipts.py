"""Receipts of requests over silos, signed on the server and written to the run's folder.

    receipts/1.json             after the model has forgotten request 1; names silos waited for
    receipts/1-complete.json    when the last of them has confirmed; names the one it completes
    receipts/1.key              for the requester (forgetting/receipt.py)
    receipts/1.request.json     the exact request, for the requester, too
    receipts/1.html             the page for the requester, with exact numbers

All are one chain: each follows the newest that was written before it, of whatever request. One
that exists is never written again, so a server that was killed issues each once. It is written
last, when the papers of the requester are there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.claims import CLAIMED, COMPLETES, CONFIRMED, WAITED_FOR
from rescind.core.federation import Federation
from rescind.core.files import write_atomically
from rescind.core.labels import Labels
from rescind.core.records import Erase, Event, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.settings import to_table
from rescind.data.catalogue import ENTRIES
from rescind.errors import DataError
from rescind.flower.run_request import silo_names
from rescind.flower.server.asked_names import AskedNames
from rescind.forgetting.pipeline import Forgotten, claimed_by, vouched
from rescind.forgetting.purge import inventory
from rescind.privacy.keys import about_signer
from rescind.receipts import receipt
from rescind.receipts.completion import waits
from rescind.receipts.how_to_check import REQUEST
from rescind.receipts.log import log_if_possible, proof_path
from rescind.receipts.page import page
from rescind.receipts.receipt import Done
from rescind.storage.events import event_text
from rescind.storage.provenance import version_of

UNAUDITED = (
    "Audits need retrained models, which are made in one process (rescind audit). Level L3: the "
    "rounds were made again, or the sum subtracted, by the platform's own code. Level L1: it is "
    "not shown that the influence is gone."
)
KEPT = "The records themselves: devices keep them, and train on them."
COUNTED = (
    "The number of records counts those that the server knew; silos removed all others from their "
    "state, too."
)
IMPORTED = (
    "The imported table '{name}' on the silos' machines: silos leave its rows out of what they "
    "learn, and `{command}` on each machine that has them deletes them. The files it was imported "
    "from."
)
_BY_NUMBER = re.compile(r"(\d+)(-complete)?\.json")


def rows_left(name: str, event: Event, silos: int) -> dict[str, Any]:
    """Return the imported table that keeps the rows of a request, and the silos they are on.

    Empty if the data is published or generated, or if the request is not about rows.
    """
    if name in ENTRIES or not isinstance(event, Erase | Withdraw):
        return {}
    people = [event.client] if isinstance(event, Withdraw) else event.records.client.tolist()
    command = f"rescind data erase {name} --user USER"
    command += " --item ITEM" if isinstance(event, Erase) else ""
    at = sorted({int(client) % silos for client in people})
    return {"imported": {"name": name, "silos": at, "command": command}}


def facts_of(before: Federation, request: Request, done: Forgotten) -> dict[str, Any]:
    """Return what a receipt will state about a request, as plain values for the server's disk."""
    exact = vouched(done.unlearner) and before.past is not None and before.past.base is None
    code = claimed_by(before.method, done.unlearner)
    return {
        "records": len(request.records),
        # Nothing is audited here, so nothing else is shown.
        "level": "L3" if exact and not code else "L1",
        CLAIMED: code if exact else "",
        "world_before": before.world.digest(),
        "world_after": done.fed.world.digest(),
        "model_before": params.digest(before.now.state.public),
        "model_after": params.digest(done.fed.now.state.public),
        "online": done.cost.online(request),
    }


def write_receipts(
    folder: Path,
    fed: Federation,
    forgot: Sequence[dict[str, Any]],
    events: Sequence[Event],
    names: AskedNames,
) -> None:
    """Write the receipts that are due, and their names to the facts of each request.

    events: of the requests that are not complete yet, which are those with facts under "done"
    names: original ids in these requests
    """
    due = [one for one in forgot if "done" in one]
    newest = _newest(folder)
    for one, event in zip(due, events, strict=True):
        path, labels = folder / "receipts" / f"{one['number']}.json", names.about(event)
        request, issue = event_text(event, labels), partial(_issued, fed, one, event, labels)
        newest = _write_once(path, request, issue, newest)
        first = path.read_bytes()
        # Read from the receipt: a server that was killed after writing it has noted nothing else.
        if waits(receipt.parse(first)) and not one["waiting"]:
            path = path.with_name(f"{path.stem}-complete.json")
            newest = _write_once(path, request, partial(issue, completed=first), newest)
        one["receipt"] = f"receipts/{path.name}"


def _write_once(
    path: Path, request: str, issue: Callable[[bytes], receipt.Issued], newest: bytes
) -> bytes:
    """Write a receipt after the newest one, unless it is there. Return the newest one then."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".key").unlink(missing_ok=True)  # of an interrupted write
        issued = issue(newest)
        shown = page(issued.receipt, key=issued.key, name=path.stem)
        _for_requester(path, REQUEST, request)
        _for_requester(path, ".html", shown)
        receipt.write(issued, path)
        newest = path.read_bytes()
    if not proof_path(path).is_file():
        log_if_possible(path)
    return newest


def _for_requester(path: Path, ending: str, text: str) -> None:
    """Write what goes to the requester with a receipt, for the operator's eyes only until then."""
    write_atomically(path.with_suffix(ending), text.encode(), private=True)


def last_receipt(folder: Path) -> int:
    """Return the number of the last request with a receipt in a run's folder; 0 if none."""
    return max((number for number, _, _ in _written(folder)), default=0)


def _written(folder: Path) -> list[tuple[int, bool, Path]]:
    """Return the receipts of a run: number, whether it completes another, and path, in order."""
    found = ((_BY_NUMBER.fullmatch(p.name), p) for p in (folder / "receipts").glob("*.json"))
    return sorted((int(name[1]), bool(name[2]), path) for name, path in found if name)


def _newest(folder: Path) -> bytes:
    """Return the receipt that no other follows, to chain the next one to; empty if there is none.

    Of several, which earlier versions left, the last of the last request: the chain goes on there.
    """
    written = [path.read_bytes() for _, _, path in _written(folder)]
    followed = {_previous(data) for data in written}
    return next((one for one in reversed(written) if receipt.digest(one) not in followed), b"")


def _previous(data: bytes) -> str:
    """Return the digest of the receipt before; empty if this one is damaged."""
    try:
        return receipt.parse(data).previous
    except DataError:
        return ""


def on_silos(waiting: Sequence[int]) -> str:
    """Return what is not covered until these silos have confirmed."""
    were, do = ("was", "this silo does") if len(waiting) == 1 else ("were", "these silos do")
    return (
        f"Records and private values on {silo_names(waiting)}, which {were} not reached yet: they "
        f"are removed before {do} anything else."
    )


def _issued(
    fed: Federation,
    one: dict[str, Any],
    event: Event,
    labels: Labels | None,
    previous: bytes,
    completed: bytes = b"",
) -> receipt.Issued:
    """Sign a receipt. completed: the one of this request that waited for silos; empty if none"""
    facts, waiting = dict(one["done"]), [str(silo) for silo in one["waiting"]]
    records, level = int(facts.pop("records")), str(facts.pop("level"))
    code = str(facts.pop(CLAIMED, ""))  # a server of an earlier version has noted none
    level = "L0" if waiting else level  # the bytes are still on a silo
    done = Done(
        method=to_table(fed.method), unlearning=str(one["by"]), level=level,
        rounds=int(one["rounds"]), client_rounds=int(one["client_rounds"]),
        seconds=float(one["seconds"]), **facts,
    )  # fmt: skip
    limits = [on_silos(one["waiting"])] if waiting else []
    limits += [COUNTED] if isinstance(event, Withdraw) else []
    limits += [KEPT] if isinstance(event, Unshare) else []
    if table := one.get("imported"):
        limits.append(IMPORTED.format(name=table["name"], command=table["command"]))
    silos = {str(silo) for silo in range(int(one["silos"]))} - {*waiting}
    return receipt.issue(
        event, done, inventory(fed), [Finding("audit", "UNAUDITED", note=UNAUDITED)],
        records=records, not_covered=limits, previous=previous or None,
        claims={
            **about_signer(),
            **({CLAIMED: code} if code else {}),
            CONFIRMED: ", ".join(sorted(silos, key=int)) or "none",
            WAITED_FOR: ", ".join(waiting) or "none",
            **({COMPLETES: receipt.digest(completed)} if completed else {}),
        },
        labels=labels, code=version_of(fed.method),
    )  # fmt: skip
