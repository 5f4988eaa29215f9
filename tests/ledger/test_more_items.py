"""Items that are added at a later start: loans, sums, releases and rosters go on as they were."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgers import done, joined, lent
from rescind.errors import ConfigError, DataError
from rescind.ledger.backup import back_up
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import FILE, Catalogue
from rescind.ledger.errors import CannotStart
from rescind.ledger.lending import Lend
from rescind.ledger.restore import restore
from rescind.ledger.roster_audit import audit
from rescind.methods.additive._live_sum import MOST_ITEMS
from rescind.proof.roster import split
from served import CATALOGUE, OPTIONS, Hand, likes

MORE = Catalogue([*CATALOGUE.ids, "new-1", "new-2"])
NEW = len(CATALOGUE)


def opened(state: Path, catalogue: Catalogue | None = None, database: str | None = None) -> Ledger:
    return Ledger.open(state, catalogue=catalogue, options=OPTIONS, clock=Hand(), database=database)


def filled(state: Path, database: str | None = None) -> tuple[Ledger, list[bytes]]:
    ledger = opened(state, CATALOGUE, database)
    people = [joined(ledger, *likes(n)) for n in range(6)]
    ledger.releases.make()
    ledger.roster.publish()
    return ledger, people


def lines(ledger: Ledger) -> set[bytes]:
    assert ledger.roster.lines is not None
    return set(split(ledger.roster.lines.read_bytes()))


def public(ledger: Ledger) -> Any:
    roster = ledger.roster
    assert roster.lines is not None
    return SimpleNamespace(
        lines=roster.lines.read_bytes(), total=roster.total, stated=roster.stated
    )


def test_new_items_are_lent_at_once_and_listed_from_the_next_release(
    tmp_path: Path, database: str | None
) -> None:
    ledger, people = filled(tmp_path, database)
    before, old_lines = [lent(ledger, one) for one in people], lines(ledger)
    lists = [ledger.releases.recommend(ledger.live.of(one), 5) for one in people]
    ledger.close()

    ledger = opened(tmp_path, MORE, database)
    assert [lent(ledger, one) for one in people] == before
    assert [ledger.releases.recommend(ledger.live.of(one), 5) for one in people] == lists
    with pytest.raises(DataError, match="Make a release"):
        audit(ledger, public(ledger))
    for one in people[:5]:
        done(ledger, Lend(one, (NEW,)))
    # The release in service does not know the item, and serves who has it all the same.
    served = ledger.releases.recommend(ledger.live.of(people[0]), 5)
    assert served == lists[0]
    ledger.releases.make()
    ledger.roster.publish()
    assert len(lines(ledger) & old_lines) == 1, "only those who changed something got new lines"
    assert audit(ledger, public(ledger))
    weights = ledger.releases.current.weights
    assert weights.items == len(MORE)
    assert NEW in weights.popular.tolist()
    ledger.close()
    with pytest.raises(ConfigError, match="do not begin with"):
        opened(tmp_path, CATALOGUE, database)
    ledger = opened(tmp_path, None, database)
    assert ledger.catalogue.ids == MORE.ids
    ledger.close()


def test_a_kill_between_two_writes_and_an_older_backup_do_no_harm(tmp_path: Path) -> None:
    ledger, people = filled(tmp_path / "state")
    backup = tmp_path / "monday.db"
    back_up(tmp_path / "state", backup, None)
    ledger.close()
    short = (tmp_path / "state" / FILE).read_bytes()
    opened(tmp_path / "state", MORE).close()
    (tmp_path / "state" / FILE).write_bytes(short)  # killed before the file was written
    ledger = opened(tmp_path / "state")
    assert ledger.catalogue.ids == MORE.ids
    done(ledger, Lend(people[0], (NEW,)))
    ledger.close()
    restore(tmp_path / "state", backup, None)
    ledger = opened(tmp_path / "state")  # the backup knows fewer items than the folder
    assert ledger.catalogue.ids == MORE.ids
    assert lent(ledger, people[1]) == sorted(likes(1))
    ledger.close()


def test_a_changed_ledger_is_noticed_also_when_items_are_added(tmp_path: Path) -> None:
    filled(tmp_path / "right")[0].close()
    wrong = shutil.copytree(tmp_path / "right", tmp_path / "wrong")
    opened(tmp_path / "right", MORE).close()  # the control
    with closing(sqlite3.connect(wrong / "ledger.db")) as file, file:
        (text,) = file.execute("select value from setting where name = 'clean'").fetchone()
        other = json.dumps({**json.loads(text), "digest": "sha256:" + "0" * 64})
        file.execute("update setting set value = ? where name = 'clean'", (other,))
    with pytest.raises(CannotStart, match="Something changed the ledger"):
        opened(wrong, MORE)


def test_too_many_items_change_nothing(tmp_path: Path) -> None:
    filled(tmp_path)[0].close()
    many = Catalogue([*CATALOGUE.ids, *(f"more {n}" for n in range(MOST_ITEMS))])
    with pytest.raises(ConfigError, match="catalogue has 1 to"):
        opened(tmp_path, many)
    ledger = opened(tmp_path)
    assert ledger.catalogue.ids == CATALOGUE.ids
    ledger.close()


def test_a_list_in_any_order_adds_at_the_end_and_takes_nothing_away() -> None:
    listed = Catalogue(["c", "b", "a"], ["Sea", "Bee", "Ay"])
    grown = Catalogue(["a", "b"]).with_items(listed)
    assert (grown.ids, grown.titles) == (("a", "b", "c"), ("Ay", "Bee", "Sea"))
    with pytest.raises(ConfigError, match="1 of the 3 items of this service are not in the list"):
        grown.with_items(Catalogue(["c", "a", "d"]))
