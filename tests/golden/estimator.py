"""A model in Python: `rs.Gram().forget`. It keeps no list of who left, and gives no receipt."""

from __future__ import annotations

from pathlib import Path

from tests.golden.canonical import short
from tests.golden.matrix import LATER, After, Ask, Mouth, NotOffered, Reply, rows

import rescind as rs
from rescind.errors import RescindError


class ByEstimator(Mouth):
    """A model, and the table of whoever learns it."""

    name = "estimator"
    at_once = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.table: list[tuple[str, str]] = []
        self.model = rs.Gram()

    def start(self, lending: bool) -> None:
        if lending:
            raise NotOffered
        self.table = [*rows()]
        self.learn()

    def learn(self) -> None:
        self.model = rs.Gram().fit(self.table)

    def arrive(self, user: str, items: tuple[str, ...]) -> None:
        new = [(user, item) for item in items]
        self.table += new
        self.model.add(new)

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        if ask.kind == "readmit":
            if last:
                raise NotOffered
            return Reply(0, "")  # nothing keeps them away
        try:
            if ask.kind == "leave":
                self.model.forget(users=[*ask.users])
            else:
                pairs = [(user, item) for user in ask.users for item in ask.items[user]]
                self.model.forget(records=pairs)
        except RescindError as error:
            return Reply(2, "REFUSED", type(error).__name__)
        return Reply(0, "ERASED")

    def after(self, user: str) -> After:
        digest = short(self.model.digest())
        standing = held(self.model, user)
        fresh = held(rs.Gram().fit(self.table), user)
        self.arrive(user, (LATER,))
        return After(digest, standing, None, fresh, LATER in (held(self.model, user) or ()))


def held(model: rs.Gram, user: str) -> tuple[str, ...] | None:
    """Return the items of a user in a model: those that it would never recommend."""
    if user not in model.users:
        return None
    shown = {item for item, *_ in model.recommend(user, k=len(model.items))}
    return tuple(sorted(item for item in model.items if item not in shown))
