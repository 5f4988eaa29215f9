"""What a ledger holds, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

from rescind.core.deadlines import LONGEST, months_after
from rescind.errors import RescindError

KINDS = ("leave", "erase", "unshare", "nodes", "edges", "labels")
"""What can be asked. The last three name parts of a graph, by the numbers of nodes."""
UNREAD = "unread"
"""The kind of what came and cannot be read as a request."""
STEPS = ("asked", "hidden", "unlearnt", "purged", "checked", "signed", "logged")
"""What answers a request, in this order; each is done once and can be begun again."""
ERASED, ROWS_ONLY, REPEATED = "ERASED", "ROWS_ONLY", "REPEATED"
ALREADY_GONE, WAITING, REFUSED = "ALREADY_GONE", "WAITING", "REFUSED"
OUTCOMES = {
    ERASED: "The records are gone from the data and from every model; the receipt says how.",
    ROWS_ONLY: "The rows are deleted; no model had learnt them.",
    REPEATED: "Answered before: the earlier receipt is the answer.",
    ALREADY_GONE: "Nothing was left of them. They stay away from now on.",
    WAITING: "Some holder is away. What can be done is done; give the same command again.",
    REFUSED: "Not possible as it was asked; nothing was changed.",
}
"""What a request comes to."""
DONE = (ERASED, ROWS_ONLY, REPEATED, ALREADY_GONE)
Records = Mapping[str, "tuple[str, ...] | None"]
"""Items by user, as original ids. None: everything of this user."""


class Refused(RescindError):
    """A request cannot be answered as it was asked; `code` says why, for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} Nothing was changed.")
        self.code = code


@dataclass(frozen=True)
class Request:
    """A request of one person, or of several who are answered together."""

    id: str
    dataset: str
    """The name of imported data, or `run:ID` of a run on published data."""
    kind: str
    """One of `KINDS`."""
    records: Records
    """Whom it is about. Empty when it is answered: the ledger keeps keyed digests alone."""
    received: datetime
    due: datetime
    case: str = ""
    """The operator's number."""
    source: str = ""
    """From where it came: a file, a command, a service."""
    audit: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of experimenters: an unlearner and its settings, devices that are away."""
    key: bytes = field(default=b"", repr=False)
    """The requester's key. It goes with the records."""
    outcome: str = ""
    """One of `OUTCOMES`; "" while it is open."""
    code: str = ""
    reason: str = ""
    answered: datetime | None = None
    receipt: str = ""
    """The digest of the receipt that answers it."""

    @property
    def open(self) -> bool:
        """Return whether somebody still waits for an answer."""
        return self.outcome not in DONE

    @property
    def late(self) -> bool:
        """Return whether it was answered after its day, or is still open then."""
        return (self.answered or datetime.now(UTC)) > self.due

    @property
    def everything(self) -> bool:
        """Return whether all of each person is meant."""
        return all(items is None for items in self.records.values())

    def facts(self) -> dict[str, Any]:
        """Return what a command prints as JSON. A reason may name the person, nothing else does."""
        return {
            "id": self.id,
            "dataset": self.dataset,
            "kind": self.kind,
            "received": self.received.isoformat(timespec="seconds"),
            "due": self.due.isoformat(timespec="seconds"),
            "case": self.case,
            "outcome": self.outcome or "open",
            "code": self.code,
            "reason": self.reason,
            "answered": self.answered and self.answered.isoformat(timespec="seconds"),
            "late": self.late,
            "receipt": self.receipt,
        }


@dataclass(frozen=True)
class Copy:
    """A copy of the data of a dataset, or a model that was learnt from it."""

    id: str
    dataset: str
    kind: str
    """table, run, silo, saved: which holder knows how to look and to erase."""
    address: str
    """Where it is: a path."""
    facts: Mapping[str, Any] = field(default_factory=dict)


def times_of(
    received: datetime | None, due: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    """Return when a request came and is due: one calendar month by default, three at most.

    GDPR Art. 12(3). A period ends with the last hour of its last day.
    """
    since = received or now
    if since.astimezone(UTC).date() > now.astimezone(UTC).date():
        raise Refused("date", f"received {since:%Y-%m-%d} has not come yet. Write the day it came.")
    first = min(since.date(), since.astimezone(UTC).date())
    until = due or end_of(months_after(first, 1))
    latest = months_after(first, LONGEST)
    if until < since or until.astimezone(UTC).date() > latest:
        raise Refused(
            "date", f"due {until:%Y-%m-%d} must lie between {first} and {latest}, three months on."
        )
    return since, until


def end_of(day: date) -> datetime:
    """Return the end of a day in UTC."""
    return datetime.combine(day, time.max, UTC)
