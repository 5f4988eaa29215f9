"""What a receipt can state of a forgetting beyond its own word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rescind.errors import ConfigError

AFTER, BEFORE, OPEN = "sum after", "sum before", "outstanding"
"""Names of claims: digests of a sum, and how many devices still owe or have lost a part."""
PUBLISHED, NEXT, EPSILON = "published", "next release", "epsilon"
"""What devices are sent, when they are sent something newer, and what its noise promises."""
RELEASE, PEOPLE, ENTRY = "release", "people in the release", "log entry"
"""Of a running service: the first release without the records, how many accounts of the one before
have other loans in it, and the place of the request in the log."""

CASE, OPERATOR, SOFTWARE = "case", "operator", "software"
"""The operator's own number of the request, who they are (a name and a contact), and where a
requester gets this program."""
ITEMS = "items"
"""How many items a request is about. An item that somebody had twice is two records (rows)."""
CONFIRMED = "silos that confirmed"
"""Over silos: when each of them had nothing of the records any more."""
CLAIMED = "claimed by code"
"""Code from outside rescind that alone claims exactness: its files, each with its digest."""
_LONGEST = 250


def one_line(text: str, what: str) -> str:
    """Return a text that a receipt states; raise `ConfigError` unless it is one line of words."""
    if not text.strip() or not text.isprintable() or len(text) > _LONGEST:
        raise ConfigError(f"{what} must be one line of 1 to {_LONGEST} characters; got {text!r}.")
    return text.strip()


@dataclass(frozen=True)
class Claims:
    """Statements for a receipt that can be checked against the data that remains."""

    plain: Mapping[str, str] = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)
    """Digests of what remains. With public data they tell who is missing, so they are written under
    the run's key: whoever has the run can compute them again."""
    sealed: Mapping[str, str] = field(default_factory=dict)
    """Depends on the forgotten records: only digests under the requester's key are written."""
    not_covered: tuple[str, ...] = ()
    """What the forgetting does not reach, in words."""
