"""A person's file: the names beside the numbers are those that the log states for everybody."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rescind.cli import app
from rescind.core.federation import Federation
from rescind.core.labels import Labels
from rescind.core.records import Withdraw
from rescind.forgetting.roster import Outdated, Seeds, audit, catalogue_of, lines_of, publish
from rescind.methods.additive.gram import Gram
from rescind.privacy import keys
from rescind.proof.log_folder import NAMES, LogFolder
from rescind.proof.roster import Public
from rescind.receipts.log import key_of, open_log
from worlds import tiny_holdings

ITEMS = 14


def named(fed: Federation, *names: str) -> Federation:
    ids = [*names, *(f"p{n}" for n in range(len(names), ITEMS))]
    return replace(fed, labels=Labels(users=[f"c{n}" for n in range(9)], items=ids))


@dataclass
class Shop:
    """An operator with a log, and a run whose items have names."""

    fed: Federation
    log: LogFolder
    seeds: Seeds
    folder: Path

    def publishes(self) -> Public:
        public = publish(self.fed, self.log, keys.log_key(), self.seeds)
        public.write(self.folder)
        return public

    def mine(self, client: int = 4) -> list[dict[str, Any]]:
        return lines_of(self.fed, client, self.seeds, self.log)

    def check(self, mine: Any) -> tuple[int, str]:
        """What the person reads who checks a file."""
        file = self.folder.parent / "mine.json"
        file.write_text(json.dumps(mine))
        words = ["roster", "check", str(self.folder), "--log-key", str(key_of(self.log))]
        got = CliRunner().invoke(app, [*words, "--mine", str(file)])
        return got.exit_code, got.output + str(got.exception or "")

    @property
    def statements(self) -> int:
        return sum(entry[0] == NAMES for entry in self.log.entries)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    fed = Federation.start(tiny_holdings(clients=9, items=ITEMS), Gram(), seed=2).run(1)
    log = open_log()
    return Shop(named(fed), log, Seeds.of(log), tmp_path / "public")


def changed(mine: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    first = {**mine[0], **fields}
    return [{name: v for name, v in first.items() if v is not None}, *mine[1:]]


def test_names_are_those_that_the_log_states(shop: Shop) -> None:
    shop.publishes()
    code, said = shop.check(shop.mine())
    assert code == 0, said
    assert "counted since" in said
    assert "its items have the names (ids) that the log states as entry" in said
    assert shop.statements == 1


@pytest.mark.parametrize("empty", [[], {"lines": []}], ids=["of a run", "of a service"])
def test_a_file_without_a_line_is_not_valid(shop: Shop, empty: Any) -> None:
    shop.publishes()
    code, said = shop.check(empty)
    assert code != 0
    assert "Nothing was checked" in said
    assert "mine.json has no line" in said
    assert "VALID" not in said
    assert "names of the items" not in said
    lines: Any = shop.mine()
    code, said = shop.check(lines if isinstance(empty, list) else {"lines": lines})
    assert (code, said.startswith("VALID")) == (0, True), "control: a real line"
    said = shop.check({"line": []})[1]
    assert "mine.json has no line" in said, "another file"
    assert "VALID" not in said


def test_another_name_is_not_valid(shop: Shop) -> None:
    shop.publishes()
    mine = shop.mine()
    ids = mine[0]["ids"]
    wrong = {
        "one id": changed(mine, ids=["p99", *ids[1:]]),
        "two exchanged": changed(mine, ids=[ids[1], ids[0], *ids[2:]]),
        "fewer": changed(mine, ids=ids[1:]),
        "none": changed(mine, ids=None),
        "numbers": changed(mine, ids=list(range(len(ids)))),
        "no proofs": changed(mine, ids=["p99", *ids[1:]], proofs=None),
        "proofs of others": changed(mine, proofs=mine[0]["proofs"][::-1]),
        "a proof cut": changed(mine, proofs=[p[:-2] for p in mine[0]["proofs"]]),
        "another catalogue": changed(mine, catalogue=ITEMS - 1),
        "a list as a service writes it": {"lines": changed(mine, ids=["p99", *ids[1:]])},
    }
    for what, told in wrong.items():
        code, said = shop.check(told)
        assert (code, said.startswith("NOT VALID: your line ")) == (1, True), (what, said)
    assert "'p99' for item" in shop.check(wrong["one id"])[1]
    assert f"{len(ids)} items and {len(ids) - 1} names" in shop.check(wrong["fewer"])[1]
    assert shop.check(mine)[0] == 0, "control"


def test_names_told_to_one_person_alone_are_found(shop: Shop) -> None:
    shop.publishes()
    honest, shop.fed = shop.fed, named(shop.fed, *(f"told {n}" for n in range(ITEMS)))
    with pytest.raises(Outdated, match="other names of items"):
        shop.mine()
    without = lines_of(shop.fed, 4, shop.seeds)
    assert "this file does not show that its names are those" in shop.check(without)[1]
    for key in (shop.seeds.names, keys.new_secret()):
        assert key is not None
        private = catalogue_of(shop.fed, key)
        told = [{**one, **private.proofs(one["items"])} for one in without]
        assert "not those that the log stated while it counted" in shop.check(told)[1]
    shop.fed = honest
    assert shop.check(shop.mine())[0] == 0, "control"


def test_whoever_may_rebuild_finds_names_that_the_run_does_not_have(shop: Shop) -> None:
    public = shop.publishes()
    told = audit(shop.fed, public, shop.seeds)
    assert "the names of its items are those that the log states" in told
    with pytest.raises(Outdated, match="names"):
        audit(named(shop.fed, "another"), public, shop.seeds)


def test_an_old_file_stays_valid_after_a_name_is_gone(shop: Shop) -> None:
    """An item that only a leaver had loses its name; the leaver still checks the own file."""
    shop.publishes()
    mine, others, key = shop.mine(), shop.mine(5), shop.seeds.names
    shop.publishes()
    assert shop.statements == 1, "nothing changed: nothing is stated again"
    assert shop.seeds.names == key
    shop.fed = named(shop.fed.method.follow(shop.fed, Withdraw(4)), "(removed)")
    shop.publishes()
    assert shop.statements == 2
    assert key is not None
    assert key.hex() not in shop.seeds.path.read_text(), "old names cannot be tried out"
    for told in (mine, others, shop.mine(5)):
        code, said = shop.check(told)
        assert (code, "that the log states as entry" in said) == (0, True), said
    assert "revoked as entry" in shop.check(mine)[1]
    late = changed(mine, **{n: shop.mine(5)[0][n] for n in ("ids", "proofs")})
    assert shop.check(late)[0] == 1, "names stated after the line was revoked are not its names"


def test_a_file_from_before_names_were_stated_is_read_and_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rescind.forgetting.roster._names", lambda *_: None)
        shop.publishes()
    mine = shop.mine()
    assert "proofs" not in mine[0]
    for again in (False, True):
        if again:
            shop.publishes()
        code, said = shop.check(mine)
        assert code == 0, said
        assert "the names beside them (ids) were not" in said
        for broken in (changed(mine, ids=None), changed(mine, ids=mine[0]["ids"][1:])):
            assert shop.check(broken)[0] == 1
    assert "that the log states as entry" in shop.check(shop.mine())[1]


def test_a_person_learns_no_name_of_others(shop: Shop) -> None:
    shop.publishes()
    mine = shop.mine()
    text, own = json.dumps(mine), {name for one in mine for name in one["ids"]}
    others = {shop.fed.labels.item_id(n) for n in range(ITEMS)} - own
    assert others
    assert not any(f'"{name}"' in text for name in others)
    assert shop.seeds.names is not None
    assert shop.seeds.names.hex() not in text
