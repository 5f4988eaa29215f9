"""Saved files with something wrong in them under a right digest, and those who read them.

    python mutating.py KIND,KIND FOLDER SEED COUNT [unchecked]

It prints what was refused, read, and went wrong. unchecked: without the reader's checks.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rescind as rs
from interrupting import ROWS, Tried
from rescind.core import params
from rescind.errors import RescindError
from rescind.storage.content import Store
from rescind.storage.federations import load_federation, save_federation
from rescind.storage.run_folder import HEAD

HUGE = "[" * 200_000
TEXTS = [
    "", "null", "[]", "{}", "3", "[1, 1]", "[1.5]", "[true]", "[null]", '["\\ud800"]', "[[1]]",
    '{"a": 1}', HUGE, "\x00", '"x"', "[1, 2, 3]", "NaN", '["a"', "-1", "1e400", "9" * 5000, "x",
    '{"facts": []}', '[{"a": [1]}]', "ünï", "18446744073709551616",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e308, 1e-308,
    float("nan"), float("inf"), "", "x", "none", [], [1], {}, {"a": 1}, [[]], "a" * 5000,
]  # fmt: skip
NUMBERS = [-1, 0, 1, 2, 3, 9, 200, 2**15, 2**31, 2**40, 2**62, -(2**62), -(2**63), 2**63 - 1]
KINDS = [
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float32,
    torch.float64, torch.float16, torch.bfloat16,
]  # fmt: skip


class Dice:
    """Numbers from a seed and a counter, the same on every machine."""

    def __init__(self, seed: str) -> None:
        self.seed, self.rolled = seed, 0

    def below(self, high: int) -> int:
        self.rolled += 1
        digest = sha256(f"{self.seed}/{self.rolled}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % high

    def pick(self, choices: Any) -> Any:
        listed = [*choices]
        return listed[self.below(len(listed))]


def mutate(tensors: dict[str, Tensor], notes: dict[str, str], dice: Dice) -> None:
    """Change one or two things, in place."""
    for _ in range(1 + dice.below(2)):
        if notes and (not tensors or dice.below(3) == 0):
            mutate_notes(notes, dice)
        elif tensors:
            mutate_tensors(tensors, dice)


def mutate_notes(notes: dict[str, str], dice: Dice) -> None:
    name, act = dice.pick(sorted(notes)), dice.below(8)
    if act == 0:
        del notes[name]
    elif act == 1:
        notes[dice.pick(["x", "marks", "key", "facts"])] = dice.pick(TEXTS)
    elif act == 2 or not notes[name].startswith(("{", "[")):
        notes[name] = dice.pick(TEXTS)
    else:
        with suppress(ValueError, RecursionError):  # it was changed before
            table = json.loads(notes[name])
            inner(table, dice)
            notes[name] = json.dumps(table)


def inner(table: Any, dice: Dice) -> None:
    """Change a value somewhere in a table."""
    while True:
        listed = range(len(table)) if isinstance(table, list) else sorted(table)
        if not listed:
            return
        at = dice.pick(listed)
        if isinstance(table[at], dict | list) and table[at] and dice.below(4):
            table = table[at]
        elif dice.below(6) == 0:
            del table[at]
            return
        else:
            table[at] = dice.pick(VALUES)
            return


def mutate_tensors(tensors: dict[str, Tensor], dice: Dice) -> None:
    name, act = dice.pick(sorted(tensors)), dice.below(10)
    value = tensors[name].clone()
    if act == 0:
        del tensors[name]
        return
    if act == 1:
        tensors[dice.pick(["x", "marks", "time", "total", "items"])] = value
        return
    if act == 2:
        value = value.double().to(dice.pick(KINDS))
    elif act == 3:
        value = value[: dice.below(len(value) + 1)] if value.dim() else value.reshape(1)
    elif act == 4:
        value = value.reshape(-1) if dice.below(2) else value.unsqueeze(dice.below(2))
    elif act == 5:
        value = torch.cat([value, value]) if value.dim() else value
    elif act == 6 and value.dtype == torch.uint8:
        value = torch.tensor([*dice.pick(TEXTS).encode()], dtype=torch.uint8)
    elif value.numel():
        many = 1 if act < 9 else value.numel()
        flat = value.reshape(-1)
        for _ in range(many if many == 1 else min(many, 20)):
            number, other = torch.tensor(dice.pick(NUMBERS)), flat[dice.below(len(flat))]
            flat[dice.below(len(flat))] = number.to(flat.dtype) if dice.below(3) else other
        value = flat.reshape(value.shape)
    tensors[name] = value


def use_ranker(model: Any) -> None:
    """Ask for all that a loaded model answers."""
    model.digest(), len(model)
    items = model.items
    if items:
        model.recommend(history=items[:2], k=3)
        held = [("nobody", items[0])]
    if model._ledger.whole and model.users:
        model.recommend(model.users[0])
        held = [(model.users[0], "unknown")]
        model.evaluate(held, k=3)
        model.forget(users=[model.users[0]])
    model.add([("somebody", "new", 1), ("somebody", "else", 2)])
    model.recommend(history=["new"])


def use_graph(model: Any) -> None:
    model.digest(), len(model)
    if model.nodes and model.classes:
        model.predict(model.nodes[:3])
    if model.nodes:
        model.forget(nodes=[model.nodes[0]])


class Estimator:
    """Files of one form of estimator."""

    def __init__(self, form: str, folder: Path) -> None:
        self.again = folder / "saved again"
        self.case = Tried("Gram" if form == "large" else form, folder)
        if form == "large":
            rs.Gram(dense_items=3).fit(ROWS).save(self.case.path)
        self.tensors, self.notes = params.load(self.case.path)

    def write(self, dice: Dice) -> None:
        tensors, notes = dict(self.tensors), dict(self.notes)
        mutate(tensors, notes, dice)
        params.save(self.case.path, tensors, notes)

    def read(self) -> None:
        more = {} if self.case.log is None else {"log": self.case.log}
        model = self.case.learner.load(self.case.path, **more)
        use_graph(model) if hasattr(model, "nodes") else use_ranker(model)
        model.save(self.again)


class Saved:
    """A saved federation: its list of server values, or that of devices."""

    def __init__(self, method: str, side: str, folder: Path) -> None:
        self.folder, self.side = folder / "fed", side
        data = rs.load("synthetic", users=12, items=19, interactions=90)
        fed = rs.Federation.start(data, getattr(rs.methods, method)(), seed=0)
        fed = rs.simulate_lending(fed).run(1)
        save_federation(fed, self.folder)
        self.head = params.load(self.folder / HEAD)
        name = json.loads(self.head[1]["facts"])["lists"]["devices"]
        file = self.folder / "devices" / f"{name}.safetensors"
        self.devices = params.from_bytes(file.read_bytes())

    def write(self, dice: Dice) -> None:
        (tensors, notes), (held, about) = self.head, self.devices
        tensors, notes, held, about = dict(tensors), dict(notes), dict(held), dict(about)
        if self.side == "server":
            mutate(tensors, notes, dice)
        else:
            mutate(held, about, dice)
            facts = json.loads(notes["facts"])
            facts["lists"]["devices"] = Store(self.folder / "devices").put(
                params.to_bytes(held, about)
            ).hex()  # fmt: skip
            notes["facts"] = json.dumps(facts)
        params.save(self.folder / HEAD, tensors, notes)

    def read(self) -> None:
        fed = load_federation(self.folder)
        fed.now.vault.holdings.digest()
        params.digest(fed.now.state.public)
        after = fed.run(1)
        after.recommend(after.labels.users[0])


FORMS = ("Gram", "SeqGram", "GraphGram", "log", "timed log", "large")
MADE: dict[str, Callable[[Path], Any]] = {
    form: (lambda folder, form=form: Estimator(form, folder)) for form in FORMS
} | {
    f"{method} {side}": (lambda folder, m=method, s=side: Saved(m, s, folder))
    for method in ("FedAvg", "Gram") for side in ("server", "devices")
}  # fmt: skip


def play(kind: str, folder: Path, seed: int, count: int) -> Counter[str]:
    """Read mutated files; return how many were refused and read, and every traceback."""
    found: Counter[str] = Counter()
    case = MADE[kind](folder)
    case.read()
    for number in range(count):
        dice = Dice(f"{kind}/{seed}/{number}")
        case.write(dice)
        try:
            case.read()
            found["read"] += 1
        except RescindError:
            found["refused"] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            found[f"{type(error).__name__} at {last.filename}:{last.lineno}: {error}"[:300]] += 1
    return found


def unchecked() -> None:
    """Take the checks of the reader off: the control."""
    from rescind.core import saved
    from rescind.estimators import graph_gram, ledger, log_ledger, ranker

    saved._check = lambda *_: None
    for module in (saved, graph_gram, log_ledger, ledger):
        module.must = lambda *_: None
    for module in (graph_gram, ranker):
        module.reading = lambda _: nullcontext()


if __name__ == "__main__":
    import logging
    import os
    import warnings

    os.fsync = lambda _: None  # type: ignore[assignment]
    logging.disable()
    warnings.simplefilter("ignore")
    if sys.argv[5:]:
        unchecked()
    played = {}
    for kind in sys.argv[1].split(","):
        (folder := Path(sys.argv[2]) / kind).mkdir()
        played[kind] = play(kind, folder, int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(played))
