"""Data that grows under a filter numbers people anew: a silo still knows who left, and who is who.

`min_user = 3` leaves the rare user out, who is the first of the file. Two more rows let them in,
and everybody else gets the next number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory
from flower.served import SHOP, results
from rescind.cli import main
from rescind.cli.data import app as data
from rescind.cli.flower_given import requests_named
from rescind.core.labels import Labels
from rescind.core.params import load, save
from rescind.core.records import Arrive, Records, Withdraw
from rescind.data.blocklist import FILE, Blocklist
from rescind.data.erasing import erase_imported
from rescind.data.importing import append_file, import_file
from rescind.errors import ConsentError, DataError
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData, _stream
from rescind.flower.silo.intake import Intake
from rescind.flower.silo.names import USER, Numbering, key_of
from rescind.flower.silo.node import Node
from rescind.flower.silo.recommend import recommend_to
from rescind.flower.silo.storage import NUMBERING, Store, as_keys
from rescind.flower.silo.upgrade import KEPT, upgrade
from rescind.flower.silo.withheld import read_list
from rescind.flower.wire.steps import HELD

pytestmark = pytest.mark.flower

RECIPE = SHOP.replace('"shop"', '"shop"\nmin_user = 3')
RARE, EVE, OTHER = "rare", "user 4", "user 3"
"""Eve withdraws. When the rare user is let in, the number that was hers is the other's."""
USERS = [f"user {n}" for n in range(12)]


def items_of(user: str) -> list[str]:
    """Return eight items, different for each user."""
    n = USERS.index(user)
    return [f"item {(n * 5 + k * (1 + n % 3)) % 31}" for k in range(8)]


class Deployment:
    """Silos with their disks, and a server that starts anew for each command."""

    def __init__(self, folder: Path, silos: int) -> None:
        self.folder, self.silos = folder, silos
        folder.mkdir()
        (folder / "recipe.toml").write_text(RECIPE)
        out = str(folder / "out")
        self.asked = RunRequest(self.recipe, silos, out, deadline=0.0, wait=0.0)

    @property
    def recipe(self) -> str:
        return str(self.folder / "recipe.toml")

    def store(self, silo: int) -> Store:
        return Store(self.folder / f"silo-{silo}")

    def joined(self) -> InMemory:
        """Return silos that have joined, as `rescind flower join` starts them."""
        source, nodes = RecipeData(self.recipe), {}
        for silo in range(self.silos):
            upgrade(self.store(silo), source)
            source.note_in(self.store(silo))
            nodes[FIRST + silo] = Node(self.store(silo), source, silo, self.silos)
        return InMemory(nodes)

    def run(self, grid: InMemory | None = None, **named: list[str]) -> Any:
        words = {"unshare": None, "erase": None, "withdraw": None, **named}
        asked = replace(self.asked, requests=requests_named(**words))
        serve(grid or self.joined(), asked)
        return results(asked)[0]

    def held(self) -> dict[str, set[str]]:
        """Return the items that silos hold, by user, in the newest training."""
        labels, found = RecipeData(self.recipe).names().labels, dict[str, set[str]]()
        for silo in range(self.silos):
            store = self.store(silo)
            newest = max(
                (store.folder / HELD).glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns
            )
            records = store.held(int(newest.stem, 16)).records
            for client, item in zip(records.client.tolist(), records.item.tolist(), strict=True):
                found.setdefault(labels.user_id(client), set()).add(labels.item_id(item))
        return found


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An imported dataset whose first user has too few rows to count."""
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    rows = [f"{RARE},item 0", f"{RARE},item 1"]
    rows += [f"{user},{item}" for user in USERS for item in items_of(user)]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    import_file(tmp_path / "shop.csv", "shop")
    return tmp_path


def add(shop: Path, rows: Iterable[str]) -> None:
    (shop / "later.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    append_file("shop", shop / "later.csv")


def numbered_anew(shop: Path) -> None:
    """Let the rare user in: everybody else gets the next number."""
    before = numbers(shop)
    add(shop, [f"{RARE},item 2", f"{RARE},item 3"])
    after = numbers(shop)
    assert RARE not in before
    assert {user: after[user] - before[user] for user in before} == dict.fromkeys(USERS, 1)


def numbers(shop: Path) -> dict[str, int]:
    (shop / "names.toml").write_text(RECIPE)
    labels = RecipeData(str(shop / "names.toml")).names().labels
    return {user: number for number, user in enumerate(labels.users)}


def by_number(labels: Labels, clients: int, items: int) -> Numbering:
    """The numbering of earlier versions: a number was its own key."""
    return CORRECT(Labels(), clients, items)


CORRECT = Numbering.of


@pytest.mark.parametrize("kind", ["withdraw", "erase"])
@pytest.mark.parametrize("earlier", [False, True], ids=["by id", "by number"])
def test_who_left_stays_away_when_people_are_numbered_anew(
    kind: str, earlier: bool, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if earlier:  # the control
        monkeypatch.setattr(Numbering, "of", by_number)
    served = Deployment(shop / "served", silos=1)
    item = items_of(EVE)[0]
    served.run()
    name = EVE if not earlier else str(numbers(shop)[EVE])
    thing = item if not earlier else str(RecipeData(served.recipe).names().labels.item(item, 99))
    served.run(**{kind: [name if kind == "withdraw" else f"{name}:{thing}"]})
    numbered_anew(shop)
    served.run()
    held = served.held()
    hers = {item for item in items_of(EVE) if item in held.get(EVE, ())}
    promised = set[str]() if kind == "withdraw" else {*items_of(EVE)} - {item}
    assert (hers == promised) is not earlier
    if not earlier:
        assert len(held[RARE]) == 4
        assert held[OTHER] == {*items_of(OTHER)}, "nobody else is taken for her"
        others = {*USERS, RARE} - ({EVE} if kind == "withdraw" else set())
        assert held.keys() == others


def test_who_would_come_to_another_silo_stops_the_training_until_their_rows_are_deleted(
    shop: Path,
) -> None:
    served = Deployment(shop / "served", silos=3)
    served.run(withdraw=[EVE])
    served.run()  # the control: with the same numbers nothing is refused
    numbered_anew(shop)
    with pytest.raises(ConsentError, match="rescind data erase NAME --user ID,") as told:
        served.run()
    assert "1 of those who withdrew" in str(told.value)
    assert EVE not in str(told.value)
    erase_imported("shop", [EVE])
    served.run()
    assert served.held().keys() == {*USERS, RARE} - {EVE}


def test_what_a_silo_remembers_of_earlier_sums_goes_by_id(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    path = served.store(0).folder / "measured-own.safetensors"

    def remembered() -> set[str]:
        return {*as_keys(load(path)[0]["people"])}

    served.run()
    assert remembered() == {key_of(USER, name) for name in USERS}
    numbered_anew(shop)
    served.run()
    assert remembered() == {key_of(USER, name) for name in (*USERS, RARE)}
    sums = np.unpackbits(load(path)[0]["sums"].numpy(), axis=2, count=len(remembered()))
    assert sorted(sums[:, 0].sum(1).tolist()) == [len(USERS), len(USERS) + 1], "nobody twice"


@pytest.mark.parametrize("silos", [1, 3])
def test_a_request_after_growth_means_the_person_whom_the_run_was_trained_with(
    silos: int, shop: Path
) -> None:
    served = Deployment(shop / "served", silos)
    served.run()
    then = numbers(shop)
    numbered_anew(shop)
    facts = served.run(withdraw=[EVE])
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw"]
    store = served.store(then[EVE] % silos)
    for moment in store.moments(HELD):
        clients = set(store.held(moment).records.client.tolist())
        assert then[EVE] not in clients
        assert clients == {n for n in then.values() if n % silos == then[EVE] % silos} - {then[EVE]}
    (late,) = served.run(withdraw=[RARE])["refused_requests"]
    assert "What was added later is not in this run" in late["why"]
    (gone,) = served.run(withdraw=[EVE])["refused_requests"]
    assert f"'{EVE}' is not a member" in gone["why"]


def test_a_silo_that_has_joined_knows_ids_that_were_added_since(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    grid = served.joined()
    served.run(grid)
    add(shop, [f"new,item {n}" for n in range(6)])
    (refused,) = served.run(grid, withdraw=["new"])["refused_requests"]
    assert "no silo knows user 'new'" in refused["why"], "not in the run that is there"
    served.run(grid)
    assert "new" in served.held()
    served.run(grid, withdraw=["new"])
    assert "new" not in served.held()


def test_a_silo_recommends_to_the_same_person_when_numbers_have_changed(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    served.run()
    folder = served.store(0).folder
    before = recommend_to(folder, EVE, 5)
    numbered_anew(shop)
    assert recommend_to(folder, EVE, 5) == before
    with pytest.raises(DataError, match="was not there when the model was trained"):
        recommend_to(folder, RARE, 5)


def test_a_silo_whose_keys_are_elsewhere_says_so_and_not_to_train_again(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Deployment(shop / "served", silos=1)
    served.run()
    folder = served.store(0).folder
    before = recommend_to(folder, EVE, 5)
    add(shop, [f"new,item {n}" for n in range(6)])
    with pytest.raises(DataError, match="'new' was not there when") as control:
        recommend_to(folder, "new", 5)
    assert "RESCIND_KEYS" not in str(control.value)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("RESCIND_KEYS", str(shop / "other keys"))
        with pytest.raises(DataError, match="the keys of this run are not there") as told:
            recommend_to(folder, EVE, 5)
        assert f"under the keys in {shop / 'other keys'}," in str(told.value)
        with pytest.raises(DataError, match="no user 'nobody'"):
            recommend_to(folder, "nobody", 5)
    assert recommend_to(folder, EVE, 5) == before


def test_who_returns_is_found_by_id_when_numbers_have_changed(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    served.run(withdraw=[EVE])
    folder = served.store(0).folder
    numbered_anew(shop)
    words = ["admit", "shop", "--silo", str(folder), "--user"]
    refused = CliRunner().invoke(data, [*words, OTHER])
    assert isinstance(refused.exception, DataError)
    assert CliRunner().invoke(data, [*words, EVE]).exit_code == 0
    new = [f"item {n}" for n in range(31) if f"item {n}" not in items_of(EVE)][:3]
    add(shop, [f"{EVE},{item}" for item in [*new, items_of(EVE)[0]]])
    served.run()
    assert served.held()[EVE] == {*new}
    assert served.held()[OTHER] == {*items_of(OTHER)}


def test_the_list_of_a_silo_and_its_numbering_show_no_id(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    served.run(withdraw=[EVE])
    folder = served.store(0).folder
    assert len(json.loads((folder / FILE).read_text())["erased"]) == 8
    assert list((folder / NUMBERING).iterdir())
    for path in folder.rglob("*"):
        assert not path.is_file() or EVE.encode() not in path.read_bytes(), path


def test_a_numbering_goes_with_the_last_state_that_needs_it(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    served.run()
    numbered_anew(shop)
    served.run()
    served.run(withdraw=[EVE])  # silos remove what nobody needs
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
    stream.store.folder.joinpath(FILE).unlink()
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


# -- folders of earlier versions -------------------------------------------------------------------


def made_old(store: Store) -> None:
    """Take from saved states which numbering they go by, as earlier versions wrote them."""
    for path in (store.folder / HELD).glob("*.safetensors"):
        tensors, notes = load(path)
        save(path, tensors, {"facts": notes["facts"]})
    for path in (store.folder / NUMBERING).iterdir():
        path.unlink()


def old(served: Deployment) -> bytes:
    """Train, let Eve withdraw, and write the silo's folder as earlier versions did."""
    served.run(withdraw=[EVE])
    labels, clients, items = RecipeData(served.recipe).names()
    user = str(labels.client(EVE, clients))
    things = [str(labels.item(item, items)) for item in items_of(EVE)]
    listed, folder = Blocklist().with_erased([user] * 8, things), served.store(0).folder
    listed.with_withdrawn(user).write(folder)
    made_old(served.store(0))
    return (folder / FILE).read_bytes()


def test_a_list_with_numbers_is_converted_when_the_silo_joins(shop: Path) -> None:
    as_now, served = (Deployment(shop / name, silos=1) for name in ("now", "served"))
    as_now.run(withdraw=[EVE])
    listed = old(served)
    folder = served.store(0).folder
    with pytest.raises(DataError, match="Let the silo join again"):
        read_list(folder)
    served.joined()
    assert read_list(folder) == read_list(as_now.store(0).folder)
    assert (folder / KEPT).read_bytes() == listed, "nothing is lost"
    numbered_anew(shop)
    assert recommend_to(folder, OTHER, 3), "states from before have their numbering, too"
    served.run(withdraw=[OTHER])
    served.run()
    assert served.held().keys() == {*USERS, RARE} - {EVE, OTHER}


def test_rows_that_the_data_leaves_out_by_now_do_not_hinder_the_conversion(shop: Path) -> None:
    served = Deployment(shop / "served", silos=1)
    old(served)
    Blocklist().with_withdrawn(EVE).add_to_dataset("shop")
    assert EVE not in numbers(shop), "the filter closes the gap: all after her have other numbers"
    served.joined()
    assert read_list(served.store(0).folder).has_withdrawn(key_of(USER, EVE))


def test_a_list_whose_numbers_mean_others_by_now_is_refused_and_kept(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    served = Deployment(shop / "served", silos=1)
    listed = old(served)
    folder = served.store(0).folder
    numbered_anew(shop)
    words = ["flower", "join", served.recipe, "--silo", "0/1", "--store", str(folder), "--insecure"]
    monkeypatch.setattr("sys.argv", ["rescind", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = "".join(capfd.readouterr())
    assert ended.value.code == 2, told
    assert "rescind data import --replace" in " ".join(told.split())
    assert EVE not in told
    assert (folder / FILE).read_bytes() == listed
    assert not (folder / KEPT).exists()
    import_file(shop / "shop.csv", "shop", replace=True)  # what the message says
    served.joined()
    numbered_anew(shop)
    served.run()
    assert served.held().keys() == {*USERS, RARE} - {EVE}


def test_a_run_of_an_earlier_version_takes_no_request_under_numbers_it_does_not_know(
    shop: Path,
) -> None:
    served = Deployment(shop / "served", silos=1)
    served.run()
    made_old(served.store(0))
    numbered_anew(shop)
    with pytest.raises(DataError, match="Train again"):
        served.run(withdraw=[EVE])
