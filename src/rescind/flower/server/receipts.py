"""Receipts of requests over silos, signed on the server and written to the run's folder.

    receipts/1.json             after the model has forgotten request 1; names silos waited for
    receipts/1-complete.json    when the last of them has confirmed, chained to the one before
    receipts/1.key              for the requester (forgetting/receipt.py)
    receipts/1.request.json     the exact request, for the requester, too
    receipts/1.html             the page for the requester, with exact numbers

A receipt that exists is never written again, so a server that was killed issues each once. It is
written last, when the papers of the requester are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.claims import CONFIRMED, WAITED_FOR
from rescind.core.federation import Federation
from rescind.core.files import write_atomically
from rescind.core.labels import Labels
from rescind.core.records import Erase, Event, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.settings import to_table
from rescind.data.catalogue import ENTRIES
from rescind.flower.server.asked_names import AskedNames
from rescind.forgetting import receipt
from rescind.forgetting.pipeline import Forgotten, vouched
from rescind.forgetting.purge import inventory
from rescind.forgetting.receipt import Done
from rescind.forgetting.receipt_check import REQUEST
from rescind.forgetting.receipt_html import page
from rescind.forgetting.receipt_log import log_if_possible, proof_path
from rescind.privacy.keys import about_signer
from rescind.storage.events import event_text
from rescind.storage.provenance import version_of

UNAUDITED = (
    "Audits need retrained models, which are made in one process (rescind audit). Level L3: the "
    "rounds were made again, or the sum subtracted, by the platform's own code. Level L1: it is "
    "not shown that the influence is gone."
)
ON_SILO = (
    "Records and private values on silos {silos}, which were not reached yet: they are removed "
    "before these silos do anything else."
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
    return {
        "records": len(request.records),
        "level": "L3" if exact else "L1",  # nothing is audited here, so nothing else is shown
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
    for one, event in zip(due, events, strict=True):
        first = folder / "receipts" / f"{one['number']}.json"
        previous = _newest(folder, int(one["number"]) - 1)
        paths = [first]
        if one.get("stated") and not one["waiting"]:
            paths.append(first.with_name(f"{first.stem}-complete.json"))
        for path in paths:
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_suffix(".key").unlink(missing_ok=True)  # of an interrupted write
                labels = names.about(event)
                issued = _issued(fed, one, event, previous, labels)
                shown = page(issued.receipt, key=issued.key, name=path.stem)
                _for_requester(path, REQUEST, event_text(event, labels))
                _for_requester(path, ".html", shown)
                receipt.write(issued, path)
            if not proof_path(path).is_file():
                log_if_possible(path)
            previous = path.read_bytes()
            waits = receipt.parse(previous).claims.get(WAITED_FOR) != "none"
            one["stated"] = one.get("stated", waits)
            one["receipt"] = f"receipts/{path.name}"


def _for_requester(path: Path, ending: str, text: str) -> None:
    """Write what goes to the requester with a receipt, for the operator's eyes only until then."""
    write_atomically(path.with_suffix(ending), text.encode(), private=True)


def last_receipt(folder: Path) -> int:
    """Return the number of the last request with a receipt in a run's folder; 0 if none."""
    numbers = (path.stem.partition("-")[0] for path in (folder / "receipts").glob("*.json"))
    return max((int(n) for n in numbers if n.isdecimal()), default=0)


def _newest(folder: Path, number: int) -> bytes:
    """Return the last receipt of a request, to chain the next one to; empty if there is none."""
    for name in (f"{number}-complete.json", f"{number}.json"):
        if (folder / "receipts" / name).is_file():
            return (folder / "receipts" / name).read_bytes()
    return b""


def _issued(
    fed: Federation, one: dict[str, Any], event: Event, previous: bytes, labels: Labels | None
) -> receipt.Issued:
    facts, waiting = dict(one["done"]), [str(silo) for silo in one["waiting"]]
    records, level = int(facts.pop("records")), str(facts.pop("level"))
    level = "L0" if waiting else level  # the bytes are still on a silo
    done = Done(
        method=to_table(fed.method), unlearning=str(one["by"]), level=level,
        rounds=int(one["rounds"]), client_rounds=int(one["client_rounds"]),
        seconds=float(one["seconds"]), **facts,
    )  # fmt: skip
    limits = [ON_SILO.format(silos=", ".join(waiting))] if waiting else []
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
            CONFIRMED: ", ".join(sorted(silos, key=int)) or "none",
            WAITED_FOR: ", ".join(waiting) or "none",
        },
        labels=labels, code=version_of(fed.method),
    )  # fmt: skip
