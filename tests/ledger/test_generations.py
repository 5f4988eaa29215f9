"""Generations: trained on the loans of one moment, sealed, resumable, stale with a take-back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from fabricated import AUDIT, made
from ledgers import done, joined, take_back
from rescind.errors import ConfigError, DataError
from rescind.ledger import generation_worker, tables
from rescind.ledger.book import Ledger
from rescind.ledger.generation_worker import Trainer, audited
from rescind.ledger.generations import SEED, Generations
from rescind.ledger.jobs import (
    CHECKPOINT,
    LISTS,
    EndJob,
    Precommit,
    StartJob,
    bound,
    file_of,
    precommitment,
)
from rescind.ledger.keyslots import unseal
from rescind.ledger.lending import Lend
from rescind.ledger.operators import Quarantine
from served import CATALOGUE, ITEMS, likes, opened, rows

LOANS = [np.array(likes(n), np.int32) for n in range(12)]
KEY = bytes(range(32))


def trainer(state: Path, job: str, rounds: int = 20) -> Trainer:
    facts = {
        "job": job,
        "recipe": "FedShare",
        "rounds": rounds,
        "seed": 0,
        "items": ITEMS,
        "state": str(state),
        "key": KEY.hex(),
    }
    return Trainer(facts, LOANS)


def lists_of(state: Path, job: str) -> bytes:
    return unseal(KEY, file_of(state, job, LISTS).read_bytes(), bound(job, LISTS))


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_killed_generation_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    trainer(tmp_path, "whole").run()
    look = Trainer._look

    def killed_at_13(self: Trainer, moment: Any) -> None:
        look(self, moment)
        if moment.now.state.round == 13:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_look", killed_at_13)
        with pytest.raises(Killed):
            trainer(tmp_path, "cut").run()
    again = trainer(tmp_path, "cut")
    assert again.fed.now.state.round == 10
    again.run()
    assert lists_of(tmp_path, "cut") == lists_of(tmp_path, "whole")
    trainer(tmp_path, "short", 10).run()  # control: other rounds give other lists
    assert lists_of(tmp_path, "short") != lists_of(tmp_path, "whole")
    assert not file_of(tmp_path, "cut", CHECKPOINT).exists()


def test_files_of_a_generation_are_sealed(tmp_path: Path, capsys: Any) -> None:
    trainer(tmp_path, "one", generation_worker.LOOK).run()
    box = file_of(tmp_path, "one", LISTS).read_bytes()
    assert lists_of(tmp_path, "one")[:40] not in box
    with pytest.raises(DataError):
        unseal(KEY, box, bound("two", LISTS))


def ready(ledger: Ledger) -> str:
    """Train a generation to its end; return its id."""
    ledger.generations.nice = 0
    job = ledger.generations.start("FedShare", 3).body["job"]
    ledger.generations.wait()
    return str(job)


def states(ledger: Ledger) -> list[str]:
    with ledger.store.reading() as tx:
        return list(tx.scalars(select(tables.job.c.state).order_by(tables.job.c.at)))


def test_a_generation_says_before_its_first_round_what_it_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaf is there when the process starts; another seed, loan or key gives another entry."""
    ledger, seen = opened(tmp_path / "state"), []
    for n in range(3):
        joined(ledger, *likes(n))

    def trained(self: Generations, row: Any, copied: Any, people: Any) -> Any:
        (known,) = rows(ledger, tables.job)
        seen.append((known, dict(copied.loans), self._parts.keys.get(row.key).key))
        return None, "not trained"

    monkeypatch.setattr(Generations, "_trained", trained)
    try:
        job = ledger.generations.start("Softmax", 3).body["job"]
        ledger.generations.wait()
        row, loans, key = seen[0]
        (entry,) = ledger.reading.entries(row.leaf, 1)
        assert entry == precommitment(job, "Softmax", 3, SEED, loans, key)
        assert entry[:1] == b"\x04"
        somebody = next(iter(loans))
        others = (
            precommitment(job, "Softmax", 3, SEED + 1, loans, key),
            precommitment(job, "FedShare", 3, SEED, loans, key),
            precommitment(job, "Softmax", 3, SEED, {**loans, somebody: loans[somebody][1:]}, key),
            precommitment(job, "Softmax", 3, SEED, loans, bytes(32)),
        )
        assert len({entry, *others}) == 5
        again = done(ledger, Precommit(job, entry)).body
        assert again == {"leaf": row.leaf}, "one that goes on does not commit twice"
        with pytest.raises(DataError, match="not those"):
            done(ledger, Precommit(job, others[2]))
    finally:
        ledger.close()


def test_a_generation_serves_until_somebody_takes_something_back(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    people = [joined(ledger, *likes(n)) for n in range(12)]
    job = ready(ledger)
    assert states(ledger) == ["ready"]
    progress = rows(ledger, tables.round_)
    assert [row.number for row in progress] == [1, 2, 3]
    assert all(row.asked == 12 and row.seconds > 0 for row in progress)
    assert 0 <= progress[-1].value <= 1
    own = ledger.live.of(people[0])
    assert ledger.generations.recommend(people[0], own) is None  # the operator has not chosen it
    ledger.generations.choose(job)
    mine = ledger.generations.recommend(people[0], own, 10)
    assert mine is not None
    assert len(mine) == 10
    assert not set(mine) & set(own.tolist())
    assert CATALOGUE.ids[mine[0]].encode() not in file_of(state, job, LISTS).read_bytes()
    late = joined(ledger, *likes(20))  # control: lending makes nothing stale
    assert ledger.generations.recommend(people[0], own, 10) == mine
    assert ledger.generations.recommend(late, ledger.live.of(late), 10) is None
    (row,) = rows(ledger, tables.job)
    done(ledger, take_back(people[3], "unshare", likes(3)[0]))
    assert ledger.generations.recommend(people[0], own, 10) is None
    done(ledger, Lend(people[3], (likes(3)[0],)))  # after the job's own end
    assert states(ledger) == ["stale"]
    with pytest.raises(DataError, match="destroyed"):
        ledger.keys.get(row.key)
    assert not list(state.glob("generation-*"))
    with pytest.raises(ConfigError, match="cannot be served"):
        ledger.generations.choose(job)
    ledger.close()


def test_a_start_ends_a_generation_that_learnt_from_what_was_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    people = [joined(ledger, *likes(n)) for n in range(3)]
    done(ledger, StartJob("FedShare", 3, lambda job, seq: None))
    (row,) = rows(ledger, tables.job)
    done(ledger, EndJob(row.id, "ready"))
    file_of(state, row.id, LISTS).write_bytes(b"sealed")
    done(ledger, take_back(people[0], "unshare", likes(0)[0]))  # nobody looks out: as in a crash
    assert states(ledger) == ["ready"]
    ledger.close()
    again = opened(state)
    assert states(again) == ["stale"]
    assert not list(state.glob("generation-*"))
    with pytest.raises(DataError, match="destroyed"):
        again.keys.get(row.key)
    again.close()


@pytest.mark.slow
def test_a_take_back_while_it_learns_makes_it_begin_anew(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(12)]
    ledger.generations.nice = 0
    first = ledger.generations.start("FedShare", 400).body["job"]
    while not rows(ledger, tables.round_):
        time.sleep(0.05)  # another process has to get somewhere
    done(ledger, take_back(people[0], "unshare"))
    ledger.generations.wait()
    assert states(ledger) == ["stale", "ready"]
    (row,) = [one for one in rows(ledger, tables.job) if one.id != first]
    ledger.generations.choose(row.id)
    served = ledger.generations.served()
    assert served is not None
    assert people[0] not in served.place
    assert people[1] in served.place
    ledger.close()


def test_bad_recipes_and_a_second_one_at_a_time_are_refused(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    for recipe, rounds, words in (("Nothing", 3, "no recipe"), ("FedShare", 0, "rounds")):
        with pytest.raises(ConfigError, match=words):
            ledger.generations.start(recipe, rounds)
    done(ledger, StartJob("FedShare", 3, lambda job, seq: None))
    with pytest.raises(ConfigError, match="learning already"):
        ledger.generations.start("FedShare", 3)
    ledger.close()


def test_only_an_audited_generation_serves(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(3)]
    finding = replace(AUDIT, check="taken back", n=120)
    for verdict, served in (("PASS", True), ("UNAUDITED", True), ("FAIL", False), ("VOID", False)):
        job = made(ledger, people, replace(finding, verdict=verdict))
        if served:
            ledger.generations.choose(job)
            found = ledger.generations.served()
            assert found is not None
            assert found.job == job
            continue
        with pytest.raises(ConfigError, match=f"says {verdict}"):
            ledger.generations.choose(job)
    with pytest.raises(ConfigError, match="says nothing"):
        ledger.generations.choose(made(ledger, people, None))
    verdicts = [row.verdict for row in rows(ledger, tables.audit)]
    assert verdicts == ["PASS", "UNAUDITED", "FAIL", "VOID"]
    ledger.close()


def test_a_quarantine_makes_a_generation_stale(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(3)]
    ledger.generations.choose(made(ledger, people, AUDIT))
    done(ledger, Lend(people[1], (0, 1)))  # control: lending does not
    assert ledger.generations.served() is not None
    done(ledger, Quarantine(people[0], "cheats"))
    assert ledger.generations.served() is None
    ledger.close()


@pytest.mark.slow
def test_the_audit_tells_a_generation_that_still_knows_what_was_taken_back() -> None:
    """Train on two worlds: without the records it passes, with them it fails."""
    everything = [np.array(likes(n, 60), np.int32) for n in range(120)]
    gone = [one[::4] for one in everything]
    pairs = zip(everything, gone, strict=True)
    kept = [np.setdiff1d(one, back).astype(np.int32) for one, back in pairs]

    def trained(loans: Any, seed: int) -> Any:
        return generation_worker.federation(loans, 60, "FedShare", seed).run(60)

    honest = audited(trained(kept, 0), kept, gone, 60, 0, trained)
    cheat = audited(trained(everything, 0), kept, gone, 60, 0, trained)
    few = audited(trained(kept, 0), kept[:3], gone[:3], 60, 0, trained)
    found = (honest.verdict, cheat.verdict, few.verdict)
    assert found == ("PASS", "FAIL", "UNAUDITED"), (honest, cheat)
