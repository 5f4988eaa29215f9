"""Many requests over silos, by original ids, while silos come and go: each gets its receipt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import FIRST, InMemory
from flower.served import SHOP
from flower.silo_shop import SiloShop, asks, outcomes, stored_rows
from rescind.cli.flower_told import answers_told, exit_code, silos_told
from rescind.cli.request import app
from rescind.core.claims import CONFIRMED
from rescind.core.files import locked
from rescind.data import import_file
from rescind.data.importing import append_file
from rescind.errors import ConfigError, DataError, RescindError
from rescind.flower.silo.names import ITEM, USER, key_of
from rescind.flower.silo.node import Node
from rescind.flower.silo.recommend import recommend_to
from rescind.flower.wire.messages import Letter, pack_error
from rescind.home import Ledger, Refused
from rescind.privacy import keys
from rescind.receipts.receipt import Receipt, digest, opened, parse
from rescind.receipts.verify import verify
from rescind.requests.answer import answer

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


@dataclass
class Deployment(SiloShop):
    fails: int | None = None
    """The silo that answers with an error whatever is to be applied."""
    last: Counting | None = None

    def made(self, nodes: dict[int, Node]) -> InMemory:
        self.last = Counting(nodes)
        self.last.changed = self._failing
        return self.last

    @property
    def rounds(self) -> int:
        return self.last.rounds if self.last else 0

    def _failing(self, node: int, reply: Letter) -> Letter:
        fails = self.fails is not None and node == FIRST + self.fails
        if not fails or reply.facts["verb"] in ("meet", "find"):
            return reply
        why = DataError("the disk of this silo is damaged")
        return Letter({**reply.facts, **pack_error(why)}, {})

    def items(self, user: str, newest: bool = False) -> set[str]:
        """Return the items of a user that a silo's disk has."""
        names = {key_of(ITEM, f"product {n}"): f"product {n}" for n in range(20)}
        return {names[i] for who, i in self.held(newest) if who == key_of(USER, user)}


def silo_of(user: str) -> int:
    return IDS.index(user) % SILOS


def first_items(user: str) -> set[str]:
    """Return the items that the first file has of a user."""
    return {f"product {(7 * IDS.index(user) + 5 * k) % 20}" for k in range(8)}


def papers(one: dict[str, Any]) -> tuple[Receipt, dict[str, bytes]]:
    """Return the exact receipt of a request and all that is sent with it."""
    with ZipFile(BytesIO(Path(one["papers"]).read_bytes())) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    signer = keys.own_public_key()
    assert signer
    assert verify(files["receipt.json"], {signer: "the server"}).valid
    return opened(parse(files["receipt.json"]), bytes.fromhex(files["receipt.key"].decode())), files


@pytest.fixture
def deployed(tmp_path: Path) -> Deployment:
    rows = [
        f"{user},product {(7 * n + 5 * k) % 20}" for n, user in enumerate(IDS) for k in range(8)
    ]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    data = import_file(tmp_path / "shop.csv", "shop")
    assert [str(u) for u in data.users] == IDS, "the first row of a user decides the number"
    made = Deployment(tmp_path, SILOS)
    made.write_recipe(SHOP)
    return made


def test_a_day_of_requests(deployed: Deployment) -> None:
    deployed.serve()
    assert deployed.rounds == 3 * SILOS

    # Two people together, by their original ids; the run is not trained first.
    facts = deployed.serve(*asks(leave=["customer 7", "customer 8"]))
    assert outcomes(facts) == ["ERASED", "ERASED"]
    assert deployed.rounds == 2 * 3 * SILOS, "each is retrained once, and nothing else"
    assert not deployed.items("customer 7") | deployed.items("customer 8")
    assert deployed.items("customer 9") == first_items("customer 9")

    # One more, later; then one whose silo is away for the whole request.
    (item,) = sorted(first_items("customer 9"))[:1]
    assert outcomes(deployed.serve(*asks(erase={"customer 9": [item]}))) == ["ERASED"]
    away = silo_of("customer 10")
    facts = deployed.serve(*asks(leave=["customer 10"]), away=[away])
    assert outcomes(facts) == ["WAITING"]
    assert exit_code(facts["requests"]) == 10
    assert not facts["requests"][0]["papers"], "there is one receipt, at the end"
    assert deployed.items("customer 10")

    # It does not block the next, nor is anything lost while it is still away.
    other = next(u for u in IDS if silo_of(u) not in (away, silo_of("customer 7")))
    assert outcomes(deployed.serve(*asks(leave=[other]), away=[away])) == ["WAITING"] * 2
    assert not deployed.items(other)
    with pytest.raises(ConfigError):
        deployed.serve()  # a training would begin with what the silo has

    # It is back with the next request, and catches up first.
    facts = deployed.serve(*asks(leave=["customer 11"]))
    assert outcomes(facts) == ["ERASED"] * 3
    assert facts["silos"]["waiting"] == []
    assert not deployed.items("customer 10")
    found = [papers(one) for one in facts["requests"]]
    assert [one.done.level for one, _ in found] == ["L3"] * 3
    assert all(one.claims[CONFIRMED].count("silo") == SILOS for one, _ in found)
    scanned = [[f.n for f in one.findings if f.check == "scan"] for one, _ in found]
    assert scanned == [[8]] * 3, "also of who was looked up while their silo was away"
    follows = [parse(files["receipt.json"]).previous for _, files in found]
    assert follows[1:] == [digest(files["receipt.json"]) for _, files in found[:2]]


def test_what_a_machine_stores_goes_with_the_request(deployed: Deployment) -> None:
    deployed.serve()
    facts = deployed.serve(*asks(leave=["customer 7"]))
    assert "customer 7" not in {user for user, _ in stored_rows()}
    assert "customer 8" in {user for user, _ in stored_rows()}, "the control"
    receipt, _ = papers(facts["requests"][0])
    assert [(one.check, one.n) for one in receipt.findings][-1] == ("scan", 8)


def test_the_operator_is_told_of_silos_that_the_model_knows_nothing_of(
    deployed: Deployment,
) -> None:
    deployed.serve()
    away = silo_of("customer 10")
    facts = deployed.serve(*asks(leave=["customer 7"]))
    assert silos_told(facts["silos"]) == [], "the control: all were there"
    facts = deployed.serve(*asks(leave=["customer 9"]), away=[away])
    assert facts["silos"]["waiting"] == facts["silos"]["not_in_model"] == [away]
    assert facts["measured_without"] == [away]
    back = deployed.serve(resume=True)
    assert outcomes(back) == ["ERASED"]
    assert (back["silos"]["waiting"], back["silos"]["not_in_model"]) == ([], [away])
    assert back["measured_without"] == []
    assert back["metrics"] != facts["metrics"]
    assert len(silos_told(back["silos"])) == 1
    facts = deployed.serve()  # what the operator was told to do
    assert silos_told(facts["silos"]) == []
    assert deployed.rounds == 3 * SILOS


def test_a_silo_that_is_waited_for_is_named_with_the_time(
    deployed: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rescind.flower.server.transport")

    def waited(*leave: str, away: Iterable[int] = ()) -> list[str]:
        caplog.clear()
        deployed.serve(*asks(leave=leave), away=[*away])
        lines = [r.getMessage() for r in caplog.records if "waiting for" in r.getMessage()]
        assert all(re.search(r", until \d\d:\d\d:\d\d \(--wait\)$", line) for line in lines)
        return [line.partition(", until")[0] for line in lines]

    assert waited() == [], "the control: all are there at once"
    assert waited("customer 7", away=[1]) == ["waiting for silo 1"]
    assert waited("customer 8", away=[0, 1]) == ["waiting for silos 0, 1"]


def test_an_answered_request_is_not_kept_on_the_server(deployed: Deployment) -> None:
    deployed.serve(*asks(leave=["customer 7"]))
    (stand,) = (deployed.out / "forgetting").glob("stand-*")
    assert {path.name for path in stand.iterdir() if path.name.startswith("heard")} == set()
    with Ledger.open() as ledger:
        files = [*deployed.out.rglob("*"), ledger.file]
        assert ledger.requests()[0].records == {}
    assert all(b"customer 7" not in p.read_bytes() for p in files if p.is_file())


def test_each_requester_gets_papers_that_name_them_alone(deployed: Deployment) -> None:
    deployed.serve()
    away = silo_of("customer 10")
    asked = asks(leave=["customer 7", "customer 10"], erase={"customer 8": ["product 12"]})
    facts = deployed.serve(*asked, away=[away])
    assert outcomes(facts) == ["WAITING"] * 3
    assert not any("customer" in json.dumps(one) for one in facts.values())
    facts = deployed.serve(resume=True)
    assert outcomes(facts) == ["ERASED"] * 3
    assert sum("answers/" in line for line in answers_told(facts["requests"])) == 3
    found = [papers(one) for one in facts["requests"]]
    exact = [json.loads(files["request.json"]) for _, files in found]
    assert [(one["kind"], one["user"], one.get("item")) for one in exact] == [
        ("Erase", ["customer 8"], ["product 12"]),
        ("Withdraw", "customer 7", None),
        ("Withdraw", "customer 10", None),
    ]
    assert {Path(one["papers"]).stat().st_mode & 0o777 for one in facts["requests"]} == {0o600}


def test_the_same_command_again_is_not_answered_twice(deployed: Deployment) -> None:
    (first,) = deployed.serve(*asks(leave=["customer 7"]))["requests"]
    for resume in (True, False):
        (again,) = deployed.serve(*asks(leave=["customer 7"]), resume=resume)["requests"]
        assert (again["outcome"], again["receipt"]) == ("REPEATED", first["receipt"])
        assert deployed.rounds == 0


def test_a_wrong_id_is_told_before_any_training(deployed: Deployment) -> None:
    with pytest.raises(Refused) as told:
        deployed.serve(*asks(leave=["7"]))
    assert told.value.code == "unknown-person"
    assert deployed.rounds == 0
    assert "customer" not in str(told.value), "nobody else is named"


def test_a_request_that_cannot_be_answered_does_not_block_the_others(deployed: Deployment) -> None:
    deployed.serve()
    own = first_items("customer 9")
    strange = min({f"product {n}" for n in range(20)} - own)
    asked = asks(
        unshare=["customer 6"], leave=["9", "customer 8"], erase={"customer 9": [min(own), strange]}
    )
    facts = deployed.serve(*asked)
    assert outcomes(facts) == ["nothing-lent", "not-held", "unknown-person", "ERASED"]
    assert exit_code(facts["requests"]) == 20
    assert not deployed.items("customer 8")
    deployed.serve()
    assert deployed.items("customer 9") == own, "a refusal changes nothing, nor later"

    # The next command tells of its own requests only; what was refused is to be asked again.
    assert outcomes(deployed.serve(*asks(leave=["customer 7"]))) == ["ERASED"]
    facts = deployed.serve(*asks(leave=["9"]))
    assert outcomes(facts) == ["unknown-person"]
    with Ledger.open() as ledger:
        assert len(ledger.requests(open_only=True)) == 3, "the same words are the same request"


def test_it_blocks_no_others_either_where_another_silo_missed_something(
    deployed: Deployment,
) -> None:
    """The answer of a silo that applies an earlier request hid that this one was refused."""
    deployed.serve()
    deployed.serve(*asks(leave=["customer 8"]), away=[silo_of("customer 7")])
    strange = min({f"product {n}" for n in range(20)} - first_items("customer 9"))
    asked = asks(erase={"customer 9": [strange]}, leave=["customer 6"])
    facts = deployed.serve(*asked)
    assert outcomes(facts) == ["ERASED", "not-held", "ERASED"]
    assert facts["silos"]["waiting"] == []
    assert not deployed.items("customer 6")
    assert deployed.items("customer 9")


def test_a_silo_that_fails_keeps_its_people_waiting_and_no_others(deployed: Deployment) -> None:
    deployed.serve()
    late = silo_of("customer 7")
    deployed.serve(*asks(leave=["customer 8"]), away=[late])
    deployed.fails = late
    facts = deployed.serve(*asks(leave=["customer 6"]))
    assert outcomes(facts) == ["WAITING"] * 2
    assert not deployed.items("customer 6")
    assert facts["silos"]["waiting"] == [late]
    deployed.fails = None
    facts = deployed.serve(resume=True)
    assert outcomes(facts) == ["ERASED"] * 2
    assert facts["silos"]["waiting"] == []


def test_requests_over_silos_are_not_answered_without_them(deployed: Deployment) -> None:
    deployed.serve()
    deployed.serve(*asks(leave=["customer 7"]), away=[silo_of("customer 7")])
    with Ledger.open() as ledger:
        (request,) = ledger.requests(open_only=True)
        assert answer(ledger, request.id).outcome == "WAITING"
        assert ledger.request(request.id).records, "it is as it was"
    assert outcomes(deployed.serve(resume=True)) == ["ERASED"]


def test_a_new_training_after_a_request_starts_without_the_erased(deployed: Deployment) -> None:
    deployed.serve(*asks(leave=["customer 7"]))
    facts = deployed.serve()  # was refused: "something was forgotten here since (epoch 1)"
    assert deployed.rounds == 3 * SILOS
    assert "forgot" not in facts
    assert not deployed.items("customer 7")
    facts = deployed.serve(*asks(leave=["customer 8"]))
    assert papers(facts["requests"][0])[0].previous, "one chain over both trainings"


def let_in(deployed: Deployment, user: str) -> None:
    for silo in range(SILOS):  # all have the same table
        words = ["readmit", "--user", user, "--silo", str(deployed.silo(silo))]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.exception


def append(deployed: Deployment, user: str, items: Iterable[str]) -> None:
    later = deployed.folder / "later.csv"
    later.write_text("\n".join(["user,item", *(f"{user},{item}" for item in items)]) + "\n")
    append_file("shop", later)


def test_who_returns_to_a_silo_brings_new_rows_only(deployed: Deployment) -> None:
    before = first_items("customer 7")
    away, new = sorted({f"product {n}" for n in range(20)} - before)[:2]
    facts = deployed.serve(*asks(leave=["customer 7", "customer 8"]))
    append(deployed, "customer 7", [away])
    deployed.serve()
    assert not deployed.items("customer 7"), "the control: nobody let them in"
    let_in(deployed, "customer 7")
    append(deployed, "customer 7", [new, min(before)])
    deployed.serve()
    assert deployed.items("customer 7") == {new}
    assert not deployed.items("customer 8"), "they did not ask to be back"
    assert papers(facts["requests"][0])[0].done.level == "L3", "what was promised still holds"

    # And they can leave again.
    (again,) = deployed.serve(*asks(leave=["customer 7"]))["requests"]
    assert again["outcome"] == "ERASED"
    assert again["receipt"] != facts["requests"][0]["receipt"]
    deployed.serve()
    assert not deployed.items("customer 7")


def test_rows_that_no_model_has_learnt_are_deleted_with_a_receipt(deployed: Deployment) -> None:
    deployed.serve(*asks(leave=["customer 7"]))
    new = min({f"product {n}" for n in range(20)} - first_items("customer 7"))
    let_in(deployed, "customer 7")
    append(deployed, "customer 7", [new])
    facts = deployed.serve(*asks(leave=["customer 7"]))
    assert (outcomes(facts), deployed.rounds) == (["ROWS_ONLY"], 0)
    assert papers(facts["requests"][0])[0].done.level == "L1"
    assert "customer 7" not in {user for user, _ in stored_rows()}
    append(deployed, "customer 7", ["product 3", "product 4"])
    deployed.serve()
    assert not deployed.items("customer 7")


def test_a_silo_lets_in_only_who_left_it_and_only_while_it_is_alone(deployed: Deployment) -> None:
    deployed.serve(*asks(leave=["customer 7"]))

    def code(user: str, folder: Path) -> str:
        done = CliRunner().invoke(app, ["readmit", "--user", user, "--silo", str(folder)])
        assert isinstance(done.exception, RescindError), done.output
        return done.exception.code

    silo = deployed.silo(silo_of("customer 7"))
    assert code("customer 9", silo) == "has-not-left"
    assert code("nobody", silo) == "unknown-person"
    assert code("customer 7", deployed.folder) == "setting", "no silo"
    with locked(silo):
        assert code("customer 7", silo) == "setting"
    let_in(deployed, "customer 7")


def test_a_silo_recommends_by_original_ids(deployed: Deployment) -> None:
    deployed.serve()
    silo = deployed.silo(silo_of("customer 7"))
    with pytest.raises(DataError):
        recommend_to(silo.with_name("silo-7"), "customer 7", 3)
    found = recommend_to(silo, "customer 7", 3)
    assert len(found) == 3
    assert all(one.item.startswith("product ") for one in found)
