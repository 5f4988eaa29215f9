"""The whole story over HTTP: lend, release, take back, release, receipt, proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from databases import POSTGRES
from doors import House, opened
from rescind.ledger.backup import back_up
from rescind.ledger.fulfilment import Issue
from rescind.ledger.options import Options
from rescind.ledger.restore import restore
from rescind.proof.log_folder import RECEIPT, entry_of
from rescind.proof.notes import LOG, Key, Proof
from rescind.receipts.receipt import opened as exactly
from rescind.receipts.receipt import parse
from rescind.receipts.verify import verify
from rescind.service import chores, statuses
from rescind.service.problems import Problem

TAKEN = {"kind": "erase", "items": ["item-2"]}


def crowd(house: House, people: int = 15) -> None:
    """Let people lend items that five or more of them share: rarer ones are hidden."""
    for n in range(people):
        house.person(tuple(sorted({(n * 7 + step * 3) % 20 for step in range(10)})))


def check(house: House, told: dict, receipt: bytes, proof: str) -> None:
    """Check a receipt as its holder does: signature, key, log."""
    pinned = house.caller().get("/v1/keys").json()
    found = verify(receipt, {pinned["receipts"]: "pinned"})
    assert found.valid, [one.says for one in found.checks]
    exact = exactly(parse(receipt), bytes.fromhex(told["receipt_key"]))
    assert (exact.asked.records, exact.done.level) == (told["n"], "L3")
    log = Key.parse(pinned["log"], LOG)
    Proof.parse(proof).check(entry_of(RECEIPT, receipt), log)


def test_after_going_back_a_request_without_its_key_says_that_no_receipt_comes(
    tmp_path: Path,
) -> None:
    state, issued, waiting = tmp_path / "state", tmp_path / "issued.db", tmp_path / "waiting.db"
    with opened(state) as house:
        crowd(house)
        url = house.ledger.store.url
        database = None if house.ledger.store.sqlite else url.render_as_string(False)
        one = house.person((1, 2, 3)).post("/v1/me/requests", TAKEN).json()
        back_up(state, issued, database)
        house.release(house.operator())
        assert house.caller().get(f"{one['link']}/receipt").status_code == 200
    restore(state, issued, None, database)
    with opened(state) as house:
        other = house.person((1, 2, 3)).post("/v1/me/requests", TAKEN).json()
        back_up(state, waiting, database)
    restore(state, waiting, None, database)
    with opened(state) as house:
        ask = house.caller()
        early = ask.get(f"{one['link']}/receipt").json()
        assert "No receipt can be issued" in early["detail"], "also before the next release"
        assert "not issued yet" in ask.get(f"{other['link']}/receipt").json()["detail"], "control"
        house.release(house.operator())
        told = ask.get(one["link"]).json()
        assert (told["status"], told["level"], told["receipt"]) == ("fulfilled", "L3", False)
        assert "No receipt can be issued" in told["processing_details"]
        for paper in ("receipt", "proof"):
            refused = ask.get(f"{one['link']}/{paper}")
            assert refused.status_code == 404
            assert refused.json()["type"].endswith("no-receipt")
            assert "went back to a backup" in refused.json()["detail"]
            assert "issued before" in refused.json()["next"]
        other_told = ask.get(other["link"]).json()
        assert other_told["receipt"] is True, "control: its receipt was not issued before"
        assert "No receipt" not in other_told["processing_details"]
        receipt, proof = (ask.get(f"{other['link']}/{paper}") for paper in ("receipt", "proof"))
        check(house, other, receipt.content, proof.text)


@pytest.mark.parametrize("instant", [False, True])
def test_while_receipts_are_written_a_request_says_so(tmp_path, monkeypatch, instant: bool) -> None:
    found, real = [], Issue.carry_out
    with opened(tmp_path, Options(instant=instant)) as house:
        service, person = house.service, house.person((1, 4, 7))

        def look() -> tuple[dict, dict, str]:
            (row,) = house.ledger.reading.requests(person.id)
            with pytest.raises(Problem) as missing:
                statuses.receipt(service, row)
            seen = statuses.for_person(service, row), statuses.for_operator(service, row)
            return *seen, str(missing.value.__dict__)

        def written(self, batch):
            if house.ledger.reading.requests(person.id):
                found.append(look())
            return real(self, batch)

        monkeypatch.setattr(Issue, "carry_out", written)
        told = person.post("/v1/me/requests", {"kind": "erase", "items": ["item-7"]}).json()
        if not instant:
            before, listed, missing = look()
            assert "Served without it from the next release on" in before["processing_details"]
            assert "not issued yet" in missing
            assert (before["release"], listed["release"], listed["level"]) == (None, None, "L1")
            house.ledger.releases.make()
        ((during, listed, missing),) = found
        assert (during["status"], during["receipt"]) == ("in_progress", False)
        assert during["processing_details"] == statuses.WRITING
        assert "is being written" in missing
        number = None if instant else 1
        assert (during["release"], listed["release"]) == (number, number)
        assert ("served" in during["steps"]) is not instant
        after = person.get(f"/v1/me/requests/{told['request_id']}").json()
        assert (after["status"], after["receipt"]) == ("fulfilled", True)


def test_from_lending_to_a_receipt_with_proof(house: House) -> None:
    crowd(house)
    operator, person = house.operator(), house.person((1, 4, 7, 10, 13, 16))
    assert house.release(operator).status_code == 202
    listed = person.get("/v1/me/recommendations").json()
    assert (listed["kind"], listed["release"]) == ("release", 1)
    assert any(one["because"] for one in listed["items"])
    assert not {"score", "scores"} & set(listed["items"][0])
    told = person.post("/v1/me/requests", {"kind": "erase", "items": ["item-7"]}).json()
    assert person.get("/v1/me/recommendations").json()["release"] == 1
    key = "release-" + "k" * 16
    first, again = house.release(operator, key), house.release(operator, key)
    assert again.headers["Idempotent-Replay"] == "true"
    assert again.json() == first.json()
    assert house.ledger.releases.current.number == 2  # asked for twice, made once
    status = person.get(f"/v1/me/requests/{told['request_id']}").json()
    assert (status["status"], status["level"], status["release"]) == ("fulfilled", "L3", 2)
    receipt = house.caller().get(f"{told['link']}/receipt").content
    proof = house.caller().get(f"{told['link']}/proof").text
    check(house, told, receipt, proof)
    with pytest.raises(Exception, match=r"not at this place|does not|is not"):
        check(house, told, receipt, proof.replace("index ", "index 1", 1))


def test_a_release_is_made_when_it_is_due_and_told(tmp_path: Path) -> None:
    from streams import opened_stream

    with opened(tmp_path / "state", Options(people=3)) as house:
        person = house.person((1, 2, 3, 4, 5))
        assert chores.release_if_due(house.service) is False  # one of three
        crowd(house, 3)

        async def story():
            import asyncio

            async with opened_stream(person, "/v1/events") as stream:
                await stream.next()
                assert await asyncio.to_thread(chores.release_if_due, house.service)
                return await stream.next()

        assert '"number": 1' in house.runner.run(story())
        facts = person.get("/v1/release").json()
        assert facts["current"]["number"] == 1
        file = person.get(f"/v1/release/{facts['current']['digest']}")
        assert file.content.startswith(b"rescind1")
        assert "immutable" in file.headers["cache-control"]


def test_in_the_instant_form_everything_is_done_with_the_answer(tmp_path: Path) -> None:
    with opened(tmp_path / "state", Options(instant=True)) as house:
        crowd(house)
        person = house.person((1, 4, 7, 10, 13, 16))
        assert person.get("/v1/me/recommendations").json()["items"]
        answer = person.post("/v1/me/requests", {"kind": "erase", "items": ["item-7"]})
        told = answer.json()
        assert (answer.status_code, told["status"], told["level"]) == (200, "fulfilled", "L3")
        receipt = house.caller().get(f"{told['link']}/receipt").content
        check(house, told, receipt, house.caller().get(f"{told['link']}/proof").text)
        said = person.get("/v1/me").json()["service"]["said"]
        assert any("can tell what left" in sentence for sentence in said)
        assert "can tell what left" in house.caller().get("/").text


@pytest.mark.skipif(not POSTGRES, reason="PostgreSQL is tried with RESCIND_TEST_POSTGRES=1")
def test_with_postgres_nothing_is_in_a_file_of_sqlite(house: House) -> None:
    """The control of all others, which run on PostgreSQL, too."""
    house.person((1, 2, 3))
    assert not list(house.ledger.state.glob("ledger.db*"))
