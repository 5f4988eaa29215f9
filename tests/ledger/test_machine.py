"""The ledger as a machine: whatever people do in whatever order, it holds what a dictionary does.

On both databases, with the live sum itself: the same loans, the same digest, the same log.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledgers import CATALOGUE, START, difference, done, kept, lent, repeating
from rescind.errors import ConsentError
from rescind.ledger.book import Ledger
from rescind.ledger.lending import Join, Lend, TakeBack
from rescind.ledger.tables import named_slots
from rescind.methods.additive._live_sum import added_up

ITEMS = st.lists(st.integers(0, len(CATALOGUE) - 1), min_size=1, max_size=6, unique=True)


class LedgerMachine(RuleBasedStateMachine):
    """Two ledgers do the same where there are two databases; the model is a dictionary."""

    databases: tuple[str | None, ...] = (None,)

    @initialize()
    def open_all(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.now = START
        self.draws = [repeating() for _ in self.databases]
        self.ledgers: list[Ledger] = []
        self.model: dict[bytes, set[int]] = {}
        self.kept: dict[bytes, set[int]] = {}
        self.left: list[bytes] = []
        self.keys: list[tuple[str, Any, int]] = []
        self.count = 0
        self._open()

    def _open(self) -> None:
        for number, database in enumerate(self.databases):
            self.ledgers.append(
                Ledger.open(
                    Path(self.folder.name) / str(number),
                    catalogue=CATALOGUE,
                    database=database,
                    clock=lambda: self.now,  # how often it is looked at differs
                    entropy=self.draws[number],
                )
            )

    def _do(self, operation: Any) -> dict[str, Any]:
        self.count += 1
        self.now += timedelta(minutes=7)
        key = f"machine-{self.count:012d}"
        answers = [done(ledger, operation, key) for ledger in self.ledgers]
        assert len({(a.status, str(_told(a))) for a in answers}) == 1
        self.keys.append((key, operation, answers[0].status))
        return dict(answers[0].body)

    def _somebody(self, number: int) -> bytes:
        return sorted(self.model)[number % len(self.model)]

    @rule()
    def join(self) -> None:
        person = bytes.fromhex(self._do(Join())["person"])
        self.model[person], self.kept[person] = set(), set()

    @precondition(lambda self: self.model)
    @rule(number=st.integers(0, 99), items=ITEMS)
    def lend(self, number: int, items: list[int]) -> None:
        person = self._somebody(number)
        told = self._do(Lend(person, tuple(items)))
        self.model[person] |= set(items)
        self.kept[person] -= set(items)  # it is counted once
        assert told["lent"] == len(self.model[person])

    @precondition(lambda self: self.model)
    @rule(number=st.integers(0, 99), items=ITEMS)
    def contribute(self, number: int, items: list[int]) -> None:
        person = self._somebody(number)
        wanted = difference(person, self.kept[person], items)
        if set(items) & self.model[person]:
            with pytest.raises(ConsentError):
                self._do(wanted)
        else:
            assert self._do(wanted)["kept"] == len(items)
            self.kept[person] = set(items)

    @precondition(lambda self: self.model)
    @rule(number=st.integers(0, 99), items=ITEMS, kind=st.sampled_from(["unshare", "erase"]))
    def take_back(self, number: int, items: list[int], kind: str) -> None:
        person = self._somebody(number)
        if set(items) <= self.model[person] | self.kept[person]:
            self._do(TakeBack(person, kind, tuple(items)))
            self.model[person] -= set(items)
            self.kept[person] -= set(items)
        else:
            with pytest.raises(ConsentError):
                self._do(TakeBack(person, kind, tuple(items)))

    @precondition(lambda self: any(self.model.values()))
    @rule(number=st.integers(0, 99))
    def take_everything_back(self, number: int) -> None:
        lending = sorted(person for person, items in self.model.items() if items)
        person = lending[number % len(lending)]
        there = self.model[person] | self.kept[person]
        assert self._do(TakeBack(person, "unshare"))["n"] == len(there)
        self.model[person], self.kept[person] = set(), set()

    @precondition(lambda self: self.model)
    @rule(number=st.integers(0, 99))
    def leave(self, number: int) -> None:
        person = self._somebody(number)
        self._do(TakeBack(person, "leave"))
        del self.model[person], self.kept[person]
        self.left.append(person)

    @precondition(lambda self: self.keys)
    @rule(number=st.integers(0, 999))
    def repeat_a_key(self, number: int) -> None:
        key, operation, status = self.keys[number % len(self.keys)]
        for ledger in self.ledgers:
            again = done(ledger, operation, key)
            assert again.replayed
            assert again.status == status

    @rule()
    def restart(self) -> None:
        roots = [ledger.tree.root() for ledger in self.ledgers]
        for ledger in self.ledgers:
            ledger.close()
        self.ledgers = []
        self._open()
        assert [ledger.tree.root() for ledger in self.ledgers] == roots
        assert all(ledger.report.keys_destroyed <= 1 for ledger in self.ledgers)

    @invariant()
    def it_is_the_dictionary(self) -> None:
        if not getattr(self, "ledgers", None):
            return
        both = [*self.model.values(), *self.kept.values()]
        parts = [np.array(sorted(items), np.int32) for items in both]
        digest = added_up(parts, len(CATALOGUE)).digest()
        for ledger in self.ledgers:
            assert ledger.live.digest() == digest
            assert all(lent(ledger, p) == sorted(items) for p, items in self.model.items())
            assert all(kept(ledger, p) == sorted(items) for p, items in self.kept.items())
            with ledger.store.reading() as connection:
                # The key of this hour's answers may have no answer yet.
                assert len(ledger.keys.ids - named_slots(connection)) <= 1
                assert not named_slots(connection) - ledger.keys.ids
        assert len({ledger.tree.root() for ledger in self.ledgers}) == 1

    def teardown(self) -> None:
        for ledger in getattr(self, "ledgers", []):
            ledger.close()
        with suppress(AttributeError):
            self.folder.cleanup()


def _told(answer: Any) -> dict[str, Any]:
    return {name: answer.body[name] for name in answer.body if name != "steps"}


TestSmall = LedgerMachine.TestCase
TestSmall.settings = settings(max_examples=3, stateful_step_count=12, deadline=None)


@pytest.mark.service
def test_the_machine_on_sqlite() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        LedgerMachine, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
    )


@pytest.mark.service
def test_the_machine_on_both_databases_writes_one_log(postgres: str) -> None:
    from hypothesis.stateful import run_state_machine_as_test
    from sqlalchemy import create_engine, make_url

    from rescind.ledger import tables

    class Both(LedgerMachine):
        databases = (None, postgres)

        def teardown(self) -> None:
            super().teardown()
            engine = create_engine(make_url(postgres).set(drivername="postgresql+psycopg"))
            with engine.begin() as connection:
                for table in tables.metadata.tables.values():
                    connection.execute(table.delete())
            engine.dispose()

    run_state_machine_as_test(
        Both, settings=settings(max_examples=10, stateful_step_count=20, deadline=None)
    )
