"""The longest time that an answer may take is counted by the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rescind.core.deadlines import beyond_the_law


@pytest.mark.parametrize(
    ("received", "last"),
    [
        (datetime(2026, 11, 10, 9), datetime(2027, 2, 10, 23, 59)),  # 92 days
        (datetime(2025, 11, 30, 9), datetime(2026, 2, 28, 23, 59)),  # 90 days
        (datetime(2026, 7, 18, 9), datetime(2026, 10, 18, 23, 59)),
    ],
)
def test_three_months_after_a_request_are_allowed_and_not_a_day_more(received, last):
    came, due = received.replace(tzinfo=UTC), last.replace(tzinfo=UTC)
    assert beyond_the_law(came, due) == ""
    said = beyond_the_law(came, due + timedelta(minutes=1))
    assert "more than three months after it was received" in said
    assert f"({received:%Y-%m-%d})" in said
    assert "Article 12(3) GDPR allows no more" in said


def test_days_are_those_in_utc():
    here = timezone(timedelta(hours=10))
    came = datetime(2026, 11, 11, 5, tzinfo=here)  # the 10th in UTC
    assert "(2026-11-10)" in beyond_the_law(came, datetime(2027, 2, 11, 1, tzinfo=UTC))
    assert beyond_the_law(came, datetime(2027, 2, 11, 5, tzinfo=here)) == ""
