"""Events written to files, to the wire and into receipts: one codec, and nothing is lost."""

from __future__ import annotations

import json

import pytest
import torch

from rescind.core.labels import Labels
from rescind.core.records import (
    Anew,
    Arrive,
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Join,
    Records,
    Share,
    Unshare,
    Withdraw,
)
from rescind.core.world import Host
from rescind.errors import DataError
from rescind.storage.events import (
    KINDS,
    event_text,
    pack_event,
    pack_events,
    read_event,
    unpack_event,
    unpack_events,
)
from worlds import tiny_holdings

SOME = Records.of([1, 2], [3, 4], [5, 6])
EVENTS: tuple[Event, ...] = (
    Share(SOME),
    Unshare(SOME),
    Erase(SOME),
    EraseLabels(SOME),
    EraseEdges(SOME),
    Anew(SOME),
    Join(3),
    Withdraw(7),
    Arrive(SOME, torch.tensor([0, 2], dtype=torch.int8), 9, 12),
    Host(11, tiny_holdings()),
)


def test_every_kind_of_event_is_tried() -> None:
    assert {type(event).__name__ for event in EVENTS} == set(KINDS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_packing(event: Event) -> None:
    assert unpack_event(*pack_event(event)) == event


def test_several_events_keep_their_order() -> None:
    assert unpack_events("owed", *pack_events("owed", EVENTS)) == list(EVENTS)


@pytest.mark.parametrize(
    "event", [Unshare(SOME), Erase(SOME), EraseEdges(SOME), Withdraw(7)], ids=str
)
def test_a_request_survives_its_text(event: Event) -> None:
    assert read_event(event_text(event)) == event
    assert read_event(event_text(event)) != Erase(SOME[:1])


def test_the_text_of_a_request_without_names() -> None:
    assert event_text(Erase(SOME)) == (
        '{"kind": "Erase", "client": [1, 2], "item": [3, 4], "time": [5, 6]}\n'
    )
    assert event_text(Withdraw(7)) == '{"kind": "Withdraw", "client": 7}\n'


NAMES = Labels(users=("anna", "ben", "cem"), items=("film a", "film b", "c", "d", "e"))
RATED = Records.of([1, 2], [3, 4], [1, 2], torch.tensor([4.5, 1.0]))


@pytest.mark.parametrize("labels", [None, NAMES], ids=["indices", "original ids"])
@pytest.mark.parametrize(
    "event", [Erase(RATED), Unshare(RATED), EraseEdges(RATED), Withdraw(2)], ids=str
)
def test_a_request_with_ratings_survives_its_text(event: Event, labels: Labels | None) -> None:
    text = event_text(event, labels)
    assert read_event(text).digest(b"key") == event.digest(b"key")
    assert "rating" not in text, "no digest covers it"


def test_a_request_names_users_and_items_as_people_know_them() -> None:
    table = json.loads(event_text(EraseEdges(RATED), NAMES))
    assert (table["user"], table["item"], table["to"]) == (
        ["ben", "cem"], ["d", "e"], ["film b", "c"],
    )  # fmt: skip
    assert json.loads(event_text(Withdraw(2), NAMES))["user"] == "cem"
    for wrong in ({**table, "item": ["d"]}, {**table, "more": 1}, {**table, "inner": [1]}):
        with pytest.raises(DataError, match="not a request"):
            read_event(json.dumps(wrong))


def test_what_is_not_an_event_is_refused() -> None:
    class Odd(Event):
        pass

    with pytest.raises(DataError, match="Odd cannot be saved"):
        pack_event(Odd())
    with pytest.raises(DataError, match="unknown event 'Odd'"):
        unpack_event({}, {"kind": "Odd"})
