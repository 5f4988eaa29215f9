"""What is sent to a person, in one file: the receipt, its page, its key, the exact request.

A .zip, because one file is easier to send and to delete than five. It lies in `answers/` of the
home until the operator has sent it; nothing else there knows the key.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rescind.core.files import write_atomically
from rescind.core.home import home
from rescind.home import Ledger, Request
from rescind.proof.log_folder import RECEIPT as LOGGED
from rescind.proof.log_folder import LogFolder, entry_of
from rescind.receipts.page import page
from rescind.receipts.receipt import parse
from rescind.requests.table_holder import ONLY_ROWS

RECEIPT, PAGE, KEY = "receipt.json", "receipt.html", "receipt.key"
PROOF, EXACT = "receipt.tlog-proof", "request.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def papers_of(name: str) -> Path:
    """Return the file with the papers of a request."""
    return home() / "answers" / f"{name}.zip"


def write_papers(request: Request, body: bytes, proof: str, state: Mapping[str, Any]) -> None:
    """Write the papers of an answer; the key is in them and nowhere else afterwards."""
    of = sorted(state["unlearnt"]["of"].values(), key=lambda facts: ONLY_ROWS in facts)
    first: Mapping[str, Any] = next((facts for facts in of if "draft" in facts), {})
    together = len(request.records) > 1
    shown = page(parse(body), key=request.key)
    files = {RECEIPT: body, PAGE: shown.encode(), PROOF: proof.encode()}
    files[KEY] = f"{request.key.hex()}\n".encode()
    if event := first.get("event") or "":
        files[EXACT] = event.encode()
    if together and event:
        files |= _parts(event, request.key, body)
    write_atomically(papers_of(request.id), bundle(files), private=True)


def write_again(folder: Path, body: bytes, proof: str) -> None:
    """Write a receipt and its proof, as often as somebody asks. The key is not here any more."""
    for name, data in (
        (RECEIPT, body),
        (PROOF, proof.encode()),
        (PAGE, page(parse(body)).encode()),
    ):
        write_atomically(folder / name, data)


def prove_again(ledger: Ledger, log: LogFolder) -> int:
    """Put the newest proofs, with what witnesses signed, into papers not sent yet; count them."""
    papers = sorted((home() / "answers").glob("*.zip"))
    for path in papers:
        with zipfile.ZipFile(path) as packed:
            files = {name: packed.read(name) for name in packed.namelist()}
        proof = str(log.proof(entry_of(LOGGED, files[RECEIPT])))
        ledger.keep_receipt(ledger.request(path.stem), files[RECEIPT], proof)
        write_atomically(path, bundle({**files, PROOF: proof.encode()}), private=True)
    return len(papers)


def bundle(files: Mapping[str, bytes]) -> bytes:
    """Return a .zip: the same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o600 << 16
            packed.writestr(info, data)
    return out.getvalue()


def _parts(event: str, key: bytes, body: bytes) -> dict[str, bytes]:
    """Return each person's part of a request, and the page that is for all of them."""
    import json

    from rescind.receipts.parts import proof_text, proofs
    from rescind.requests.part_names import file_names
    from rescind.storage.events import read_event

    table, inner = json.loads(event), read_event(event)
    labels = _labels(table)
    parts = [(labels.user_id(client), proof) for client, proof in proofs(inner, key, labels)]
    names = file_names([user for user, _ in parts])
    files = {
        f"parts/{name}.json": proof_text(proof, user, labels).encode()
        for name, (user, proof) in zip(names, parts, strict=True)
    }
    return {**files, f"parts/{PAGE}": page(parse(body), of_many=True).encode()}


def _labels(table: Mapping[str, Any]) -> Any:
    """Return the original ids that an exact request names, by the numbers in it."""
    from rescind.core.labels import Labels

    inner = table["inner"]
    users, items = {}, {}
    for client, user in zip(inner["client"], table["user"], strict=True):
        users[client] = user
    for item, name in zip(inner["item"], table["item"], strict=True):
        items[item] = name
    most = (max(users, default=-1) + 1, max(items, default=-1) + 1)
    return Labels(
        tuple(users.get(n, f"user {n}") for n in range(most[0])),
        tuple(items.get(n, f"item {n}") for n in range(most[1])),
    )
