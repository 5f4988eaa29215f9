"""A grid in memory that carries Flower's own messages to silos, with faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from rescind.core.holdings import Holdings
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.transport import Transport
from rescind.flower.silo.node import InMemorySource, Node
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter

FIRST = 100
"""Flower's number of silo 0's node: not the silo's own, so that nobody confuses them."""


class InMemory(Grid):
    """Silos in this process. Every letter goes through Flower's wire format, there and back."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        # In a deployment Flower tells a process which task it is; here nobody does.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.away: set[int] = set()
        """Nodes that get letters and never answer."""
        self.slow: set[int] = set()
        """Nodes that answer after the deadline."""
        self.changed: Callable[[int, Letter], Letter | None] | None = None
        """What happens to a reply on its way."""
        self.twice = False
        self.said: list[tuple[int, Letter]] = []
        """Every reply that left a silo."""
        self._boxes: dict[str, list[Message]] = {}
        self._kept_back: dict[str, list[Message]] = {}
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
        asked = Letter.from_records(recorddict_from_proto(recorddict_to_proto(message.content)))
        told: Letter | None = self.nodes[number].answer(asked)
        assert told is not None
        self.said.append((number, told))
        if self.changed is not None:
            told = self.changed(number, told)
        if told is None:
            return
        content = recorddict_from_proto(recorddict_to_proto(told.to_records()))
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = number
        box = self._kept_back if number in self.slow else self._boxes
        box.setdefault(name, []).extend([reply] * (2 if self.twice else 1))

    def release(self) -> None:
        """What was kept back arrives now."""
        for name, replies in self._kept_back.items():
            self._boxes.setdefault(name, []).extend(replies)
        self._kept_back = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in message_ids for reply in self._boxes.pop(name, [])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def silos_of(
    holdings: Holdings, silos: int, folder: Path, deadline: float = 0.0, **fields: Any
) -> tuple[FlowerExecutor, InMemory]:
    """The holdings spread over silos, and an executor that reaches them.

    deadline: seconds; 0 is one look for replies, which is all a grid in memory needs
    """
    nodes = {
        FIRST + silo: Node(
            Store(folder / f"silo-{silo}"), InMemorySource(holdings), silo, silos, **fields
        )
        for silo in range(silos)
    }
    grid = InMemory(nodes)
    line = Transport(grid, silos, deadline=deadline, pause=0.0)
    return FlowerExecutor(line), grid
