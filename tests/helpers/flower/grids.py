"""A grid in memory for Flower's messages, with faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.transport import Transport
from rescind.flower.silo.intake import Names
from rescind.flower.silo.node import Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.serde import read, written

FIRST = 100
"""Flower's id of silo 0's node. It differs from the silo's number, to find mix-ups."""


@dataclass(frozen=True)
class InMemorySource:
    """Holdings in memory, and the blocks that follow."""

    holdings: Holdings
    blocks: tuple[Arrive, ...] = ()
    own: bool = False
    imported: str = ""

    def hold(self, seed: int) -> tuple[Holdings, Labels]:
        """Return the holdings, and no ids: a number is its own. The seed is not used."""
        return self.holdings, Labels()

    def names(self) -> Names:
        """Return no ids, and the number of clients and items."""
        return Names(Labels(), self.holdings.clients, self.holdings.items)

    def block(self, number: int, seed: int) -> tuple[Arrive, Labels] | None:
        """Return block `number`; block 1 is the first after the initial holdings."""
        return (self.blocks[number - 1], Labels()) if number <= len(self.blocks) else None


class InMemory(Grid):
    """Silos in this process. Every message is converted to Flower's wire format and back."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        # In a deployment Flower sets these for each process.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.away: set[int] = set()
        """Nodes that receive messages and never reply."""
        self.slow: set[int] = set()
        """Nodes that reply after the deadline."""
        self.changed: Callable[[int, Letter], Letter | None] | None = None
        """Changes a reply; None drops it."""
        self.twice = False
        """Every reply is delivered twice."""
        self.said: list[tuple[int, Letter]] = []
        """(node, reply) of every reply that a silo sent."""
        self._boxes: dict[str, list[Message]] = {}
        self._late: dict[str, list[Message]] = {}
        self._count = 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            self._count += 1
            name = f"message-{self._count}"
            message.metadata.__dict__["_message_id"] = name
            self._boxes[name] = []
            self._deliver(name, message)
            names.append(name)
        return names

    def _deliver(self, name: str, message: Message) -> None:
        number = message.metadata.dst_node_id
        if number in self.away:
            return
        request = Letter.from_records(read(written(message.content)))
        reply: Letter | None = self.nodes[number].answer(request)
        assert reply is not None
        self.said.append((number, reply))
        if self.changed is not None:
            reply = self.changed(number, reply)
        if reply is None:
            return
        answer = Message(read(written(reply.to_records())), reply_to=message)
        answer.metadata.__dict__["_src_node_id"] = number
        box = self._late if number in self.slow else self._boxes
        box.setdefault(name, []).extend([answer] * (2 if self.twice else 1))

    def release(self) -> None:
        """Deliver the replies of slow nodes."""
        for name, replies in self._late.items():
            self._boxes.setdefault(name, []).extend(replies)
        self._late = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in message_ids for reply in self._boxes.pop(name, [])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def silos_of(
    holdings: Holdings, silos: int, folder: Path, deadline: float = 0.0, **fields: Any
) -> tuple[FlowerExecutor, InMemory]:
    """Return an executor for holdings that are distributed over silos, and its grid.

    deadline: seconds; 0 is one check for replies, which is enough for a grid in memory
    """
    source = InMemorySource(holdings)
    nodes = {
        FIRST + silo: Node(Store(folder / f"silo-{silo}"), source, silo, silos, **fields)
        for silo in range(silos)
    }
    grid = InMemory(nodes)
    transport = Transport(grid, silos, deadline=deadline, pause=0.0)
    return FlowerExecutor(transport), grid
