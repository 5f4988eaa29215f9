"""Erase rows of an imported dataset, with a receipt of its own.

Four steps: the deletion is stated in a file beside the data, the rows are deleted, the receipt is
written, the file is removed. Killed at any moment, the next call goes on: where the rows are gone
it writes the receipt, and where they are not, nothing has happened yet. The file is encrypted
under this user's erasure key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rescind.audits.finding import Finding
from rescind.core.claims import CASE, ITEMS, one_line
from rescind.core.files import locked, sync_folder, write_atomically
from rescind.core.labels import Labels
from rescind.core.records import Erase, Records
from rescind.data.blocklist import keyed_digest, place
from rescind.data.erasing import Erasing, choose, delete, stored_rows
from rescind.data.importing import imported_folder
from rescind.errors import ConfigError, DataError
from rescind.forgetting.purge import kept_list
from rescind.forgetting.receipt import Asked, Done, Receipt, covered, issue, parse, write
from rescind.forgetting.receipt_check import REQUEST
from rescind.forgetting.receipt_html import page
from rescind.forgetting.receipt_log import log_if_possible
from rescind.forgetting.receipt_words import ROWS
from rescind.forgetting.sealing import decrypt, encrypt
from rescind.privacy.keys import about_signer, erasure_key, new_secret, read_secret
from rescind.storage.events import event_text

NOT_COVERED = (
    "Runs that learnt from these rows: `rescind forget RUN` answers for each of them.",
    "The file that was imported, and copies of it elsewhere.",
)


class Erasure(NamedTuple):
    """Rows that were deleted, and the receipt of that."""

    receipt: Receipt
    rows: int
    items: int
    """An item that a user had twice is two rows."""
    path: Path
    """Of the receipt. The requester's key, the page and the exact request lie beside it."""
    request: str
    """A digest under the erasure key, by which the same request is known again."""
    earlier: Path | None = None
    """The receipt of another deletion, which had been interrupted and was finished first."""

    @property
    def key(self) -> Path:
        """Return where the requester's key is."""
        return self.path.with_suffix(".key")


def erase(
    name: str,
    users: Sequence[str],
    items: Sequence[str] = (),
    path: Path | None = None,
    case: str = "",
) -> Erasure:
    """Delete rows of users from an imported dataset; write a receipt, and its page beside it.

    Of one user also the exact request, with which they can check that the receipt is about them.

    A deletion that was interrupted is finished first, with the receipt that was named then.
    path: of the receipt. Default: receipt-NAME.json, or with -2, -3, ... if that is taken
    case: the operator's number of the request, which the page shows
    """
    check_given(name, path, case)
    case = one_line(case, "the case") if case else ""
    request = keyed_digest(erasure_key(), *sorted(users), "", *sorted(items))
    with locked(imported_folder()):
        earlier = _finish(name)
        if earlier is not None and earlier.request == request:
            return earlier
        path = path or free(Path(f"receipt-{name}.json"))
        _check_free(path)
        chosen = choose(name, users, items)
        _state(chosen, request, path, case)
        delete(chosen)
        done = _finish(name)
    if done is None:
        raise DataError(
            f"'{name}' still has rows of the request after they were deleted, so there is no "
            f"receipt. Look at {imported_folder() / name}, then give the command again."
        )
    return done._replace(earlier=earlier and earlier.path)


def check_given(name: str, path: Path | None, case: str = "") -> None:
    """Refuse what `erase` would refuse of a receipt's name and its case, before rows are announced.

    A deletion that was interrupted is finished first, and may have its receipt under this name.
    """
    if path is not None and path.suffix != ".json":
        raise ConfigError(f"--receipt {path} must end in .json. Nothing was erased.")
    if case:
        one_line(case, "the case")
    if path is not None and not _stated(name).is_file():
        _check_free(path)


def _check_free(path: Path) -> None:
    if taken(path):
        raise ConfigError(
            f"{path}, its key, page or request exists already. Choose another with --receipt. "
            f"Nothing was erased."
        )


def finish(name: str) -> Erasure | None:
    """Write the receipt of a deletion that was interrupted; None if there was none."""
    with locked(imported_folder()):
        return _finish(name)


def taken(path: Path) -> bool:
    """Return whether a receipt, its key, its page or its request is there."""
    return any(path.with_suffix(suffix).exists() for suffix in (".json", ".key", ".html", REQUEST))


def free(path: Path) -> Path:
    """Return a path for a receipt that is not taken: this one, or with -2, -3, ... at its end."""
    number, found = 1, path
    while taken(found):
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
    return found


def _stated(name: str) -> Path:
    return imported_folder() / f".erasing.{name}"


def _state(chosen: Erasing, request: str, path: Path, case: str) -> None:
    """Write down what will be deleted: all that its receipt needs when the rows are gone."""
    rows, key, (users, items) = chosen.rows, new_secret(), chosen.pairs
    event = Erase(Records.of(torch.from_numpy(rows.user), torch.from_numpy(rows.item)))
    of = chosen.before
    labels = Labels(tuple(of.users.tolist()), tuple(of.items.tolist()))
    told = {
        "request": request,
        "users": users,
        "items": items,
        "asked": asdict(Asked("Erase", len(rows), len({*users}), event.digest(key))),
        "claims": covered(event, key, labels),
        "text": event_text(event, labels) if len({*users}) == 1 else "",  # else it is for nobody
        "before": chosen.before.digest,
        "after": chosen.after.digest,
        "receipt": str(path.absolute()),
        "key": key.hex(),
        "case": case,
        "begun": time.time(),
    }
    sealed = encrypt(json.dumps(told).encode(), erasure_key())
    write_atomically(_stated(chosen.name), sealed.encode(), private=True)


def _finish(name: str) -> Erasure | None:
    """Write the receipt of a deletion that was stated; None if none was, or no row is gone yet."""
    place_of_it = _stated(name)
    if not place_of_it.is_file():
        return None
    told = _read(place_of_it)
    done = None
    if not stored_rows(name, told["users"], told["items"]):
        done = _with_receipt(name, told)
    place_of_it.unlink()
    sync_folder(place_of_it.parent)
    return done


def _read(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(decrypt(path.read_text(encoding="utf-8"), erasure_key()))
    except (DataError, OSError, ValueError):
        raise DataError(
            f"{path} states a deletion that was interrupted, and this user's erasure key does not "
            f"open it. Restore the key and give the command again. If the key is lost, delete the "
            f"file: then there is no receipt of that deletion."
        ) from None
    return told


def _with_receipt(name: str, told: dict[str, Any]) -> Erasure:
    """Write what is missing of a receipt, its key and its page; return the deletion."""
    path, key, asked = Path(told["receipt"]), bytes.fromhex(told["key"]), Asked(**told["asked"])
    items = len({*zip(told["users"], told["items"], strict=True)})
    receipt = _written(path, asked)
    if receipt is None:
        secret = path.with_suffix(".key")
        if secret.is_file() and read_secret(secret) == key:
            secret.unlink()  # a kill came between the key and the receipt
        path = free(path)  # meanwhile somebody else may have taken it
        issued = issue(
            asked,
            Done(
                method={"name": "imported data"},
                unlearning=ROWS,
                level="L1",
                world_before=told["before"],
                world_after=told["after"],
                model_before="",
                model_after="",
                rounds=0,
                client_rounds=0,
                online={},
                seconds=max(0.0, time.time() - told["begun"]),
            ),
            [kept_list("of the data", place(name).stat().st_size)],
            _findings(asked),
            not_covered=NOT_COVERED,
            claims={**told["claims"], **about_signer()},
            bound_claims={ITEMS: str(items), **({CASE: told["case"]} if told["case"] else {})},
            key=key,
        )
        write(issued, path)
        receipt = issued.receipt
    shown = page(receipt, key=key, name=path.stem)
    write_atomically(path.with_suffix(".html"), shown.encode(), private=True)
    if text := told.get("text", ""):  # none if several asked
        write_atomically(path.with_suffix(REQUEST), text.encode(), private=True)
    log_if_possible(path)
    return Erasure(receipt, int(asked.records), items, path, told["request"])


def _written(path: Path, asked: Asked) -> Receipt | None:
    """Return the receipt at a path if it is about this deletion: a kill came after it."""
    try:
        receipt = parse(path.read_bytes())
    except (OSError, DataError):
        return None
    return receipt if receipt.asked.digest == asked.digest else None


def _findings(asked: Asked) -> tuple[Finding, ...]:
    again = "The stored files were read again and searched for rows of the request."
    return (
        Finding("scan", "SHOWN", value=0.0, n=int(asked.records), note=again),
        Finding("audit", "UNAUDITED", note="This receipt is about stored rows, not about models."),
    )
