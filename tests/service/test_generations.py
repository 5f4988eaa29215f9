"""Generations over HTTP: started, followed, chosen, served, stale with a take-back."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from doors import House
from fabricated import made
from processes import Process

KEY = "generation-" + "k" * 16


def crowd(house: House, people: int = 12) -> None:
    for n in range(people):
        house.person(tuple(sorted({(n * 7 + step * 3) % 20 for step in range(10)})))


def test_a_chosen_generation_serves_until_somebody_takes_something_back(house: House) -> None:
    crowd(house)
    operator, person = house.operator(), house.person((1, 4, 7, 10, 13, 16))
    assert house.release(operator).status_code == 202
    job = made(house.ledger, list(house.ledger.live.loans))
    # control: nobody chose it, so the release is served
    assert person.get("/v1/me/recommendations").json()["kind"] == "release"
    chosen = operator.post("/v1/operator/serving", {"generation": job})
    assert (chosen.status_code, chosen.json()) == (200, {"generation": job})
    mine = person.get("/v1/me/recommendations").json()
    assert (mine["kind"], mine["items"][0]["id"]) == ("generation", "item-39")
    assert len(mine["items"]) == 20
    assert not {"item-1", "item-4"} & {one["id"] for one in mine["items"]}
    assert person.get("/v1/release").json()["generation"]["job"] == job
    newcomer = house.person((1, 2, 3, 4, 5, 6))  # it never learnt from them
    assert newcomer.get("/v1/me/recommendations").json()["kind"] == "release"

    person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-7"]})
    assert person.get("/v1/me/recommendations").json()["kind"] == "release"
    assert person.get("/v1/release").json()["generation"] is None
    refused = operator.post("/v1/operator/serving", {"generation": job})
    assert refused.status_code == 400
    assert "stale" in refused.json()["detail"]
    assert operator.get("/v1/operator/jobs").json()["jobs"][0]["stale"] is True


@pytest.mark.service
def test_one_is_started_once_and_followed_round_by_round(house: House) -> None:
    crowd(house)
    operator = house.operator()
    house.ledger.generations.nice = 0
    told: list[tuple[str, dict[str, Any]]] = []
    house.ledger.generations.tell = lambda what, facts: told.append((what, facts))
    asked = {"recipe": "FedShare", "rounds": 2}
    begun = operator.post("/v1/operator/jobs", asked, KEY)
    again = operator.post("/v1/operator/jobs", asked, KEY)
    assert (begun.status_code, again.headers["Idempotent-Replay"]) == (202, "true")
    job = begun.json()["job"]
    assert again.json()["job"] == job
    assert operator.get("/v1/operator/overview").json()["learning"]["job"] == job
    house.ledger.generations.wait()
    (listed,) = operator.get("/v1/operator/jobs").json()["jobs"]  # asked for twice, begun once
    assert (listed["id"], listed["state"], listed["rounds"]) == (job, "ready", 2)
    progress = operator.get(f"/v1/operator/jobs/{job}/rounds").json()["rounds"]
    assert [row["number"] for row in progress] == [2, 1]
    assert [what for what, _ in told] == ["round", "round", "generation"]
    (audit,) = operator.get("/v1/operator/audits").json()["audits"]
    assert (audit["job"], audit["verdict"]) == (job, "UNAUDITED")
    assert operator.get("/v1/operator/overview").json()["learning"] is None
    assert operator.post("/v1/operator/serving", {"generation": job}).status_code == 200


@pytest.mark.service
def test_killed_while_one_learns_the_next_start_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = Process(
        state, "--demo", "synthetic", scopes="read,jobs", failpoint="generation running:12"
    )
    job = first.call("/v1/operator/jobs", {"recipe": "FedShare", "rounds": 30})["job"]
    assert first.process.wait(120) == -signal.SIGKILL
    second = Process(state, scopes="read,jobs")
    try:
        (row,) = second.call("/v1/operator/jobs")["jobs"]
        assert row["id"] == job
        while row["state"] == "learning":
            time.sleep(1)  # another process has to get somewhere
            (row,) = second.call("/v1/operator/jobs")["jobs"]
        assert (row["state"], row["rounds"]) == ("ready", 30)
        assert second.call("/v1/operator/serving", {"generation": job}) == {"generation": job}
    finally:
        second.end()
