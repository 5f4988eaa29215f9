"""A request from asked to receipt: what is issued when the records are out of what is served.

A take-back is L1 with its answer: unreadable here and out of the sum. It is L3 when what is served
was made without it: with the next release, or at once in the instant form. Then its receipt is
signed, its leaf is logged, and the key of the receipt is destroyed here. So a ledger that went back
to a backup from before cannot issue it once more: the request is fulfilled without a receipt.

A restart issues what is due: requests up to the release's `seq` without a receipt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, and_, select, update

from rescind.audits.finding import Finding, overall
from rescind.core.claims import AFTER, ENTRY, PEOPLE, PUBLISHED, RELEASE
from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.batch import Answer, Batch
from rescind.ledger.keyslots import about
from rescind.ledger.lending import LEFT
from rescind.methods.additive._live_release import Form
from rescind.privacy.keys import about_signer
from rescind.proof.changes import ASKED
from rescind.receipts.receipt import Asked, Done, Issued, Kept, canonical, issue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ENTRY_TYPE = b"\x02"
AT_ONCE = 64
"""Receipts of one transaction: signing them takes milliseconds, and lenders wait meanwhile."""
HALF, URGENT = 0.5, 0.8
"""Parts of the time until the deadline at which a request raises an alarm."""
RECEIPT_BYTES = "1000-9999"
"""A band, because a receipt cannot state its own size. `tests/ledger` holds receipts to it."""
LEAF_BYTES = 33 + 32
"""An entry of the log and its hash (`tables.leaf`)."""
ACCOUNT_BYTES = 16 + len(LEFT)
"""What leaving does not empty in the row of a person."""
KEY_GONE = (
    "done, but the key of its receipt is gone: destroyed when the receipt was issued, before this "
    "service went back to a backup, or lost. So no receipt was issued now"
)
"""Why a fulfilled request has no receipt, for operators."""
NOT_COVERED = (
    "The answer to your call, for 72 hours: it opens with your key of that call only.",
    "Releases that people downloaded before this one.",
    "Tables from which the operator brought people in, and copies of them: other stores.",
    "Backups of the ledger: they hold ciphertext, and the key of these records is destroyed.",
)
CHANGED = "accounts of the one before have other loans now"
"""What the number of people in a release means; what it cannot mean is on the receipt's page."""


@dataclass(frozen=True)
class Served:
    """What a receipt states about the first release without the records."""

    number: int
    """0: the instant form, which has no releases."""
    seq: int
    at: datetime
    people: int
    """How many people of the one before have other loans in it (`ledger.release_counts`)."""
    wanted: int
    """How many it should mix."""
    sum_digest: str
    weights_digest: str
    form: Form
    findings: tuple[Finding, ...] = ()
    noise: str = ""
    """What is promised about noise; empty: there is none."""

    @property
    def level(self) -> str:
        """L3, unless the audit says otherwise: a FAIL contradicts that the influence is gone."""
        return "L1" if overall(self.findings) == "FAIL" else "L3"

    @property
    def claims(self) -> dict[str, str]:
        """Return what stands in every receipt of this release, in the open."""
        if not self.number:
            says = "at once: the instant form changes what is served with every request"
            return {RELEASE: says, PUBLISHED: "lists, made from all weights"}
        few = "" if self.people >= self.wanted else f", fewer than the {self.wanted} wanted"
        before = "accounts lend, and none was before" if self.number == 1 else CHANGED
        kept = f"the {self.form.neighbours} largest weights of each item"
        kept += f", rounded to {self.form.rounding:g} times their mean" * bool(self.form.rounding)
        rare = f", of items that {self.form.min_count} people or more lend"
        return {
            RELEASE: str(self.number),
            PEOPLE: f"{self.people} {before}{few}",
            PUBLISHED: f"{kept}. {self.noise}" if self.noise else kept + rare,
        }


def open_until(seq: int) -> Any:
    """Return the condition of requests that a release of this `seq` fulfils."""
    column = tables.request.c
    return and_(column.status == "in_progress", column.seq.is_not(None), column.seq <= seq)


@dataclass(frozen=True)
class Issue:
    """Issue the receipts that are due, some at a time. 200 with how many are left."""

    served: Served
    signer: Ed25519PrivateKey = field(repr=False)
    sum_now: Callable[[], str] | None = field(default=None, repr=False)
    """In the instant form: returns the digest of the sum, which no release states."""
    person: bytes | None = None
    about_signer: Mapping[str, str] = field(default_factory=about_signer)
    """Who runs the service and where its program is, as `rescind keys operator` was told."""

    def carry_out(self, batch: Batch) -> Answer:
        table = tables.request
        chosen = select(table).where(open_until(self.served.seq)).order_by(table.c.seq)
        rows = batch.tx.execute(chosen.limit(AT_ONCE + 1)).all()
        if not rows:
            return Answer(200, {"issued": 0, "more": False})
        previous, served = _last_receipt(batch), self.served
        if self.sum_now is not None:
            served = replace(served, sum_digest=self.sum_now())
        for row in rows[:AT_ONCE]:
            previous = self._issue(batch, served, row, previous) or previous
        return Answer(200, {"issued": len(rows[:AT_ONCE]), "more": len(rows) > AT_ONCE})

    def _issue(
        self, batch: Batch, served: Served, row: Row, previous: bytes | None
    ) -> bytes | None:
        """Issue one receipt and mark its request; return the receipt's bytes."""
        done: dict[str, Any] = {
            "status": "fulfilled",
            "level": served.level,
            "served_at": served.at,
            "release": served.number or None,
            "receipt_slot": None,
            "receipt_key": None,
        }
        receipt = None
        key = _key_of(batch, row)
        if key is None:  # nobody could open what another key would seal
            done["reason"] = KEY_GONE
        else:
            kept = kept_after({**row._mapping, **done, "issued_at": batch.now})
            issued = self._receipt(batch, served, row, key, previous, kept)
            receipt = canonical(issued.receipt)
            leaf = batch.append(ENTRY_TYPE + hashlib.sha256(receipt).digest())
            done |= {"receipt": receipt, "receipt_leaf": leaf, "issued_at": batch.now}
            batch.event("receipt", row.n, row.person, leaf, batch.next_seq())
        batch.tx.execute(update(tables.request).where(tables.request.c.id == row.id).values(done))
        if row.receipt_slot is not None:
            batch.destroy(row.receipt_slot)
        return receipt

    def _receipt(
        self,
        batch: Batch,
        served: Served,
        row: Row,
        key: bytes,
        previous: bytes | None,
        kept: Sequence[Kept],
    ) -> Issued:
        return issue(
            Asked(ASKED[row.kind], row.n, 1, row.asked),
            Done(
                method={"name": "Gram", **asdict(served.form)},
                unlearning="Subtract",
                level=served.level,
                world_before="",
                world_after="",
                model_before="",
                model_after=served.weights_digest,
                rounds=0,
                client_rounds=0,
                online={},
                seconds=max(0.0, (batch.now - row.received_at).total_seconds()),
            ),
            kept,
            served.findings or (Finding("audit", "UNAUDITED", note="Nothing was measured."),),
            not_covered=NOT_COVERED,
            claims={**served.claims, ENTRY: str(row.leaf), **self.about_signer},
            bound_claims={AFTER: served.sum_digest},
            previous=previous,
            signer=self.signer,
            at=batch.now,
            key=key,
        )


def kept_after(request: Mapping[str, Any]) -> tuple[Kept, ...]:
    """Return what the ledger keeps of a request that is fulfilled, with sizes.

    In few words: they are in the receipt twice, and it must stay small.
    request: its row, as it will be but for the receipt and its leaf
    """
    number = 0  # every number takes the same bytes
    row = _bytes(value for name, value in request.items() if name != "receipt") + _bytes([number])
    lines = [
        (number, number, request["person"], kind, number, number, against)
        for kind, against in ((request["kind"], number), ("receipt", None))
    ]
    found = [
        Kept("request", row, "What was asked, when, how many records; 3 years."),
        Kept("receipt", RECEIPT_BYTES, "This receipt; 3 years."),
        Kept("log", 2 * LEAF_BYTES, "Commitments under keys of the requester; for ever."),
        Kept("history", sum(map(_bytes, lines)), "What changed, when, how much; for ever."),
    ]
    if request["person"] is None:
        found.append(Kept("account", ACCOUNT_BYTES, "A random number; for ever."))
    return tuple(found)


def _bytes(values: Iterable[Any]) -> int:
    """Return how many bytes columns hold: texts and bytes their length, numbers and times 8."""
    plain = (value.encode() if isinstance(value, str) else value for value in values)
    return sum(len(v) if isinstance(v, bytes) else 8 for v in plain if v is not None)


def _key_of(batch: Batch, row: Row) -> bytes | None:
    if row.receipt_slot is None or row.receipt_key is None:
        return None
    bound = about(row.id, "request", "receipt_key")
    try:
        return batch.unseal(row.receipt_slot, bytes(row.receipt_key), bound)
    except DataError:
        return None


def _last_receipt(batch: Batch) -> bytes | None:
    table = tables.request
    chosen = select(table.c.receipt).where(table.c.receipt_leaf.is_not(None))
    found = batch.tx.scalar(chosen.order_by(table.c.receipt_leaf.desc()).limit(1))
    return None if found is None else bytes(found)


def used(request: Any, now: datetime) -> float:
    """Return how much of its time a request has used: 1 and more when it is late."""
    time: timedelta = request.expected_by - request.received_at
    return (now - request.received_at) / time if time else 1.0


def alarms(requests: Sequence[Any], now: datetime) -> Mapping[str, list[str]]:
    """Sort open requests by how much of their time is over: ids under late, urgent, half."""
    found: dict[str, list[str]] = {"late": [], "urgent": [], "half": []}
    for row in requests:
        over = used(row, now)
        name = "late" if over >= 1 else "urgent" if over >= URGENT else "half"
        if over >= HALF:
            found[name].append(row.id)
    return found
