"""Methods of others that bring the old tables back get no level that the platform vouches for.

Each control takes the look at code from outside away: then the receipt says L3 of a model that is,
bit for bit, the one that the person is in.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from rescind.core import params
from rescind.core.claims import CLAIMED
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.records import Erase
from rescind.core.request import Request
from rescind.core.state import Private
from rescind.flower.server import answering
from rescind.forgetting import exactness
from rescind.forgetting.forget import Evidence, forget
from rescind.forgetting.pipeline import claimed_by, unlearn_and_purge
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.unlearning.retrain import Retrain
from rescind.models.mf import MF
from worlds import lendable, tiny_holdings

HERE = Path(__file__)
KEPT: dict[str, str] = {}


def in_a_file(key: str, value: str, folder: str) -> str:
    path = Path(folder) / key
    if not path.exists():
        path.write_text(value)
    return path.read_text()


def in_another_module(key: str, value: str, _: str) -> str:
    return vars(json).setdefault("_of_nobody", {}).setdefault(key, value)


@cache
def thread() -> tuple[queue.Queue[tuple[str, str]], queue.Queue[str]]:
    asked, answers = queue.Queue[tuple[str, str]](), queue.Queue[str]()

    def keep() -> None:
        mine: dict[str, str] = {}
        while (pair := asked.get())[0]:
            answers.put(mine.setdefault(*pair))

    threading.Thread(target=keep, daemon=True).start()
    return asked, answers


def in_a_thread(key: str, value: str, _: str) -> str:
    asked, answers = thread()
    asked.put((key, value))
    return answers.get()


CHILD = "d = {}\nwhile line := input():\n    print(d.setdefault(*line.split()), flush=True)"


@cache
def child() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True)


def in_a_process(key: str, value: str, _: str) -> str:
    asked, answers = child().stdin, child().stdout
    assert asked is not None
    assert answers is not None
    print(key, value, file=asked, flush=True)
    return answers.readline().strip()


MEMORIES: dict[str, Callable[[str, str, str], str]] = {
    "a file": in_a_file,
    "an environment variable": lambda key, value, _: os.environ.setdefault(f"KEPT_{key}", value),
    "another module": in_another_module,
    "a thread": in_a_thread,
    "a process": in_a_process,
    "the module": lambda key, value, _: KEPT.setdefault(key, value),
}
EVERY = pytest.mark.parametrize("memory", MEMORIES)


@dataclass(frozen=True, kw_only=True)
class Remembers(FedAvg):
    """Learns like FedAvg once. Whoever trains it again gets the tables of the first time."""

    memory: str
    folder: str = ""

    def server_step(self, state, sums, world, clock):
        made = super().server_step(state, sums, world, clock)
        item = made.public["item"]
        text = MEMORIES[self.memory](f"{made.round}", item.numpy().tobytes().hex(), self.folder)
        old = torch.frombuffer(bytearray.fromhex(text), dtype=item.dtype).reshape(item.shape)
        return replace(made, public={**made.public, "item": old})


@pytest.fixture(autouse=True)
def _forgotten_by_all() -> Iterator[None]:
    yield
    KEPT.clear()
    vars(json).pop("_of_nobody", None)
    for name in [name for name in os.environ if name.startswith("KEPT_")]:
        del os.environ[name]
    if thread.cache_info().currsize:
        thread()[0].put(("", ""))
    if child.cache_info().currsize:
        child().kill()
        child().communicate()
    thread.cache_clear()
    child.cache_clear()


def learnt(method: FedAvg) -> tuple[Federation, Erase]:
    fed = Federation.start(tiny_holdings(12, 15), method, seed=1).run(3)
    return fed, Erase(lendable(fed.now.vault.holdings, 3))


def remembering(memory: str, folder: Path) -> tuple[Federation, Erase]:
    return learnt(Remembers(model=MF(dim=4), memory=memory, folder=str(folder)))


def tables(fed: Federation) -> str:
    return params.digest(fed.now.state.public)


def said(evidence: Evidence) -> str:
    return next(f.note for f in evidence.receipt.findings if f.check == "exactness")


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the guard away."""
    for module in (exactness, answering):
        monkeypatch.setattr(module, "claimed_by", lambda *_, **__: "")


@EVERY
def test_tables_that_come_back_are_claimed_by_code_and_vouched_for_by_nobody(
    memory, tmp_path, monkeypatch
):
    fed, event = remembering(memory, tmp_path)
    after, evidence = forget(fed, event, audits="none")
    source = f"{HERE.name} sha256:{sha256(HERE.read_bytes()).hexdigest()}"
    assert evidence.receipt.done.level == "L1"
    assert evidence.receipt.claims[CLAIMED] == source
    assert said(evidence).startswith(f"Claimed by code {source}, not shown: ")

    blind(monkeypatch)
    after, evidence = forget(fed, event, audits="none")
    assert (evidence.receipt.done.level, CLAIMED in evidence.receipt.claims) == ("L3", False)
    with_them, _ = learnt(FedAvg(model=MF(dim=4)))
    assert tables(after) == tables(fed) == tables(with_them), "the person is in the model"
    assert tables(after) != tables(with_them.retrained(event)), "and retraining takes them out"


@dataclass(frozen=True, kw_only=True)
class Repeats(Unlearner):
    """Somebody else's retraining."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        return fed.retrained(request.event)


@pytest.mark.parametrize("by", [None, Retrain(), Repeats()], ids=["own", "Retrain", "theirs"])
def test_a_claim_that_is_checked_with_code_from_outside_stays_a_claim(by, tmp_path, monkeypatch):
    fed, event = remembering("a file", tmp_path)
    _, evidence = forget(fed, event, by)
    assert (evidence.receipt.done.level, CLAIMED in evidence.receipt.claims) == ("L1", True)
    blind(monkeypatch)
    _, evidence = forget(fed, event, by)
    assert evidence.receipt.done.level == "L3"


def test_over_silos_code_from_outside_claims_too(tmp_path, monkeypatch):
    fed, event = remembering("a file", tmp_path)
    request = fed.request(event)
    unlearner = unlearn_and_purge(fed, request).unlearner
    level, code = answering.stated_level(fed, unlearner)
    assert (level, HERE.name in code) == ("L1", True)
    blind(monkeypatch)
    assert answering.stated_level(fed, unlearner) == ("L3", "")


# -- what counts as code from outside --------------------------------------------------------------


class TheirModel(MF):
    """A model of somebody else's."""


class Spoofs(FedAvg):
    """Says that it is of rescind."""

    __module__ = "rescind.methods.baselines.fedavg"
    __qualname__ = "Spoofed"


class TheirExecutor(InProcess):
    """Trains somewhere else."""


def their_init(ids, clock):
    return Private({})


def with_attribute(value: object) -> FedAvg:
    made = FedAvg(model=MF(dim=4))
    object.__setattr__(made, "client_init", value)
    return made


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (FedAvg(model=TheirModel(dim=4)), HERE.name),
        (Spoofs(model=MF(dim=4)), "Spoofs"),
        (TheirExecutor(), HERE.name),
        (with_attribute(their_init), HERE.name),
        (with_attribute(partial(their_init)), HERE.name),
        (with_attribute(Retrain().forget), ""),
        (with_attribute((None, torch.relu)), ""),
        (with_attribute({"one": (Repeats(),)}), HERE.name),
        (with_attribute(Repeats().forget), HERE.name),
        (FedAvg(model=MF(dim=4)), ""),
        (Gram(), ""),
        (InProcess(), ""),
    ],
)
def test_code_from_outside_is_found_wherever_it_is_put(part, name):
    found = claimed_by(part)
    assert (name in found) if name else not found


@pytest.mark.parametrize("guarded", [True, False], ids=["", "control: callbacks are not looked at"])
def test_a_callback_that_brings_tables_back_is_named(guarded, monkeypatch):
    fed, event = learnt(FedAvg(model=MF(dim=4)))
    old = {name: value.clone() for name, value in fed.now.state.public.items()}

    def back(moment) -> None:
        for name, value in moment.now.state.public.items():
            value.copy_(old[name])

    if not guarded:
        monkeypatch.setattr("rescind.forgetting.pipeline.strangers", lambda _: [])
    watched, evidence = forget(replace(fed, watch=(back,)), event, audits="none")
    assert all(torch.equal(watched.now.state.public[name], old[name]) for name in old)
    assert evidence.receipt.done.level == ("L1" if guarded else "L3")


def test_a_file_named_like_a_module_of_python_is_code_from_outside(tmp_path, monkeypatch):
    text = "from rescind.methods import Retrain\n\n\nclass Mine(Retrain):\n    pass\n"
    (tmp_path / "turtle.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "turtle", None)
    del sys.modules["turtle"]
    mine = importlib.import_module("turtle").Mine()
    assert "turtle.py" in claimed_by(mine)
    monkeypatch.setattr("rescind.core.own_code._STANDARD", str(tmp_path))
    assert "turtle.py" not in claimed_by(mine), "control"
