"""Many requests over silos, by original ids, while silos come and go: each gets its receipt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer import Exit
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import FIRST, InMemory
from flower.served import SHOP, results
from rescind.cli.data import app as data
from rescind.cli.flower_given import requests_named
from rescind.cli.flower_told import answer_told, answers_told, silos_told
from rescind.cli.verify import command
from rescind.core.files import locked
from rescind.data.importing import append_file, load_imported
from rescind.errors import DataError, RescindError
from rescind.flower.recipe_cell import one_cell
from rescind.flower.run_request import RunRequest
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.recommend import recommend_to
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter, pack_error
from rescind.flower.wire.steps import HELD
from rescind.privacy import keys
from rescind.receipts import receipt
from rescind.receipts.verify import verify

pytestmark = pytest.mark.flower

SILOS = 3
IDS = [f"customer {n}" for n in range(24, 0, -1)]
"""Original ids, in another order than their numbers."""


class Counting(InMemory):
    """A grid that counts the messages of training rounds."""

    rounds = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.rounds += sum(m.metadata.message_type == "train" for m in messages)
        return super().push_messages(messages)


class Deployment:
    """Silos with their disks, and a server that starts anew for each command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "recipe.toml").write_text(SHOP)
        self.asked = RunRequest(
            str(folder / "recipe.toml"), SILOS, str(folder / "out"), deadline=0.0, wait=0.0
        )
        self.rounds = 0
        self.fails: int | None = None
        """The silo that answers with an error whatever is to be applied."""

    def run(self, away: Iterable[int] = (), resume: bool = False, **named: list[str]) -> Any:
        words = {"unshare": None, "erase": None, "withdraw": None, **named}
        asked = replace(self.asked, requests=requests_named(**words), resume=resume)
        source = RecipeData(asked.recipe)
        there = [silo for silo in range(SILOS) if silo not in away]
        grid = Counting(
            {FIRST + s: Node(Store(self.folder / f"silo-{s}"), source, s, SILOS) for s in there}
        )
        grid.changed = self._failing
        try:
            serve(grid, asked)
        finally:
            self.rounds = grid.rounds
        return results(asked)[0]

    def _failing(self, node: int, reply: Letter) -> Letter:
        if (
            self.fails is None
            or node != FIRST + self.fails
            or reply.facts["verb"] in ("meet", "find")
        ):
            return reply
        why = DataError("the disk of this silo is damaged")
        return Letter({**reply.facts, **pack_error(why)}, {})

    def receipt(self, name: str) -> receipt.Receipt:
        data, signer = (self.folder / "out" / name).read_bytes(), keys.own_public_key()
        assert signer
        assert verify(data, {signer: "the server"}).valid, name
        return receipt.parse(data)

    def held(self, user: str) -> bool:
        """Return whether a silo's disk still has records of a user."""
        client = IDS.index(user)
        store = Store(self.folder / f"silo-{client % SILOS}")
        moments = [int(p.stem, 16) for p in (store.folder / HELD).glob("*.safetensors")]
        assert moments
        return any(bool((store.held(m).records.client == client).any()) for m in moments)

    def items(self, user: str) -> list[str]:
        """Return the items that a user's silo holds for them, in the newest moment."""
        client = IDS.index(user)
        folder = self.folder / f"silo-{client % SILOS}" / HELD
        newest = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        records = Store(folder.parent).held(int(newest.stem, 16)).records
        names = load_imported("shop").items
        return sorted(str(names[i]) for i in records.item[records.client == client].tolist())


def first_items(user: str) -> set[str]:
    """Return the items that the first file has of a user."""
    return {f"product {(7 * IDS.index(user) + 5 * k) % 20}" for k in range(8)}


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    from rescind.data import import_file

    rows = [
        f"{user},product {(7 * n + 5 * k) % 20}" for n, user in enumerate(IDS) for k in range(8)
    ]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    data = import_file(tmp_path / "shop.csv", "shop")
    assert [str(u) for u in data.users] == IDS, "the first row of a user decides the number"
    (tmp_path / "served").mkdir()
    return Deployment(tmp_path / "served")


def test_a_day_of_requests(deployed: Deployment) -> None:
    deployed.run()
    assert deployed.rounds == 3 * SILOS

    # Two people together, by their original ids; the run is not trained first.
    facts = deployed.run(withdraw=["customer 7", "customer 8"])
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw", "Withdraw"]
    assert deployed.rounds == 2 * 3 * SILOS, "each is retrained once, and nothing else"
    assert not deployed.held("customer 7")
    assert not deployed.held("customer 8")
    assert deployed.held("customer 9")

    # One more, later; then one whose silo is away for the whole request.
    facts = deployed.run(erase=["customer 9:product 15"])
    assert [one["number"] for one in facts["forgot"]] == [1, 2, 3]
    gone = IDS.index("customer 10") % SILOS
    facts = deployed.run(away=[gone], withdraw=["customer 10"])
    assert facts["forgot"][-1]["waiting"] == [gone]
    assert deployed.held("customer 10")
    assert deployed.receipt("receipts/4.json").done.level == "L0"

    # It does not block the next, nor is anything lost while it is still away.
    other = next(u for u in IDS if IDS.index(u) % SILOS != gone and u not in ("customer 7",))
    facts = deployed.run(away=[gone], withdraw=[other])
    assert not deployed.held(other)
    assert facts["forgot"][-1]["number"] == 5

    # It is back with the next request, and catches up first.
    facts = deployed.run(withdraw=["customer 11"])
    assert [one["waiting"] for one in facts["forgot"]] == [[]] * 6
    assert facts["silos"]["waiting"] == []
    assert not deployed.held("customer 10")
    levels = [deployed.receipt(one["receipt"]).done.level for one in facts["forgot"]]
    assert levels == ["L3"] * 6
    chain = [deployed.receipt(f"receipts/{n}.json") for n in (1, 2)]
    first = (deployed.folder / "out" / "receipts" / "1.json").read_bytes()
    assert chain[1].previous == receipt.digest(first)


def test_answers_of_earlier_commands_are_counted_and_new_ones_told(tmp_path: Path) -> None:
    def answer(number: int, name: str, waiting: Sequence[int] = ()) -> dict[str, Any]:
        done = {"event": "Withdraw", "by": "Gram", "rounds": 1, "traces": 0}
        return {**done, "number": number, "receipt": f"receipts/{name}.json", "waiting": [*waiting]}

    def told(forgot: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[str]:
        return list(answers_told(forgot, before, tmp_path))

    one, two, three = answer(1, "1"), answer(2, "2-complete"), answer(3, "3")
    new = [
        "Withdraw answered by Gram, 1 round",
        f"receipt: {tmp_path}/receipts/3.json",
        "  to the requester: 3.json with 3.html, 3.key and 3.request.json, which you then delete "
        "here",
    ]
    said = told([one, two, three], [one, two])
    assert said == ["earlier: 2 requests (receipts 1, 2-complete)", *new]
    assert told([three], []) == new, "control: nothing came before"
    went_on = told([one, two], [one, answer(2, "2", [1])])
    assert went_on[0] == "earlier: 1 request (receipt 1)"
    assert went_on[-2] == f"receipt: {tmp_path}/receipts/2-complete.json"


def test_the_operator_is_told_of_silos_that_the_model_knows_nothing_of(
    deployed: Deployment,
) -> None:
    deployed.run()
    gone = IDS.index("customer 10") % SILOS
    facts = deployed.run(withdraw=["customer 7"])
    assert silos_told(facts["silos"]) == [], "the control: all were there"
    assert answer_told(facts["forgot"][-1]).endswith(" 3 rounds")
    facts = deployed.run(away=[gone], withdraw=["customer 9"])
    confirm, train = silos_told(facts["silos"])
    assert f"not confirmed yet by silo {gone}" in confirm
    assert f"the model has no data of silo {gone}" in train
    assert "when they have confirmed" in train
    facts = deployed.run(resume=True)
    (train,) = silos_told(facts["silos"])
    assert train.startswith(f"the model has no data of silo {gone}. To train it again")
    facts = deployed.run(withdraw=["customer 10"])
    said = "0 rounds: nothing of theirs was in the model"
    assert answer_told(facts["forgot"][-1]).endswith(said)
    assert deployed.rounds == 0
    facts = deployed.run()  # what the operator was told to do
    assert silos_told(facts["silos"]) == []
    assert deployed.rounds == 3 * SILOS


def test_a_silo_that_is_waited_for_is_named_with_the_time(
    deployed: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rescind.flower.server.transport")

    def waited(**more: Any) -> list[str]:
        caplog.clear()
        deployed.run(**more)
        lines = [r.getMessage() for r in caplog.records if "waiting for" in r.getMessage()]
        assert all(re.search(r", until \d\d:\d\d:\d\d \(--wait\)$", line) for line in lines)
        return [line.partition(", until")[0] for line in lines]

    assert waited() == [], "the control: all are there at once"
    assert waited(away=[1], withdraw=["customer 7"]) == ["waiting for silo 1"]
    assert waited(away=[0, 1], withdraw=["customer 8"]) == ["waiting for silos 0, 1"]


def test_an_answered_request_is_not_kept_on_the_server(deployed: Deployment) -> None:
    deployed.run(withdraw=["customer 7"])
    kept = deployed.folder / "out" / "forgetting"
    (stand,) = kept.glob("stand-*")
    assert b"Withdraw" not in (stand / "events.safetensors").read_bytes()
    assert not (stand / "heard").exists(), "nor what silos answered"
    facts = json.loads((stand / "stand.json").read_text())["facts"]
    assert "done" not in facts["forgot"][0], "digests from before are in the receipt, sealed"
    assert all(b"customer 7" not in p.read_bytes() for p in kept.rglob("*") if p.is_file())


def test_each_requester_gets_papers_that_name_them(
    deployed: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.run()
    # The two who withdraw have one silo, so that the silo does not tell whose receipt is whose.
    away = IDS.index("customer 10") % SILOS
    asked = {"withdraw": ["customer 7", "customer 10"], "erase": ["customer 8:product 12"]}
    assert IDS.index("customer 7") % SILOS == away
    facts = deployed.run(away=[away], **asked)
    out = deployed.folder / "out"
    assert not any("customer" in str(value) for value in facts.values()), "ids are in papers only"
    told = [line for line in answers_told(facts["forgot"], (), out) if "answered" in line]
    assert [line.partition(" answered")[0] for line in told] == [
        "Erase of user customer 8 (product 12)",
        "Withdraw of user customer 7",
        "Withdraw of user customer 10",
    ]
    facts = deployed.run(resume=True)
    assert [Path(one["receipt"]).stem for one in facts["forgot"]] == [
        f"{n}-complete" for n in (1, 2, 3)
    ]

    def verified(request: Path, name: str) -> tuple[int, str]:
        place = out / "receipts"
        with pytest.raises(Exit) as ended:
            command(place / f"{name}.json", event=request, event_key=place / f"{name}.key")
        return ended.value.exit_code, capsys.readouterr().out

    for name in ("2", "2-complete"):
        papers = {out / "receipts" / f"{name}{end}" for end in (".key", ".request.json", ".html")}
        assert {path.stat().st_mode & 0o777 for path in papers} == {0o600}
        code, said = verified(out / "receipts" / f"{name}.request.json", name)
        assert code == 0, said
        assert "it is about exactly the given Withdraw request, of user 'customer 7'" in said
        assert "Withdraw of all records that their silo had of 1 person" in said, "not of 0 records"
    assert verified(out / "receipts" / "3.request.json", "2")[0] == 1, "it is somebody else's"
    changed = (out / "receipts" / "2.request.json").read_text().replace("customer 7", "customer 9")
    (deployed.folder / "changed.json").write_text(changed)
    assert verified(deployed.folder / "changed.json", "2")[0] == 1, "the name is covered, too"


def test_numbers_say_which_silo_they_lack_and_are_of_all_again_when_it_is_back(
    deployed: Deployment,
) -> None:
    assert deployed.run()["measured_without"] == [], "the control: all are there"
    away = IDS.index("customer 10") % SILOS
    facts = deployed.run(away=[away], withdraw=["customer 8"])
    assert facts["measured_without"] == [away]
    (receipt,) = [line for line in answers_told(facts["forgot"], (), Path()) if "receipt:" in line]
    assert receipt.endswith(f"(L0 until silo {away} confirms)")
    back = deployed.run(resume=True)
    assert back["measured_without"] == []
    assert back["metrics"] != facts["metrics"]
    assert all("L0" not in line for line in answers_told(back["forgot"], (), Path()))


def test_the_receipts_of_a_run_are_found_below_its_folder(
    deployed: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.run(withdraw=["customer 7", "customer 8"])
    place = deployed.folder / "out" / "receipts"

    def verified(folder: Path) -> tuple[int, str]:
        with pytest.raises(Exit) as ended:
            command(folder)
        return ended.value.exit_code, capsys.readouterr().out

    code, said = verified(deployed.folder)
    assert code == 0, said
    assert "out/receipts/2.json: VALID" in said
    assert "it follows out/receipts/1.json" in said
    monkeypatch.chdir(place)
    assert "2 receipts: 2 valid; the history does not fork" in verified(Path())[1]
    (place / "2.json").write_text("{}")  # the control: the files are read
    assert verified(Path())[0] == 1


def test_the_same_command_again_is_not_answered_twice(deployed: Deployment) -> None:
    deployed.run(withdraw=["customer 7"])
    again = deployed.run(withdraw=["customer 7"], resume=True)
    assert [one["number"] for one in again["forgot"]] == [1]
    assert deployed.rounds == 0
    (refused,) = deployed.run(withdraw=["customer 7"])["refused_requests"]
    assert "'customer 7' is not a member" in refused["why"]


def test_a_wrong_id_is_told_before_any_training(deployed: Deployment) -> None:
    with pytest.raises(DataError, match="no silo knows user '7'") as told:
        deployed.run(withdraw=["7"])
    assert deployed.rounds == 0
    assert "customer" not in str(told.value), "nobody else is named"


def test_a_request_that_cannot_be_answered_does_not_block_the_others(deployed: Deployment) -> None:
    deployed.run()
    own = first_items("customer 9")
    two = [f"product {n}" for n in range(20) if f"product {n}" not in own][:2]
    asked = f"customer 9:{min(own)},{','.join(two)}"
    facts = deployed.run(erase=[asked], withdraw=["customer 8"])
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw"]
    (refused,) = facts["refused_requests"]
    assert refused == {
        "event": "Erase",
        "why": f"user 'customer 9' does not hold item '{two[0]}', item '{two[1]}', so they cannot "
        f"be erased. Nothing was changed.",
    }, "by original ids, all that are wrong at once, and not how much she has"
    assert not deployed.held("customer 8")


def test_it_blocks_no_others_either_where_another_silo_missed_something(
    deployed: Deployment,
) -> None:
    """The answer of a silo that applies an earlier request hid that this one was refused."""
    deployed.run()
    deployed.run(away=[IDS.index("customer 7") % SILOS], withdraw=["customer 8"])
    own = first_items("customer 9")
    strange = next(f"product {n}" for n in range(20) if f"product {n}" not in own)
    facts = deployed.run(erase=[f"customer 9:{strange}"], withdraw=["customer 6"])
    (refused,) = facts["refused_requests"]
    assert refused["why"].startswith(f"user 'customer 9' does not hold item '{strange}'")
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw", "Withdraw"]
    assert facts["silos"]["waiting"] == []
    assert not deployed.held("customer 6")
    assert deployed.held("customer 9")


def test_a_request_that_cannot_go_on_is_named_with_what_waits_behind_it(
    deployed: Deployment,
) -> None:
    deployed.run()
    deployed.fails = IDS.index("customer 8") % SILOS
    two = ["customer 8", "customer 7"]
    with pytest.raises(DataError) as told:
        deployed.run(withdraw=two)
    said = str(told.value)
    assert said.startswith(
        "the request of user 'customer 8' (withdraw) is not answered yet; 1 later request waits: "
    )
    assert "damaged" in said
    assert said.endswith("give the same command again.")
    deployed.fails = None
    facts = deployed.run(withdraw=two)
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw", "Withdraw"]


def test_a_late_silo_that_fails_takes_no_request_from_others(deployed: Deployment) -> None:
    """What it answers is about an earlier request: the new one is applied elsewhere already."""
    deployed.run()
    late = IDS.index("customer 7") % SILOS
    deployed.run(away=[late], withdraw=["customer 8"])
    deployed.fails = late
    facts = deployed.run(withdraw=["customer 6"])
    assert "refused_requests" not in facts
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw", "Withdraw"]
    assert facts["silos"]["waiting"] == [late]
    deployed.fails = None
    assert deployed.run(resume=True)["silos"]["waiting"] == []


def test_an_unknown_id_is_refused_and_the_others_are_answered(deployed: Deployment) -> None:
    deployed.run()
    facts = deployed.run(unshare=["4"], erase=["customer 9:nothing"], withdraw=["9", "customer 8"])
    assert [one["event"] for one in facts["forgot"]] == ["Withdraw"]
    assert not deployed.held("customer 8")
    refused = [(one["event"], one["why"].partition(".")[0]) for one in facts["refused_requests"]]
    assert refused == [
        ("Unshare", "no silo knows user '4'"),
        ("Erase", "no silo knows item 'nothing'"),
        ("Withdraw", "no silo knows user '9'"),
    ]
    # The next command tells of its own requests only, and a finished run without any is as before.
    again = deployed.run(withdraw=["9"])
    assert [one["event"] for one in again["refused_requests"]] == ["Withdraw"]
    assert deployed.rounds == 0
    assert again["metrics"] == facts["metrics"]
    assert "refused_requests" not in deployed.run(withdraw=["customer 7"])


def test_a_new_training_after_a_request_starts_without_the_erased(deployed: Deployment) -> None:
    deployed.run(withdraw=["customer 7"])
    facts = deployed.run()  # was refused: "something was forgotten here since (epoch 1)"
    assert deployed.rounds == 3 * SILOS
    assert "forgot" not in facts
    assert not deployed.held("customer 7")
    assert (deployed.folder / "out" / "receipts" / "1.json").is_file(), "evidence stays"
    facts = deployed.run(withdraw=["customer 8"])
    assert facts["forgot"][-1]["receipt"] == "receipts/2.json"


def returned(deployed: Deployment, user: str, rows: list[str]) -> list[str]:
    """Let a user in, with rows that are new. Return what their silo then trains on."""
    let_in(deployed, user)
    append(deployed, user, rows)
    deployed.run()
    return deployed.items(user)


def let_in(deployed: Deployment, user: str) -> None:
    silo = deployed.folder / f"silo-{IDS.index(user) % SILOS}"
    RecipeData(deployed.asked.recipe).note_in(Store(silo))  # as `join` does
    done = CliRunner().invoke(data, ["admit", "shop", "--user", user, "--silo", str(silo)])
    assert done.exit_code == 0, done.exception
    assert str(silo) in done.output


def append(deployed: Deployment, user: str, items: list[str]) -> None:
    later = deployed.folder / "later.csv"
    later.write_text("\n".join(["user,item", *(f"{user},{item}" for item in items)]) + "\n")
    append_file("shop", later)


def test_who_returns_to_a_silo_brings_new_rows_only(deployed: Deployment) -> None:
    before = first_items("customer 7")
    away, new = sorted({f"product {n}" for n in range(20)} - before)[:2]
    deployed.run(withdraw=["customer 7"])
    append(deployed, "customer 7", [away])
    deployed.run()
    assert not deployed.held("customer 7"), "the control: nobody let them in"
    assert returned(deployed, "customer 7", [new, min(before)]) == [new]
    assert deployed.receipt("receipts/1.json").done.level == "L3", "what was promised still holds"


def test_who_returned_can_withdraw_again(deployed: Deployment) -> None:
    deployed.run(withdraw=["customer 7", "customer 8"])
    new = min({f"product {n}" for n in range(20)} - first_items("customer 7"))
    assert returned(deployed, "customer 7", [new]) == [new]
    assert not deployed.held("customer 8"), "they did not ask to be back"
    facts = deployed.run(withdraw=["customer 7"])
    assert facts["forgot"][-1]["receipt"] == "receipts/3.json"
    assert not deployed.held("customer 7")
    deployed.run()
    assert not deployed.held("customer 7")


def test_who_was_let_in_is_told_to_withdraw_after_the_training(deployed: Deployment) -> None:
    deployed.run(withdraw=["customer 7"])
    new = min({f"product {n}" for n in range(20)} - first_items("customer 7"))
    let_in(deployed, "customer 7")
    append(deployed, "customer 7", [new])
    (refused,) = deployed.run(withdraw=["customer 7"])["refused_requests"]
    assert "train first (rescind flower run without requests), then give this" in refused["why"]
    deployed.run()
    assert deployed.held("customer 7"), "as it says: later rows count"
    deployed.run(withdraw=["customer 7"])
    append(deployed, "customer 7", ["product 3", "product 4"])
    deployed.run()
    assert not deployed.held("customer 7")


def test_a_silo_is_not_taken_for_a_run_nor_changed_while_it_has_joined(
    deployed: Deployment,
) -> None:
    """A silo's list has keys of ids: as a run's, it would let in nobody."""
    deployed.run(withdraw=["customer 7"])
    number = IDS.index("customer 7")
    silo = deployed.folder / f"silo-{number % SILOS}"
    RecipeData(deployed.asked.recipe).note_in(Store(silo))
    before = (silo / "withheld.json").read_bytes()

    def refused(user: str, option: str, folder: Path = silo) -> str:
        done = CliRunner().invoke(data, ["admit", "shop", "--user", user, option, str(folder)])
        assert isinstance(done.exception, RescindError), done.output
        assert (silo / "withheld.json").read_bytes() == before
        return str(done.exception)

    assert "name it with --silo" in refused(str(number), "--run")
    assert "no user 'customer 9' withdrew" in refused("customer 9", "--silo")
    assert "not the folder of a silo" in refused("customer 7", "--silo", deployed.folder)
    with locked(silo):
        assert "has joined" in refused("customer 7", "--silo")
    done = CliRunner().invoke(data, ["admit", "shop", "--user", "customer 7", "--silo", str(silo)])
    assert done.exit_code == 0, "the control: with nobody there it is done"


def test_a_silo_recommends_by_original_ids(deployed: Deployment) -> None:
    deployed.run()
    silo = deployed.folder / f"silo-{IDS.index('customer 7') % SILOS}"
    with pytest.raises(DataError, match="join again"):
        recommend_to(silo, "customer 7", 3)
    with pytest.raises(DataError, match=r"no folder .*silo-7 here.*flower join"):
        recommend_to(silo.with_name("silo-7"), "customer 7", 3)
    RecipeData(deployed.asked.recipe).note_in(Store(silo))
    found = recommend_to(silo, "customer 7", 3)
    assert len(found) == 3
    assert all(one.item.startswith("product ") for one in found)
    assert one_cell(deployed.asked.recipe, None)
