"""Interrupt a call at its n-th step, as a signal or a full memory would; and estimators to try."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow
import pyarrow.parquet

import rescind as rs
from rescind.errors import DataError

ALL = ("rescind/estimators/",)
CORE = tuple(f"estimators/{name}.py" for name in ("state", "ranker", "ledger", "log_ledger",
                                                  "graph_ledger", "graph_gram"))  # fmt: skip
"""Where a change is made; the other files read frames and logs, before it."""
ERRORS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError)


@dataclass
class Interrupt:
    """Raises at the n-th step within some files; counts the steps."""

    at: int
    kind: str = "line"
    """"line" or "opcode"."""
    within: tuple[str, ...] = ALL
    steps: int = 0
    raised: bool = False

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in self.within):
            return None
        frame.f_trace_opcodes = self.kind == "opcode"
        if event == self.kind:
            self.steps += 1
            if self.steps == self.at:
                self.raised = True
                raise ERRORS[self.at % 2]
        return self._trace

    @contextmanager
    def during(self) -> Iterator[None]:
        """Interrupt what is in here, once."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        except ERRORS:
            if not self.raised:
                raise
        finally:
            sys.settrace(before)


USERS, ITEMS = 9, 8
ROWS = [
    (f"u{u}", f"i{i}", (u * i) % 7) for u in range(USERS) for i in range(ITEMS) if (u + i * i) % 3
]
MORE = [("u1", "new", 1), ("u1", "i0", 2), ("who", "i1", 3), ("who", "other", 4)]
NODES = {
    "node": [f"n{n}" for n in range(12)], "client": [f"c{n // 3}" for n in range(12)],
    "label": [n % 2 for n in range(12)], "f": [n / 8 for n in range(12)], "g": [1.0] * 12,
}  # fmt: skip
EDGES = [(f"n{n}", f"n{n + 1}") for n in range(0, 11, 2)]
NEW = {"node": ["a", "b"], "client": ["c1", "c9"], "label": [0, 2], "f": [0.5, 2.0], "g": [1, 1]}
Verb = Callable[[Any], Any]
PEOPLE: dict[str, Verb] = {
    "a user": lambda m: m.forget(users=["u1"]),
    "records": lambda m: m.forget(records=[("u4", "i1"), ("u5", "i3")]),
    "add": lambda m: m.add(MORE),
    "fit": lambda m: m.fit(MORE),
}
WHOLE: dict[str, Verb] = {
    **PEOPLE,
    "an item": lambda m: m.forget(items=["i1"]),
    "most users": lambda m: m.forget(users=[f"u{n}" for n in range(6)]),
}
GRAPHS: dict[str, Verb] = {
    "a client": lambda m: m.forget(clients=["c1"]),
    "nodes": lambda m: m.forget(nodes=["n1", "n11"]),
    "an edge": lambda m: m.forget(edges=[("n1", "n0")]),
    "a label": lambda m: m.forget(labels=["n4"]),
    "add": lambda m: m.add(NEW, [("a", "n3")]),
    "fit": lambda m: m.fit(NEW),
}
VERBS = {"Gram": WHOLE, "SeqGram": WHOLE, "GraphGram": GRAPHS, "log": PEOPLE, "timed log": PEOPLE}
CASES = [(form, verb) for form, verbs in VERBS.items() for verb in verbs]
LEARNER: dict[str, Any] = {
    "Gram": rs.Gram, "SeqGram": rs.SeqGram, "GraphGram": rs.GraphGram, "log": rs.Gram,
    "timed log": rs.SeqGram,
}  # fmt: skip


class Tried:
    """One form of an estimator, loaded anew for each interrupt."""

    def __init__(self, form: str, folder: Path) -> None:
        self.learner, self.path, self.log = LEARNER[form], folder / "model", None
        self.again = folder / "again"
        if form == "GraphGram":
            fitted = self.learner(hops=1, random=4).fit(NODES, EDGES)  # small sums
        elif "log" in form:
            table = pyarrow.Table.from_pylist(
                [dict(zip(("user", "item", "time"), row, strict=True)) for row in ROWS]
            )
            self.log = folder / "log.parquet"
            pyarrow.parquet.write_table(table, self.log)
            fitted = self.learner().fit(self.log)
        else:
            fitted = self.learner().fit(ROWS)
        fitted.save(self.path)

    def load(self, path: Path | None = None) -> Any:
        more = {} if self.log is None else {"log": self.log}
        model = self.learner.load(path or self.path, **more)
        model.digest()
        return model

    def outcomes(self, verb: Verb) -> list[tuple[Any, ...]]:
        """What the model is before and after."""
        model = self.load()
        before = self.seen(model)
        return [before, self.seen(verb(model))]

    def seen(self, model: Any) -> tuple[Any, ...]:
        """All that a model answers; a log's list of users is not at hand."""
        known: list[Any] = [model.digest(), len(model)]
        if self.log is not None:
            return (*known, model.items, len(getattr(model._ledger, "marks", ())))
        names = ("nodes", "clients", "classes") if hasattr(model, "nodes") else ("users", "items")
        return (*known, *(getattr(model, name) for name in names))

    def wrong(self, model: Any, verb: Verb, outcomes: list[tuple[Any, ...]]) -> str:
        """Say what is wrong with a model that was interrupted; "" if nothing is."""
        try:
            return self._wrong(model, verb, outcomes)
        except (LookupError, ValueError, RuntimeError) as error:
            return f"it ends in {type(error).__name__}"

    def _wrong(self, model: Any, verb: Verb, outcomes: list[tuple[Any, ...]]) -> str:
        model.save(self.again)  # first: whoever saves at once must get the same
        now, kept = self.seen(model), self.seen(self.load(self.again))
        if kept != now:
            return "a saved copy differs"
        if now not in outcomes:
            return "it is neither as before nor as after"
        try:
            ended = self.seen(verb(model))
        except DataError:  # what was to go is gone
            return "" if now == outcomes[1] else "it refuses what it has not done"
        return "" if ended == outcomes[1] else "a repeat goes wrong"


def tried(
    form: str, verb: str, folder: Path, kind: str, every: int = 1, within: tuple[str, ...] = ALL
) -> tuple[int, set[str]]:
    """Interrupt a verb at every step; return the number of interrupts, and what was wrong."""
    case, call = Tried(form, folder), VERBS[form][verb]
    outcomes, at, found = case.outcomes(call), 1, set[str]()
    while True:
        model, interrupt = case.load(), Interrupt(at, kind, within)
        with interrupt.during():
            call(model)
        if not interrupt.raised:
            return at // every, found
        found.add(case.wrong(model, call, outcomes))
        at += every
