"""One file of vectors for both sides: what Python computes, the browser must compute, too.

python tests/helpers/page_vectors.py      writes tests/vectors/pages.json anew
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rescind.methods.additive import _live_release as live_release
from rescind.methods.additive._live_release import Form, Weights
from rescind.methods.additive._live_sum import added_up
from rescind.privacy import keys
from rescind.proof.changes import entry_under, statement
from rescind.proof.notes import LOG, WITNESS, Checkpoint, Key, Proof, signature_line, signed
from rescind.proof.tlog import Tree

FILE = Path(__file__).parents[1] / "vectors" / "pages.json"
ITEMS, PEOPLE = 60, 50
TREE = 13
KEPT_ITEMS, MOST_KEPT = 300, 5_000
OPERATOR, THE_LOG, WITNESS_KEY = (
    Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name).digest())
    for name in (b"operator", b"log", b"witness")
)
NAME = "localhost/log"


def read() -> dict[str, Any]:
    """Return the committed vectors."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def bytes_of(text: str) -> bytes:
    """Return bytes that the file holds as base64."""
    return base64.b64decode(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def lists() -> dict[str, Any]:
    """A release, and lists of several people from it."""
    from served import likes

    loans = [np.array(likes(n, ITEMS), np.int32) for n in range(PEOPLE)]
    weights = live_release.release_of(added_up(loans, ITEMS), Form(neighbours=12, min_count=2))
    ids = [f"film-{n}" for n in range(ITEMS)]
    owned = [likes(n, ITEMS) for n in range(100, 112)] + [[], [3], [0, 1, 2, 3], list(range(55))]
    cases = [
        {"own": own, "k": k, "list": as_list(weights, own, k)} for own in owned for k in (20, 7)
    ]
    return {"file": _text(weights.to_bytes(ids)), "cases": cases}


def as_list(weights: Weights, own: list[int], k: int) -> list[dict[str, Any]]:
    """Return a list as the file states it; shares as the nearest number of 64 bits."""
    return [
        {
            "item": line.item,
            "because": [
                {"item": item, "share": share, "without": line.without[item]}
                for item, share in line.because
            ],
        }
        for line in weights.recommend(np.array(own, np.int32), k)
    ]


def trees() -> dict[str, Any]:
    """Trees of few leaves: every inclusion and every growth."""
    tree = Tree()
    for n in range(TREE):
        tree.append(bytes([n, n + 1]))
    sizes = range(1, TREE + 1)
    return {
        "entries": [bytes([n, n + 1]).hex() for n in range(TREE)],
        "roots": [tree.root(size).hex() for size in sizes],
        "inclusions": [
            {"index": n, "size": size, "path": [one.hex() for one in tree.inclusion(n, size)]}
            for size in sizes
            for n in range(size)
        ],
        "growths": [
            {"old": old, "size": size, "path": [one.hex() for one in tree.consistency(old, size)]}
            for size in sizes
            for old in range(1, size + 1)
        ],
    }


def changes() -> list[dict[str, Any]]:
    """Entries of changes under the opening that only the person has."""
    from datetime import UTC, datetime

    found = []
    at = datetime(2026, 11, 16, 12, 0, 0, 31_000, UTC)
    for kind, items in (("lend", ["film-1"]), ("erase", ['"é\\', "\u2028 &<\t"]), ("leave", [])):
        opening = hashlib.sha256(kind.encode()).digest()
        entry = entry_under(opening, statement(kind, items, at.isoformat(), 7))
        fact = {"kind": kind, "time": at.isoformat(), "seq": 7, "opening": opening.hex()}
        found.append({**fact, "items": items, "entry": entry.hex()})
    return found


def differences() -> dict[str, Any]:
    """What `Gram` has a device send that answers alone, and the weight of every number of items."""
    import torch

    from rescind.core.cohort import Cohort, Lot
    from rescind.core.state import Private
    from rescind.methods.additive import _exchange as exchange
    from rescind.methods.additive._live_sum import weight_of

    def lot(items: list[int]) -> Lot:
        return Lot(
            torch.zeros(len(items), dtype=torch.int64), torch.tensor(sorted(items)).long(), 1
        )

    def sent(update: Any, name: str) -> dict[str, Any]:
        rows = update.entries.get(f"{name}0000")
        items, weight = (
            (rows.index.tolist(), int(rows.value[0])) if rows is not None and len(rows) else ([], 0)
        )
        return {"items": items, "weight": weight}

    cases = []
    for old, new in _kept_before_and_after():
        public = {exchange.BLOCK: torch.tensor([0])}
        counted = {"sent/0000": exchange.BITS.of(lot(old), KEPT_ITEMS)}
        cohort = Cohort(torch.tensor([0]), KEPT_ITEMS, lot(new), lot(new), role=exchange.CHANGE)
        parts, _ = exchange.client_parts(public, Private(counted), cohort)
        update = exchange.client_items(parts, cohort)
        both = {name.rstrip("/"): sent(update, name) for name in (exchange.MINUS, exchange.PLUS)}
        cases.append({"sent": old, "kept": new, **both})
    return {"cases": cases, "weights": [weight_of(n) for n in range(MOST_KEPT + 1)]}


def _kept_before_and_after() -> list[tuple[list[int], list[int]]]:
    """Kept items of a device as it counted them and as they are, in any order."""
    from served import likes

    some = [likes(n, KEPT_ITEMS) for n in range(8)]
    pairs = [([], [7]), ([7], [1, 2]), ([5, 3, 1], []), ([], list(range(KEPT_ITEMS)))]
    return [*pairs, *((old[::-1], new) for old, new in zip(some[:4], some[4:], strict=True))]


def receipt() -> dict[str, str]:
    """A receipt of a service, as it was issued, with its proof, cosigned by a witness."""
    from served import opened

    with tempfile.TemporaryDirectory() as folder:
        ledger = opened(Path(folder) / "state")
        try:
            data = _issued(ledger)
        finally:
            ledger.close()
    tree = Tree()
    for n in range(300):
        tree.append(hashlib.sha256(bytes([n % 256])).digest())
    place = tree.append(b"\x02" + hashlib.sha256(data).digest())
    for n in range(77):
        tree.append(hashlib.sha256(b"x%d" % n).digest())
    point = Checkpoint(NAME, len(tree), tree.root())
    note = signed(point, THE_LOG)
    note += signature_line(str(point), "silo-0", WITNESS_KEY, WITNESS, 1_800_000_000)
    proof = str(Proof(place, tuple(tree.inclusion(place)), note))
    return {
        "receipt": _text(data),
        "proof": _text(proof.encode()),
        "receipts": keys.public_text(OPERATOR),
        "log": str(Key(NAME, THE_LOG.public_key().public_bytes_raw(), LOG)),
        "witness": str(Key("silo-0", WITNESS_KEY.public_key().public_bytes_raw(), WITNESS)),
    }


def _issued(ledger: Any) -> bytes:
    from rescind.ledger.lending import Join, Lend, TakeBack
    from served import likes

    ledger.releases._signer = OPERATOR
    for n in range(12):
        person = bytes.fromhex(ledger.submit(Join()).result(30).body["person"])
        ledger.submit(Lend(person, tuple(likes(n)))).result(30)
    item = (int(ledger.reading.loans(person)[0]),)
    asked = ledger.submit(TakeBack(person, "unshare", item)).result(30).body
    ledger.releases.make(ledger)
    return bytes(ledger.reading.request(asked["request_id"]).receipt)


def main() -> None:
    """Write the file."""
    found = {"lists": lists(), "trees": trees(), "changes": changes()}
    found |= {"differences": differences(), "receipt": receipt()}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"written: {FILE.name}, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
