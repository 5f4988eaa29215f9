"""The service over HTTP: a person with a browser, and an operator who asks for releases."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.golden.canonical import facts, short
from tests.golden.matrix import (
    LATER,
    STRANGER,
    USERS,
    After,
    Ask,
    Mouth,
    NotOffered,
    Reply,
    first_items,
)

from doors import Browser, House, opened
from fresh_tables import written_down
from rescind.receipts.receipt import opened as with_key
from rescind.receipts.receipt import parse

KEY = "5a" * 32
"""Opens the exact numbers of each receipt; a person chooses it."""


class ByService(Mouth):
    """A service in this process, asked as browsers ask."""

    name = "service"
    house: House
    operator: Browser

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open = ExitStack()
        self._open.enter_context(written_down())
        self.people: dict[str, Browser] = {}

    def close(self) -> None:
        self._open.close()

    def start(self, lending: bool) -> None:
        self.house = self._open.enter_context(opened(self.folder / "state"))
        self.operator = self.house.operator()
        self.people[STRANGER] = self.house.caller()
        for number in range(USERS):
            user = f"c{number}"
            self.people[user] = self.house.person(tuple(int(i[1:]) for i in first_items(user)))
        self.learn()

    def learn(self) -> None:
        self.house.release(self.operator)

    def arrive(self, user: str, items: tuple[str, ...]) -> None:
        if user not in self.people:
            self.people[user] = self.house.person()
        self.people[user].post("/v1/me/loans", {"items": _ids(items)})

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        answers = [self._send(ask, user) for user in ask.users]
        self.learn()
        replies = [self._reply(answer) for answer in answers]
        receipts = tuple(paper for one in replies for paper in one.receipts)
        return Reply(replies[0].code, replies[0].outcome, replies[0].problem, receipts)

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        answers = [self._send(ask, ask.users[0]) for _ in "ab"]
        early = [self._reply(answer) for answer in answers]
        self.learn()
        return (*early, self._reply(answers[0]))

    def _send(self, ask: Ask, user: str) -> Any:
        if ask.kind == "readmit":
            raise NotOffered  # who left and returns is a new person
        body: dict[str, Any] = {"kind": ask.kind.split()[0], "receipt_key": KEY}
        if ask.kind in ("erase all", "unshare"):
            body["items"] = "everything"
        elif ask.kind != "leave":
            body["items"] = _ids(ask.items[user])
        return self.people[user].post("/v1/me/requests", body)

    def _reply(self, answer: Any) -> Reply:
        body = answer.json()
        if answer.status_code >= 400:
            return Reply(answer.status_code, "REFUSED", body["type"].rpartition(":")[2])
        asking = self.house.caller()
        status = asking.get(body["link"]).json()
        if status["status"] != "fulfilled":
            return Reply(answer.status_code, "WAITING")
        paper = asking.get(f"{body['link']}/receipt").content
        exact = with_key(parse(paper), bytes.fromhex(KEY))
        return Reply(answer.status_code, "ERASED", receipts=(facts(exact),))

    def after(self, user: str) -> After:
        person = self.people[user]
        loans = person.get("/v1/me/loans")
        standing = None
        if loans.status_code == 200:
            standing = tuple(sorted(f"p{one['id'][5:]}" for one in loans.json()["items"]))
        digest = short(self.house.ledger.live.digest())
        later = person.post("/v1/me/loans", {"items": _ids((LATER,))}).status_code == 201
        return After(digest, standing, later=later)


def _ids(items: tuple[str, ...]) -> list[str]:
    return [f"item-{item[1:]}" for item in items]
