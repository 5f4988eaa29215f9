"""How long an answer to a request may take, counted by the calendar (GDPR Art. 12(3))."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime

LONGEST = 3
"""Months: no answer may take longer: one month, and two more where requests are complex or many."""


def months_after(received: date, months: int) -> date:
    """Return the same day some months later, or the last of that month, as GDPR Art. 12(3) counts.

    Days would not do: 30 of them are too late in February, and 93 are more than three months.
    """
    years, before = divmod(received.month - 1 + months, 12)
    year, month = received.year + years, before + 1
    day = min(received.day, monthrange(year, month)[1])
    return received.replace(year=year, month=month, day=day)


def beyond_the_law(received: datetime, due: datetime) -> str:
    """Say if a request is due later than the law allows; '' if not."""
    came = received.astimezone(UTC).date()
    if due.astimezone(UTC).date() <= months_after(came, LONGEST):
        return ""
    return (
        f"that is more than three months after it was received ({came}): Article 12(3) GDPR allows "
        f"no more"
    )
