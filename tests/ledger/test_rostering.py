"""The roster of a ledger: who gets a line, who keeps it, what a change, a leaver and a crash do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ledgers import difference, done, joined, repeating, take_back
from rescind.ledger import tables
from rescind.ledger.backup import back_up
from rescind.ledger.book import Ledger
from rescind.ledger.failpoints import VARIABLE
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.lending import Lend
from rescind.ledger.place import FILE
from rescind.ledger.roster_worker import Asked, Worker, hashed
from rescind.ledger.scanner import opened_boxes
from rescind.proof.log_folder import CHANGE, LINE, RELEASE, REVOKED, ROSTER, entry_of
from rescind.proof.roster import Stated, added_up, own_line, split
from served import CATALOGUE, OPTIONS, Hand, likes, opened, rows

HELPERS = Path(__file__).parents[1] / "helpers"


def listed(ledger: Ledger) -> set[bytes]:
    """Make a release and its roster; return the lines."""
    ledger.releases.make()
    assert ledger.roster.publish() is not None
    assert ledger.roster.lines is not None
    lines = ledger.roster.lines.read_bytes()
    assert added_up(lines) == ledger.roster.total
    return set(split(lines))


def entries(ledger: Ledger, kind: int) -> list[bytes]:
    leaves = sorted(rows(ledger, tables.leaf), key=lambda row: row.n)
    return [bytes(row.entry) for row in leaves if bytes(row.entry)[0] == kind]


def lived(state: Path, database: str | None) -> tuple[Ledger, list[bytes], list[set[bytes]]]:
    """Three people lend; one changes something, one leaves. Return the roster of each release."""
    ledger = Ledger.open(
        state,
        catalogue=CATALOGUE,
        options=OPTIONS,
        clock=Hand(),
        entropy=repeating(),
        database=database,
    )
    people = [joined(ledger, *likes(n)) for n in range(4)]
    rosters = [listed(ledger)]
    done(ledger, take_back(people[1], "unshare", likes(1)[0]))
    rosters.append(listed(ledger))
    done(ledger, take_back(people[2], "leave"))
    rosters.append(listed(ledger))
    return ledger, people, rosters


def test_only_lines_of_people_who_changed_something_are_made_and_revoked(
    tmp_path: Path, database: str | None
) -> None:
    ledger, _, (first, second, third) = lived(tmp_path / "state", database)
    assert (len(first), len(second), len(third)) == (4, 4, 3)
    assert len(first & second) == 3  # one changed
    assert third < second  # one left, nobody else changed
    assert len(entries(ledger, LINE)) == 5
    assert len(entries(ledger, REVOKED)) == 2
    assert entries(ledger, ROSTER)[-1] == entry_of(ROSTER, ledger.roster.stated or b"")
    assert Stated.parse(ledger.roster.stated or b"").number == 3
    assert ledger.roster.publish() is None  # nothing to do
    ledger.close()


def test_both_databases_write_the_same_log(tmp_path: Path, postgres: str) -> None:
    one, _, _ = lived(tmp_path / "one", None)
    two, _, _ = lived(tmp_path / "two", postgres)
    for kind in (CHANGE, RELEASE, LINE, REVOKED, ROSTER):  # receipts are signed by each one's key
        assert entries(one, kind) == entries(two, kind) != []
    assert len(one.tree) == len(two.tree)
    one.close()
    two.close()


def test_a_person_finds_the_own_line_until_something_changes(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    person, other = joined(ledger, *likes(0)), joined(ledger, *likes(1))
    assert ledger.roster.mine(person) == []  # no release yet
    listed(ledger)
    (told,) = ledger.roster.mine(person)
    assert told["items"] == likes(0)
    assert own_line(told) == told["line"]
    assert entry_of(LINE, b"")[:1] + bytes.fromhex(told["line"]) in entries(ledger, LINE)
    done(ledger, Lend(person, (39,)))
    assert ledger.roster.mine(person) == []  # the seed of the old line is gone
    assert len(ledger.roster.mine(other)) == 1
    listed(ledger)
    assert ledger.roster.mine(person)[0]["line"] != told["line"]
    done(ledger, take_back(other, "leave"))
    assert ledger.roster.mine(other) == []
    ledger.close()


def test_what_a_browser_sent_has_a_line_of_its_own(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    person, other = joined(ledger, *likes(0)), joined(ledger, *likes(1))
    keeps = sorted(set(range(40)) - set(likes(0)))[:5]
    done(ledger, difference(person, [], keeps))
    first = listed(ledger)
    assert len(first) == 3
    lent, kept = ledger.roster.mine(person)
    assert lent["items"] == likes(0)
    assert kept["items"] == keeps
    assert [own_line(told) for told in (lent, kept)] == [lent["line"], kept["line"]]
    assert len(ledger.roster.mine(other)) == 1
    done(ledger, difference(person, keeps, keeps[1:]))
    assert [told["line"] for told in ledger.roster.mine(person)] == [lent["line"]]
    second = listed(ledger)
    assert len(first & second) == 2  # what is lent did not change: both of those lines stay
    assert bytes([REVOKED]) + bytes.fromhex(kept["line"]) in entries(ledger, REVOKED)
    done(ledger, take_back(person, "leave"))
    assert listed(ledger) < second
    assert ledger.roster.mine(person) == []
    ledger.close()


def test_a_change_after_the_release_leaves_no_seed(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(3)]
    ledger.releases.make()
    done(ledger, take_back(people[0], "unshare", likes(0)[0]))
    done(ledger, take_back(people[1], "leave"))
    assert ledger.roster.publish() == 1  # of what the release was made from
    assert len(split((ledger.roster.lines or Path()).read_bytes())) == 3
    sealed = {row.person: row.box is not None for row in rows(ledger, tables.roster)}
    assert sealed == {people[0]: False, None: False, people[2]: True}
    assert len(listed(ledger)) == 2
    ledger.close()


def test_a_restart_keeps_the_roster_and_goes_on_from_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ledger = opened(state)
    person = joined(ledger, *likes(0))
    joined(ledger, *likes(1))
    first, stated = listed(ledger), ledger.roster.stated
    (state / "roster-99.bin").write_bytes(b"left by a crash")
    ledger.close()
    ledger = opened(state)
    assert ledger.roster.stated == stated
    assert ledger.roster.publish() is None  # a start makes none
    assert [path.name for path in state.glob("roster-*")] == ["roster-1.bin"]
    assert len(ledger.roster.mine(person)) == 1
    done(ledger, Lend(person, (39,)))
    assert len(listed(ledger) & first) == 1
    assert [path.name for path in state.glob("roster-*")] == ["roster-2.bin"]
    (state / "roster-2.bin").unlink()  # as after a restore: the file is no part of a backup
    assert ledger.roster.lines is None
    done(ledger, Lend(person, (38,)))
    assert len(listed(ledger)) == 2
    assert len(entries(ledger, LINE)) - len(entries(ledger, REVOKED)) == 2
    ledger.close()


CRASH = """
import sys
from pathlib import Path
from ledgers import difference, done, joined, take_back
from served import likes, opened
ledger = opened(Path(sys.argv[1]))
people = [joined(ledger, *likes(n)) for n in range(3)]
ledger.releases.make()
ledger.roster.publish()
done(ledger, take_back(people[0], "leave"))
ledger.releases.make()
ledger.roster.publish()
"""


def test_killed_while_a_roster_is_made_the_old_one_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"
    path = os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, VARIABLE: "roster being made:2", "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, "-c", CRASH, state], env=env, check=False)
    assert ended.returncode == -9
    assert len(list(state.glob("roster-*"))) == 2
    ledger = opened(state)
    assert [path.name for path in state.glob("roster-*")] == ["roster-1.bin"]
    assert Stated.parse(ledger.roster.stated or b"").facts["number"] == 1
    assert len(entries(ledger, REVOKED)) == 0
    joined(ledger, *likes(5))
    assert len(listed(ledger)) == 3  # with the next release
    assert len(entries(ledger, REVOKED)) == 1
    ledger.close()


def test_no_key_opens_a_leavers_seed_not_even_in_an_old_backup(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup.db"
    ledger = opened(state)
    person = joined(ledger, *likes(0))
    joined(ledger, *likes(1))
    listed(ledger)
    seed = bytes.fromhex(ledger.roster.mine(person)[0]["seed"])
    back_up(state, backup)

    def found() -> list[int]:
        keys = KeySlots(state / KEYS)
        try:
            places = (state / FILE, backup)
            return [list(opened_boxes(path, keys).values()).count(seed) for path in places]
        finally:
            keys.close()

    ledger.close()
    assert found() == [1, 1], "control: with the keys of now the seed is read"
    ledger = opened(state)
    done(ledger, take_back(person, "leave"))
    assert person not in {row.person for row in rows(ledger, tables.roster)}
    ledger.close()
    assert found() == [0, 0]


@pytest.mark.parametrize("options", [{"instant": True}, {"noise": 50.0}])
def test_without_exact_releases_there_is_no_roster(tmp_path: Path, options: dict) -> None:
    ledger = opened(tmp_path / "state", **options)
    joined(ledger, *likes(0))
    if not options.get("instant"):
        ledger.releases.make()
    assert ledger.roster.publish() is None
    assert ledger.roster.stated is None
    ledger.close()


def test_another_process_makes_the_same_lines_and_can_be_stopped(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    people = [joined(ledger, *likes(n)) for n in range(3)]
    sums, loans = ledger.live.copy(), ledger.live.loans
    asked = Asked(
        sums, tuple(loans[one] for one in people), (b"a" * 32, b"b" * 32, b"c" * 32), True
    )
    here, there = hashed(asked), Worker()._there(asked)
    assert np.array_equal(here.sum, there.sum)
    assert np.array_equal(np.stack(here.lines), np.stack(there.lines))
    stopped = Worker()
    stopped.stop()
    with pytest.raises(Exception, match="was not made"):
        stopped._there(asked)
    ledger.close()
