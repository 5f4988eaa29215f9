"""What is asked, of whom, and in which state: the same for each way in which a request comes.

A state is a list of steps. A mouth (one way in which requests come) carries out each step in its
own words; what it has no notion of it does not offer. So a mouth can change, and the matrix stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WHO, OTHER, STRANGER = "c3", "c4", "zz"
USERS, PER_USER, ITEMS = 12, 5, 10
NEW = ("p4", "p5", "p6")
"""What somebody has who is new, or comes back."""
LATER = "p7"
"""An item of a row that comes after everything else: does it count?"""

KINDS = ("leave", "erase all", "erase some", "erase one not held", "unshare", "readmit")
STATES = (
    "unknown", "present", "emptied", "away", "back", "back with rows",
    "learnt again", "not learnt", "two at once", "twice while it waits",
)  # fmt: skip


class NotOffered(Exception):
    """This mouth has no notion of it."""


@dataclass(frozen=True)
class Ask:
    """One request: a kind, the people it is about, and the items of each that it names."""

    kind: str
    users: tuple[str, ...]
    items: dict[str, tuple[str, ...]]
    """By user: what is named of them; everything that they had, if it is about everything."""


@dataclass(frozen=True)
class Reply:
    """What a request came to, by facts that stay: never by sentences."""

    code: int
    """The exit code, or the HTTP status."""
    outcome: str
    problem: str = ""
    """Of a refusal: the class of the error, or the type of the problem."""
    receipts: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class After:
    """What is left of somebody afterwards."""

    model: str
    """Digest of what stands: of integers, so that it is the same on each machine."""
    standing: tuple[str, ...] | None
    """Items of theirs in what stands; None: they are not in it, or cannot look."""
    stored: tuple[str, ...] | None = None
    """Items of theirs that are still stored where the data lies."""
    new_run: tuple[str, ...] | None = None
    """Items of theirs that a new run on the same data learns."""
    later: bool | None = None
    """Whether a row of theirs that comes later counts; None: nobody can send one."""


class Mouth:
    """One way in which requests come. Each method is a step of a state."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    at_once = False
    """Whether rows that come are learnt at once."""

    def start(self, lending: bool) -> None:
        """Make data of twelve people, and a model of them. lending: of what some of them lend"""
        raise NotOffered

    def ask(self, ask: Ask, last: bool = True) -> Reply:
        """Ask once. last: this is the request that the cell is about."""
        raise NotOffered

    def ask_twice(self, ask: Ask) -> tuple[Reply, ...]:
        """Ask the same twice before the first one is answered."""
        raise NotOffered

    def arrive(self, user: str, items: tuple[str, ...]) -> None:
        """Let new rows of somebody come."""
        raise NotOffered

    def learn(self) -> None:
        """Learn from all data again, in the place of the model that stands."""
        raise NotOffered

    def after(self, user: str) -> After:
        """Look what is left of somebody."""
        raise NotOffered

    def close(self) -> None:
        """Let go of what is open."""


def first_items(user: str) -> tuple[str, ...]:
    """Return the items that somebody has at the start."""
    number = int(user[1:]) if user != STRANGER else -1
    names = [f"p{(3 * number + k) % ITEMS}" for k in range(PER_USER)]
    return tuple(sorted(names)) if number >= 0 else ()


def rows() -> Iterator[tuple[str, str]]:
    """Yield (user, item) of everybody at the start."""
    for number in range(USERS):
        for k in range(PER_USER):
            yield f"c{number}", f"p{(3 * number + k) % ITEMS}"


@dataclass
class Story:
    """Brings a mouth into a state, and remembers what somebody has by then."""

    mouth: Mouth
    had: dict[str, tuple[str, ...]] = field(default_factory=dict)
    has: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def begin(self, kind: str) -> None:
        self.mouth.start(lending=kind == "unshare")
        for user in (WHO, OTHER):
            self.had[user] = self.has[user] = first_items(user)

    def request(self, kind: str, *users: str) -> Ask:
        """Return a request: of what they have now; of what they had, if nothing is left."""
        items = {user: self._named(kind, user) for user in users}
        return Ask(kind, users, items)

    def _named(self, kind: str, user: str) -> tuple[str, ...]:
        have = self.has.get(user) or self.had.get(user, ())
        if kind == "erase some":
            return have[:2] or ("p1",)
        if kind == "erase one not held":
            never = {f"p{n}" for n in range(ITEMS)} - {*have, *self.had.get(user, ())}
            return (*have[:1], min(never))
        return have or ("p1", "p2")

    def earlier(self, kind: str) -> None:
        """Answer a request that came before."""
        reply = self.mouth.ask(self.request(kind, WHO), last=False)
        if reply.code not in (0, 200, 201, 202):
            raise AssertionError(f"{self.mouth.name}: {kind} before gave {reply}")
        if kind != "readmit":
            self.has[WHO] = ()

    def rows_come(self, user: str) -> None:
        self.mouth.arrive(user, NEW)
        self.has[user] = NEW
        self.had[user] = tuple(sorted({*self.had.get(user, ()), *NEW}))

    def enter(self, state: str, kind: str) -> str:
        """Bring the mouth into a state; return whom the request is about."""
        self.begin(kind)
        if state == "emptied":
            self.earlier("erase all")
        if state in ("away", "back", "back with rows", "learnt again"):
            self.earlier("leave")
        if state in ("back", "back with rows"):
            self.earlier("readmit")
        if state == "back with rows":
            self.rows_come(WHO)
        if state in ("back with rows", "learnt again"):
            self.mouth.learn()
        if state == "not learnt":
            if self.mouth.at_once:
                raise NotOffered
            self.rows_come("n1")
        return {"unknown": STRANGER, "not learnt": "n1"}.get(state, WHO)


def play(make: Callable[[Path], Mouth], state: str, kind: str) -> dict[str, Any]:
    """Play one cell in an empty folder; return what is recorded of it."""
    with tempfile.TemporaryDirectory() as folder:
        mouth = make(Path(folder))
        try:
            return _played(Story(mouth), state, kind)
        except NotOffered:
            return {"outcome": "not offered"}
        finally:
            mouth.close()


def _played(story: Story, state: str, kind: str) -> dict[str, Any]:
    mouth, user = story.mouth, story.enter(state, kind)
    if state == "two at once":
        replies = (mouth.ask(story.request(kind, WHO, OTHER)),)
    elif state == "twice while it waits":
        replies = mouth.ask_twice(story.request(kind, WHO))
    else:
        replies = (mouth.ask(story.request(kind, user)),)
    known = {"after": bare(mouth.after(user))}
    if len(replies) == 1:
        return {**bare(replies[0]), **known}
    return {"replies": [bare(reply) for reply in replies], **known}


def bare(value: Any) -> dict[str, Any]:
    """Return the fields that say something."""
    return {name: one for name, one in asdict(value).items() if one not in ("", ())}
