"""Federations are values, and files are whole, whatever interrupts those who make new ones."""

from __future__ import annotations

import pytest
import torch

import rescind as rs
from interrupting import ERRORS, Interrupt
from rescind.core import versions
from rescind.core.files import write_atomically
from rescind.core.records import Withdraw
from rescind.core.versions import Version

ROWS = versions.SMALL + 1


def big_table() -> Version:
    """A table whose newer versions write into it."""
    return Version(torch.zeros(ROWS, 1), seen=False)


def interrupted_writes() -> set[str]:
    """Interrupt the second write to a table at every bytecode; return what the first then reads."""
    at, found, ids = 1, set[str](), torch.arange(4)
    while True:
        first = big_table().write(ids, torch.ones(4, 1))
        interrupt = Interrupt(at, "opcode", ("core/versions.py", "core/test_interrupts.py"))
        with interrupt.during():
            first.write(ids[:2], torch.full((2, 1), 7.0))
        if not interrupt.raised:
            return found
        found.add(reads(first, ids))
        at += 1


def reads(version: Version, ids: torch.Tensor) -> str:
    if version._table is None and (version._other is version or not hasattr(version, "_rows")):
        return "it has no table"  # it would look for one without end
    return str(version.read(ids).flatten().tolist())


def test_an_old_version_of_a_table_stays_what_it_was():
    assert interrupted_writes() == {"[1.0, 1.0, 1.0, 1.0]"}


def test_control_where_a_version_gives_its_table_away_first_it_is_lost(monkeypatch):
    def differ(self, other, ids, rows):
        self._table, self._other, self._ids, self._rows = None, other, ids, rows
        return self

    monkeypatch.setattr(Version, "_differ", differ)
    assert "it has no table" in interrupted_writes()


@pytest.fixture(scope="module")
def federation():
    data = rs.load("synthetic", users=12, items=16, interactions=90)
    return rs.simulate_lending(rs.Federation.start(data, rs.methods.Gram(), seed=0)).run(1)


def seen(fed) -> tuple[object, ...]:
    public = {name: value.tolist() for name, value in fed.now.state.public.items()}
    own = {name: value.tolist() for name, value in fed.now.state.own.items()}
    return public, own, fed.now.vault.holdings.digest(), fed.world.digest(), len(fed.events)


def test_follow_leaves_the_federation_it_starts_from_as_it_was(federation):
    event, within = Withdraw(3), ("rescind/methods/additive/_", "core/holdings", "core/federation")
    before, after = seen(federation), seen(federation.method.follow(federation, event))
    assert before != after, "control: something that can differ"
    at = 1
    while True:
        interrupt = Interrupt(at, "line", within)
        with interrupt.during():
            federation.method.follow(federation, event)
        assert seen(federation) == before
        if not interrupt.raised:
            break
        if at % 10 == 1:
            assert seen(federation.method.follow(federation, event)) == after
        at += 7
    assert at > 100


@pytest.mark.parametrize("kind", ["line", "opcode"])
def test_a_file_is_the_old_or_the_new_one(tmp_path, kind):
    path, at = tmp_path / "file", 1
    contents = set()
    while True:
        path.write_bytes(b"old")
        interrupt = Interrupt(at, kind, ("core/files.py",))
        with interrupt.during():
            write_atomically(path, b"new", private=True)
        contents.add(path.read_bytes())
        if not interrupt.raised:
            break
        at += 1
    assert contents == {b"old", b"new"}
    assert at > len(ERRORS)
