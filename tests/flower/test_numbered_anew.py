"""Data that grows under a filter numbers people anew: a silo still knows who left, and who is who.

`min_user = 3` leaves the rare user out, who is the first of the file. Two more rows let them in,
and everybody else gets the next number.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flower.served import SHOP
from flower.silo_shop import SiloShop, asks, outcomes
from rescind.cli.request import app
from rescind.core.home import LEDGER
from rescind.core.params import load
from rescind.core.records import Arrive, Records, Withdraw
from rescind.data.importing import append_file, import_file
from rescind.errors import DataError
from rescind.flower.silo import names
from rescind.flower.silo.data_source import RecipeData, _stream
from rescind.flower.silo.departures import read_list
from rescind.flower.silo.intake import Intake
from rescind.flower.silo.names import ITEM, USER, key_of
from rescind.flower.silo.recommend import recommend_to
from rescind.flower.silo.storage import NUMBERING, Store, as_keys
from rescind.flower.wire.steps import HELD
from rescind.home import Refused
from rescind.privacy import keys

pytestmark = pytest.mark.flower

RECIPE = SHOP.replace('"shop"', '"shop"\nmin_user = 3')
RARE, EVE, OTHER = "rare", "user 4", "user 3"
"""Eve withdraws. When the rare user is let in, the number that was hers is the other's."""
USERS = [f"user {n}" for n in range(12)]


def items_of(user: str) -> list[str]:
    """Return eight items, different for each user."""
    n = USERS.index(user)
    return [f"item {(n * 5 + k * (1 + n % 3)) % 31}" for k in range(8)]


class Deployment(SiloShop):
    """Silos that give no update of one person alone."""

    def store(self, silo: int) -> Store:
        return Store(self.silo(silo))

    def named(self) -> dict[str, set[str]]:
        """Return the items that silos hold, by user, in the newest training."""
        users = {key_of(USER, one): one for one in (*USERS, RARE, "new")}
        items = {key_of(ITEM, f"item {n}"): f"item {n}" for n in range(31)}
        found = dict[str, set[str]]()
        for user, item in self.held(newest=True):
            found.setdefault(users[user], set()).add(items[item])
        return found


def deployment(shop: Path, silos: int) -> Deployment:
    made = Deployment(shop / "served", silos, single_updates=False)
    made.folder.mkdir()
    made.write_recipe(RECIPE)
    return made


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An imported dataset whose first user has too few rows to count."""
    rows = [f"{RARE},item 0", f"{RARE},item 1"]
    rows += [f"{user},{item}" for user in USERS for item in items_of(user)]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(tmp_path / "shop.csv", "shop")
    return tmp_path


def add(shop: Path, rows: Iterable[str]) -> None:
    (shop / "later.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    append_file("shop", shop / "later.csv")


def numbered_anew(shop: Path, gone: Iterable[str] = ()) -> None:
    """Let the rare user in: everybody else gets the next number. gone: whose rows are deleted"""
    before = numbers(shop)
    add(shop, [f"{RARE},item 2", f"{RARE},item 3"])
    after = numbers(shop)
    assert RARE not in before
    moved = {user: after[user] - before[user] for user in before if user in USERS}
    assert moved == dict.fromkeys((user for user in USERS if user not in gone), 1)


def numbers(shop: Path) -> dict[str, int]:
    (shop / "names.toml").write_text(RECIPE)
    labels = RecipeData(str(shop / "names.toml")).names().labels
    return {user: number for number, user in enumerate(labels.users)}


@pytest.mark.parametrize("silos", [1, 3])
@pytest.mark.parametrize("kind", ["leave", "erase"])
def test_who_left_stays_away_when_people_are_numbered_anew(
    kind: str, silos: int, shop: Path
) -> None:
    """Of three silos another one has her number then: it knows who left, too."""
    served, item = deployment(shop, silos), items_of(EVE)[0]
    served.serve()
    served.serve(*(asks(leave=[EVE]) if kind == "leave" else asks(erase={EVE: [item]})))
    numbered_anew(shop, gone=(EVE,) if kind == "leave" else ())
    add(shop, [f"{EVE},{item}"])
    served.serve()
    held = served.named()
    assert held.get(EVE, set()) == (set() if kind == "leave" else {*items_of(EVE)} - {item})
    assert len(held[RARE]) == 4
    assert held[OTHER] == {*items_of(OTHER)}, "nobody else is taken for her"
    others = {*USERS, RARE} - ({EVE} if kind == "leave" else set())
    assert held.keys() == others
    for silo in range(silos):  # the control: without the lists she is back
        (served.silo(silo) / LEDGER).unlink()
    served.serve()
    assert item in served.named().get(EVE, ()) or kind == "leave"  # one row is too few to count


def test_what_a_silo_remembers_of_earlier_sums_goes_by_id(shop: Path) -> None:
    served = deployment(shop, 1)
    path = served.store(0).folder / "measured-own.safetensors"

    def remembered() -> set[str]:
        return {*as_keys(load(path)[0]["people"])}

    served.serve()
    assert remembered() == {key_of(USER, name) for name in USERS}
    numbered_anew(shop)
    served.serve()
    assert remembered() == {key_of(USER, name) for name in (*USERS, RARE)}
    sums = np.unpackbits(load(path)[0]["sums"].numpy(), axis=2, count=len(remembered()))
    assert sorted(sums[:, 0].sum(1).tolist()) == [len(USERS), len(USERS) + 1], "nobody twice"


@pytest.mark.parametrize("silos", [1, 3])
def test_a_request_after_growth_means_the_person_whom_the_run_was_trained_with(
    silos: int, shop: Path
) -> None:
    served = deployment(shop, silos)
    served.serve()
    then = numbers(shop)
    numbered_anew(shop)
    assert outcomes(served.serve(*asks(leave=[EVE]))) == ["ERASED"]
    store = served.store(then[EVE] % silos)
    for moment in store.moments(HELD):
        clients = set(store.held(moment).records.client.tolist())
        assert then[EVE] not in clients
        assert clients == {n for n in then.values() if n % silos == then[EVE] % silos} - {then[EVE]}
    assert outcomes(served.serve(*asks(leave=[RARE]))) == ["ROWS_ONLY"], "not in this run"
    assert outcomes(served.serve(*asks(leave=[EVE]))) == ["REPEATED"]


def test_a_silo_that_has_joined_knows_ids_that_were_added_since(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = deployment(shop, 1)
    nodes = served.joined()
    monkeypatch.setattr(Deployment, "joined", lambda *_: nodes)
    served.serve()
    add(shop, [f"new,item {n}" for n in range(6)])
    served.serve()
    assert "new" in served.named()
    assert outcomes(served.serve(*asks(leave=["new"]))) == ["ERASED"]
    assert "new" not in served.named()


def test_a_silo_recommends_to_the_same_person_when_numbers_have_changed(shop: Path) -> None:
    served = deployment(shop, 1)
    served.serve()
    folder = served.store(0).folder
    before = recommend_to(folder, EVE, 5)
    numbered_anew(shop)
    assert recommend_to(folder, EVE, 5) == before
    with pytest.raises(DataError, match="was not there when the model was trained"):
        recommend_to(folder, RARE, 5)


def test_a_silo_whose_keys_are_elsewhere_says_so_and_not_to_train_again(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = deployment(shop, 1)
    served.serve()
    folder = served.store(0).folder
    before = recommend_to(folder, EVE, 5)
    add(shop, [f"new,item {n}" for n in range(6)])
    with pytest.raises(DataError, match="'new' was not there when") as control:
        recommend_to(folder, "new", 5)
    assert "RESCIND_HOME" not in str(control.value)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(keys, "erasure_key", lambda: b"another" * 5)
        elsewhere.setattr(names, "erasure_key", lambda: b"another" * 5)
        with pytest.raises(DataError, match="RESCIND_HOME"):
            recommend_to(folder, EVE, 5)
    assert recommend_to(folder, EVE, 5) == before


def test_who_returns_is_found_by_id_when_numbers_have_changed(shop: Path) -> None:
    served = deployment(shop, 1)
    served.serve(*asks(leave=[EVE]))
    folder = served.store(0).folder
    numbered_anew(shop, gone=[EVE])
    words = ["readmit", "--silo", str(folder), "--user"]
    refused = CliRunner().invoke(app, [*words, OTHER])
    assert isinstance(refused.exception, Refused)
    assert CliRunner().invoke(app, [*words, EVE]).exit_code == 0
    new = [f"item {n}" for n in range(31) if f"item {n}" not in items_of(EVE)][:3]
    add(shop, [f"{EVE},{item}" for item in [*new, items_of(EVE)[0]]])
    served.serve()
    assert served.named()[EVE] == {*new}
    assert served.named()[OTHER] == {*items_of(OTHER)}


def test_the_list_of_a_silo_and_its_numbering_show_no_id(shop: Path) -> None:
    served = deployment(shop, 1)
    served.serve(*asks(leave=[EVE]))
    folder = served.store(0).folder
    assert len(read_list(folder).erased) == 8
    assert list((folder / NUMBERING).iterdir())
    for path in folder.rglob("*"):
        assert not path.is_file() or EVE.encode() not in path.read_bytes(), path


def test_a_numbering_goes_with_the_last_state_that_needs_it(shop: Path) -> None:
    served = deployment(shop, 1)
    served.serve()
    numbered_anew(shop)
    served.serve()
    served.serve(*asks(leave=[EVE]))  # silos remove what nobody needs
    assert len(list((served.store(0).folder / NUMBERING).iterdir())) == 1


# -- streams ---------------------------------------------------------------------------------------


@pytest.fixture
def stream(shop: Path) -> Intake:
    """A silo with a stream of blocks, in which the number of a user is when they came."""
    rows = [f"{user},{item},{100 * n + k}" for n, user in enumerate(USERS)
            for k, item in enumerate(items_of(user))]  # fmt: skip
    (shop / "times.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    import_file(shop / "times.csv", "timed")
    recipe = RECIPE.replace('"shop"', '"timed"\nvariant = "blocks"')
    (shop / "stream.toml").write_text(recipe.replace("evaluate_every = 2", "patience = 2"))
    return Intake(Store(shop / "silo"), RecipeData(str(shop / "stream.toml")), 0, 1)


def came_first(shop: Path) -> None:
    """Add a user who came before all others: blocks number everybody anew."""
    (shop / "before.csv").write_text("user,item,time\n" + "".join(f"{RARE},item {n},{n + 1}\n"
                                                                 for n in range(5)))  # fmt: skip
    append_file("timed", shop / "before.csv")


def held_by(intake: Intake, seed: int = 0) -> set[str]:
    """Return the users of all blocks that a silo takes in."""
    labels = intake.source.names().labels
    found = set(intake.first(seed)[0].records.client.tolist())
    for number in (1, 2, 3):
        block = intake.block(number, seed)
        assert block is not None
        found |= set(block[0].records.client.tolist())
    return {labels.user_id(client) for client in found}


def test_who_left_a_stream_stays_away_when_blocks_number_people_anew(
    stream: Intake, shop: Path
) -> None:
    holdings, numbering, _ = stream.first(0)
    stream.store.save_held(1, holdings, stream.store.save_numbering(numbering))
    stream.remember(1, holdings, Withdraw(numbering.user(EVE)))
    assert held_by(stream) == {*USERS} - {EVE}
    came_first(shop)
    assert held_by(stream) == {*USERS, RARE} - {EVE}
    stream.store.folder.joinpath(LEDGER).unlink()
    assert EVE in held_by(stream), "the control: without the list she is back"


def test_a_block_of_data_that_was_numbered_anew_does_not_come_to_a_run_from_before(
    stream: Intake, shop: Path
) -> None:
    holdings, numbering, _ = stream.first(0)
    stream.store.save_held(1, holdings, stream.store.save_numbering(numbering))
    nothing = Arrive(Records.none(), torch.zeros(0, dtype=torch.int8), 0, 0)
    block, _ = stream.arriving(1, nothing, 0, 0)
    assert len(block.records)
    came_first(shop)
    _stream.cache_clear()  # the silo has joined again
    with pytest.raises(DataError, match="Start the run again"):
        stream.arriving(1, nothing, 0, 0)
