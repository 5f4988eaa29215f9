"""Silos that refused a step of a request: asked again at the next start, unless it went on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message

from flower.grids import FIRST, InMemory
from flower.served import results
from flower.silo_shop import asks, outcomes
from rescind.cli.flower_told import silos_told
from rescind.errors import ConsentError
from rescind.flower.run_request import RunRequest
from rescind.flower.server.journal import Journal
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter, pack_error

pytestmark = pytest.mark.flower

DATA = """
[data]
name = "synthetic"
users = 24
items = 20
interactions = 220
"""
GRAM = DATA + '\n[method]\nname = "Gram"\n\n[run]\nrounds = 1\nevaluate_every = 1\n'
FEDAVG = (
    DATA
    + """
[method]
name = "FedAvg"
model = { name = "MF", dim = 4 }

[run]
rounds = 3
evaluate_every = 3
checkpoint_every = 1
"""
)
SILO = 0
"""The silo of the one who withdraws."""
LEAVER = asks(leave=["6"])
RETRAIN = {"requests": LEAVER, "unlearner": "Retrain"}


class Interrupted(InMemory):
    """A grid on which silo 1 refuses a step of a request, and on which the server is killed."""

    forgetting: Path
    refused_in: int | None = None
    """The round of a request in which silo 1 refuses to train; None: in none."""
    killed_in: int | None = None
    """The round of a request that silos train, but whose replies the server does not get."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        trains = [m for m in messages if m.metadata.message_type == "train"]
        now = int(trains[0].metadata.group_id) if trains and self.forgetting.is_dir() else None
        self.changed = self._refusal if now is not None and now == self.refused_in else None
        if now is not None and self.absurd:
            self.changed = _enlarged
        self.away = set() if now is None or self.silent is None else {FIRST + self.silent}
        ids = super().push_messages(messages)
        if now is not None and now == self.killed_in:
            raise KeyboardInterrupt
        return ids

    absurd: bool = False
    """Silos send sums that cannot be."""
    silent: int | None = None
    """A silo that does not answer the rounds of a request."""

    def _refusal(self, node: int, reply: Letter) -> Letter:
        if node != FIRST + 1:
            return reply
        echo = {n: reply.facts[n] for n in ("run", "round", "epoch", "verb", "of", "silo", "silos")}
        return Letter({**echo, **pack_error(ConsentError("not now"))}, {})


def _enlarged(node: int, reply: Letter) -> Letter:
    """Return a reply with sums that are a million times as large."""
    tensors = reply.tensors.items()
    return Letter(reply.facts, {n: v if "said" in n else v * 10**6 for n, v in tensors})


@dataclass(frozen=True)
class Deployment:
    """A server and two silos with their disks."""

    folder: Path
    recipe: str

    def run(self, single_updates: bool = False, **fields: Any) -> InMemory:
        """Start the silos and the server. Return the grid."""
        grid = self.grid(single_updates)
        serve(grid, replace(self.asked, **fields))
        return grid

    def grid(self, single_updates: bool = False) -> Interrupted:
        self.folder.mkdir(exist_ok=True)
        Path(self.asked.recipe).write_text(self.recipe)
        source = RecipeData(self.asked.recipe)
        grid = Interrupted(
            {
                FIRST + silo: Node(
                    Store(self.folder / f"silo-{silo}"),
                    source, silo, 2, single_updates=single_updates,
                )
                for silo in range(2)
            }
        )  # fmt: skip
        grid.forgetting = self.folder / "out" / "forgetting"
        return grid

    @property
    def asked(self) -> RunRequest:
        recipe, out = self.folder / "recipe.toml", self.folder / "out"
        return RunRequest(str(recipe), 2, str(out), deadline=0.0, wait=0.0)

    @property
    def facts(self) -> dict[str, Any]:
        return results(self.asked)[0]

    @property
    def model(self) -> dict[str, torch.Tensor]:
        return results(self.asked)[1]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(other[name], value) for name, value in one.items())


@pytest.mark.parametrize("resume", [False, True], ids=["the same command", "with --resume"])
def test_a_request_is_answered_when_the_silo_that_refused_it_joins_with_the_flag(
    resume: bool, tmp_path: Path
) -> None:
    allowed = Deployment(tmp_path / "allowed", GRAM)
    allowed.run(single_updates=True)
    allowed.run(single_updates=True, requests=LEAVER)
    late = Deployment(tmp_path / "late", GRAM)
    late.run()
    trained = late.model
    for _ in range(2):  # the second time as before: nobody has allowed it
        late.run(requests=LEAVER, resume=resume)
        assert outcomes(late.facts) == ["WAITING"]
        assert "--single-updates" in late.facts["requests"][0]["reason"]
        assert same(late.model, trained)
    grid = late.run(single_updates=True, requests=LEAVER, resume=resume)
    assert not same(late.model, trained)
    assert same(late.model, allowed.model)
    (forgot,) = late.facts["forgot"]
    assert (forgot["event"], forgot["traces"]) == ("Withdraw", {})
    assert outcomes(late.facts) == ["ERASED"]
    verbs = [reply.facts["verb"] for _, reply in grid.said]
    assert verbs.count("apply") == 0, "what the silo had done before was asked for again"


def test_who_is_not_answered_yet_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    """One silo that joined without the flag held back the receipts of another's users."""
    run = Deployment(tmp_path / "run", GRAM)
    run.run(single_updates=True)
    asked = replace(run.asked, requests=asks(leave=["6", "7", "99"]))
    grid = run.grid(single_updates=True)
    grid.nodes[FIRST + 1] = replace(grid.nodes[FIRST + 1], single_updates=False)
    serve(grid, asked)
    assert outcomes(run.facts) == ["ERASED", "WAITING", "unknown-person"]
    serve(run.grid(single_updates=True), replace(asked, resume=True, requests=()))
    assert outcomes(run.facts) == ["ERASED"]
    both = Deployment(tmp_path / "both", GRAM)
    both.run(single_updates=True)
    both.run(single_updates=True, requests=asked.requests)
    assert same(run.model, both.model)


def test_a_run_says_which_silos_would_refuse_a_withdrawal(tmp_path: Path) -> None:
    run = Deployment(tmp_path / "run", GRAM)
    run.run()
    assert run.facts["silos"]["would_refuse"] == [0, 1]
    (line,) = silos_told(run.facts["silos"])
    assert "silos 0, 1 joined without --single-updates" in line
    run.run(single_updates=True)
    assert silos_told(run.facts["silos"]) == []
    averaged = Deployment(tmp_path / "averaged", FEDAVG)
    averaged.run()  # retrains with sums of everybody else
    assert silos_told(averaged.facts["silos"]) == []


@pytest.mark.parametrize("lost", ["no answer", "an absurd sum"])
def test_a_request_is_not_answered_without_the_silo_of_the_one_who_withdraws(
    lost: str, tmp_path: Path
) -> None:
    """Before, nothing was subtracted, and the receipt said that everything was."""
    run = Deployment(tmp_path / "run", GRAM)
    run.run(single_updates=True)
    trained, asked = run.model, replace(run.asked, requests=LEAVER)
    grid = run.grid(single_updates=True)
    grid.silent = SILO if lost == "no answer" else None
    grid.absurd = lost != "no answer"
    serve(grid, asked)
    assert outcomes(run.facts) == ["WAITING"]
    assert "forgot" not in run.facts
    assert not run.facts["requests"][0]["papers"]
    assert same(run.model, trained)
    grid = run.grid(single_updates=True)
    grid.silent = 1 - SILO  # the control: who has nothing to do with it may be away
    serve(grid, asked)
    assert not same(run.model, trained)
    assert outcomes(run.facts) == ["ERASED"]
    whole = Deployment(tmp_path / "whole", GRAM)
    whole.run(single_updates=True)
    whole.run(single_updates=True, requests=LEAVER)
    assert same(run.model, whole.model)


@pytest.mark.parametrize("killed_in", [2, 3])
def test_a_refusal_counts_only_if_the_server_went_on_after_it(
    killed_in: int, tmp_path: Path
) -> None:
    """Silo 1 refuses round 1 of a request, and the server goes on with silo 0 alone.

    Killed before the next replies came, it asks silo 1 again. Killed later, it repeats what it did.
    """
    models = {}
    for name, refused_in in (("refused", 1), ("willing", None)):
        whole = Deployment(tmp_path / name, FEDAVG)
        grid = whole.grid()
        grid.refused_in = refused_in
        serve(grid, replace(whole.asked, **RETRAIN))
        models[name] = whole.model
    assert not same(models["refused"], models["willing"])
    killed = Deployment(tmp_path / "killed", FEDAVG)
    grid = killed.grid()
    grid.refused_in, grid.killed_in = 1, killed_in
    with pytest.raises(KeyboardInterrupt):
        serve(grid, replace(killed.asked, **RETRAIN))
    again = killed.run(resume=True, **RETRAIN)
    assert same(killed.model, models["willing" if killed_in == 2 else "refused"])
    rounds = [(node, r.facts["round"]) for node, r in again.said if r.facts["verb"] == "train"]
    first = [(FIRST + 1, 1)] if killed_in == 2 else []
    after = [(node, at) for at in range(killed_in, 4) for node in (FIRST, FIRST + 1)]
    assert rounds == first + after, "silo 0 answered round 1 once, and its sum is kept"


def test_the_journal_keeps_sums_and_only_refusals_that_something_came_after(tmp_path: Path) -> None:
    requests = {silo: Letter({"verb": "train", "silo": silo}, {}) for silo in range(2)}
    sums = {0: Letter({"verb": "train"}, {"sum": torch.arange(3)})}
    Journal(tmp_path).write(requests, (sums, {1: "node failed: no"}))
    replies, why = Journal(tmp_path).read(requests) or pytest.fail("nothing was kept")
    assert torch.equal(replies[0].tensors["sum"], torch.arange(3))
    assert why == {}
    Journal(tmp_path, position=1).write(requests, (sums, {}))
    replies, why = Journal(tmp_path).read(requests) or pytest.fail("nothing was kept")
    assert list(replies) == [0]
    assert why == {1: "node failed: no"}
