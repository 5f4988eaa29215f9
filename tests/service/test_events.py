"""Server-sent events: a person hears of their own changes, an operator of counts and states."""

from __future__ import annotations

import json

from doors import House
from streams import opened_stream


def data(text: str) -> dict:
    line = next(one for one in text.splitlines() if one.startswith("data: "))
    return json.loads(line.removeprefix("data: "))


def test_a_person_hears_of_their_own_changes_only(house: House) -> None:
    mine, other = house.person((1, 2)), house.person((1, 2))

    async def story():
        async with opened_stream(mine, "/v1/events") as stream:
            assert stream.status == 200
            assert "retry:" in await stream.next()
            key = {"Idempotency-Key": "k" * 16}
            body = {"kind": "unshare", "items": ["item-1"]}
            await other.send("POST", "/v1/me/requests", json=body, headers=key)
            told = await mine.send("POST", "/v1/me/requests", json=body, headers=key)
            heard = await stream.next()
            assert "event: request" in heard
            assert data(heard)["request_id"] == told.json()["request_id"]
            assert "item" not in heard
            await mine.send("POST", "/v1/me/requests", json=body, headers=key)  # repeated
            house.service.released(7)
            assert data(await stream.next()) == {"number": 7}

    house.runner.run(story())


def test_an_operator_hears_states_without_people(house: House) -> None:
    operator, person = house.operator(), house.person((1, 2))

    async def story():
        async with opened_stream(operator, "/v1/events") as stream:
            await stream.next()
            body = {"kind": "unshare", "items": ["item-1"]}
            key = {"Idempotency-Key": "k" * 16}
            await person.send("POST", "/v1/me/requests", json=body, headers=key)
            heard = data(await stream.next())
            assert set(heard) == {"request_id", "status", "level"}
            assert person.id.hex() not in json.dumps(heard)

    house.runner.run(story())


def test_a_slow_listener_loses_the_oldest_events(house: House) -> None:
    from rescind.service.events import WAITING, Events

    async def story():
        events = Events(beat=1)
        events.start()
        stream = events.stream(b"x")
        await anext(stream)
        for n in range(WAITING + 5):
            events._hand_out(b"x", "change", {"n": n})
        assert data((await anext(stream)).decode()) == {"n": 5}
        await stream.aclose()

    house.runner.run(story())
