"""The one grammar of requests: options, CSV, JSON, days."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from requesting import write_rows
from rescind.errors import RescindError
from rescind.home.request import KINDS, end_of, times_of
from rescind.requests.words import in_file, in_mapping, in_options, in_table

NOW = datetime(2026, 3, 31, 15, tzinfo=UTC)


def refused(call: Any, *given: Any, code: str = "") -> None:
    with pytest.raises(RescindError) as wrong:
        call(*given)
    assert not code or wrong.value.code == code


@pytest.mark.parametrize("kind", ["leave", "erase", "unshare"])
def test_options_name_people_and_items(kind: str) -> None:
    assert in_options(kind, ["7", "8", "7"]).records == {"7": None, "8": None}
    if kind == "leave":
        refused(in_options, kind, ["7"], ["50"])
    else:
        assert in_options(kind, ["7"], ["50", "51", "50"]).records == {"7": ("50", "51")}
        refused(in_options, kind, ["7", "8"], ["50"])
    refused(in_options, kind, [])


def test_a_kind_that_is_none_is_refused() -> None:
    refused(in_options, "delete", ["7"])


def test_parts_of_a_graph_need_no_person() -> None:
    assert in_options("nodes", (), ["12", "40"]).records == {"": ("12", "40")}


@pytest.mark.parametrize(
    ("header", "rows", "records"),
    [
        ("user,item", [("7", "50"), ("8", "1"), ("7", "51"), ("7", "50")],
         {"7": ("51", "50"), "8": ("1",)}),
        ("item,user", [("50", "7")], {"7": ("50",)}),
        (" User , ITEM ", [(" 7 ", "50")], {"7": ("50",)}),
        ("user", [("7",), ("8",)], {"7": None, "8": None}),
        ("\ufeffuser", [("7",)], {"7": None}),
    ],
)  # fmt: skip
def test_a_table_names_pairs_or_people(tmp_path: Path, header, rows, records) -> None:
    read = in_table(write_rows(tmp_path / "asked.csv", rows, header), "erase")
    assert (read.records, read.source, read.kind) == (records, "asked.csv", "erase")


@pytest.mark.parametrize(
    "text",
    [
        "user,item\n7,50\n8\n",  # a damaged line must not erase a whole user
        "user,item\n7,\n",
        "user,item\n,50\n",
        "user,thing\n7,50\n",
        "user,user\n7,8\n",
        "user,item\n",
        "",
        'user,item\n7,"50\n',
        "user;item\n7;50\n",
    ],
)
def test_a_damaged_table_is_refused_as_a_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "asked.csv"
    path.write_text(text)
    refused(in_table, path, "erase")
    refused(in_table, tmp_path / "missing.csv", "erase")


@pytest.mark.parametrize(
    ("table", "kind", "records"),
    [
        ({"leave": "7"}, "leave", {"7": None}),
        ({"erase": "7"}, "erase", {"7": None}),
        ({"erase": {"user": "7", "items": ["50", "51", "50"]}}, "erase", {"7": ("50", "51")}),
        ({"unshare": {"user": "7"}}, "unshare", {"7": None}),
        ({"kind": "erase", "user": "7", "items": ["50"]}, "erase", {"7": ("50",)}),
        ({"kind": "leave", "user": "7"}, "leave", {"7": None}),
    ],
)
def test_json_is_read_short_or_long(table: Any, kind: str, records: Any) -> None:
    words = in_mapping(table)
    assert (words.kind, words.records) == (kind, records)


@pytest.mark.parametrize(
    "table",
    [
        [], "leave", {}, {"take_back": "7"}, {"leave": "7", "erase": "7"}, {"leave": 7},
        {"leave": ""}, {"leave": {"user": "7", "items": ["50"]}},
        {"erase": {"user": "7", "items": []}},
        {"erase": {"user": "7", "items": [50]}}, {"erase": {"user": "7", "items": "50"}},
        {"leave": "7", "received": "yesterday"}, {"leave": "7", "due": "31.3.2026"},
        {"leave": "7", "whoever": "8"}, {"kind": "delete", "user": "7"}, {"leave": None},
    ],
)  # fmt: skip
def test_json_that_is_no_request_is_refused(table: Any) -> None:
    refused(in_mapping, table)


@pytest.mark.parametrize(
    "table",
    [
        {"erase": {"user": "7", "item": ["50"]}},
        {"erase": {"user": "7", "kind": "unshare"}},
        {"erase": {"user": "7", "case": "1"}},
        {"erase": "7", "items": ["50"]},
        {"erase": {"user": "7"}, "items": ["50"]},
        {"erase": "7", "kind": "unshare"},
    ],
)
def test_a_word_that_would_be_overlooked_erases_nothing(table: Any) -> None:
    refused(in_mapping, table)


def test_a_file_gives_its_name_as_the_case_and_its_day_as_the_day_it_came(tmp_path: Path) -> None:
    path = tmp_path / "DSR-117.json"
    path.write_text(json.dumps({"leave": "7"}))
    read = in_file(path)
    assert (read.case, read.source) == ("DSR-117", "DSR-117.json")
    assert read.received == datetime.fromtimestamp(path.stat().st_mtime, UTC)
    path.write_text(json.dumps({"leave": "7", "case": "12", "received": "2026-03-01"}))
    read = in_file(path)
    assert (read.case, read.received) == ("12", datetime(2026, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"leave":'),
        ("a.json", '{"leave": "7", "leave": "8"}'),
        ("a.json", '{"erase": {"user": "7", "user": "8"}}'),
        ("a.json", "{“leave”: “7”}"),
        ("a.txt", '{"leave": "7"}'),
        ("a.json", "[" * 100_000),
    ],
)
def test_a_file_that_is_no_request_is_refused_and_named(tmp_path: Path, name, text) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RescindError, match=name):
        in_file(path)


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-01-31", "2026-02-28"),
        ("2028-01-31", "2028-02-29"),
        ("2026-02-28", "2026-03-28"),
        ("2025-12-15", "2026-01-15"),
    ],
)
def test_a_request_is_due_after_one_calendar_month_with_the_end_of_that_day(received, due) -> None:
    since = datetime.fromisoformat(received).replace(tzinfo=UTC)
    assert times_of(since, None, datetime(2029, 1, 1, tzinfo=UTC)) == (
        since,
        end_of(date.fromisoformat(due)),
    )


def test_an_hour_of_elsewhere_counts_from_the_earlier_of_both_days() -> None:
    since = datetime.fromisoformat("2026-03-02T01:00:00+09:00")  # 1 March, 16:00 in UTC
    assert times_of(since, None, NOW)[1] == end_of(date(2026, 4, 1))


def test_days_that_cannot_be_are_refused() -> None:
    refused(times_of, NOW + timedelta(days=1), None, NOW, code="date")
    refused(times_of, NOW, NOW - timedelta(days=1), NOW, code="date")
    latest = end_of(date(2026, 6, 30))  # three months after 31 March
    assert times_of(NOW, latest, NOW)[1] == latest
    refused(times_of, NOW, latest + timedelta(seconds=1), NOW, code="date")
    assert times_of(NOW + timedelta(hours=8), None, NOW)[0] > NOW, "later today has come"


def test_every_kind_is_a_word_of_the_grammar() -> None:
    for kind in KINDS[:3]:
        assert in_mapping({kind: "7"}).kind == kind
