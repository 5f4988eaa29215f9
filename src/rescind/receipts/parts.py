"""A proof for each person of a request that many made together.

A receipt of a batch has one key, which opens the numbers of all. So that one person can check her
own part without it, the receipt states the root of a tree of keyed digests: a leaf for each person,
over her part of the request, under a key of her own. Her proof is that key, her part, and the
digests on the way to the root. It tells nothing of the others, but about how many they are (the
length of the way). Leaves are sorted by digest, so a place in the tree tells nothing either.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rescind.errors import ConsentError, DataError
from rescind.privacy.keys import SECRET_BYTES
from rescind.privacy.sealing import sealed

if TYPE_CHECKING:
    from rescind.core.labels import Labels
    from rescind.core.records import Event

PEOPLE = "people"
"""The name of the claim: the root of the tree."""
PREFIX, NAMED = "blake2b-tree:", "blake2b-named-tree:"
"""Leaves of the second kind also cover the names: the original ids of the user and the items."""
LONGEST = 64
"""Digests on a way: 2**64 people are enough."""


@dataclass(frozen=True)
class Proof:
    """What one person needs to check that a receipt is about her records, too."""

    part: Event
    """Her part of the request."""
    key: bytes
    way: tuple[tuple[str, str], ...]
    """("left" or "right", digest) of each neighbour on the way to the root."""
    names: str = ""
    """The original ids of the user and the items (`names_text`)."""

    def root(self, named: bool = False) -> str:
        """Return the root that a receipt must state. named: of leaves that cover names"""
        node = _leaf(self.part, self.key, self.names if named else "")
        for side, other in self.way:
            node = _node(other, node) if side == "left" else _node(node, other)
        return (NAMED if named else PREFIX) + node

    def fits(self, claims: Mapping[str, str]) -> bool:
        """Return whether a receipt with these claims is about this part, names included."""
        stated = claims.get(PEOPLE, "")
        root = self.root(covers_names(claims))
        return hmac.compare_digest(stated.encode(), root.encode())


def covers_names(claims: Mapping[str, str]) -> bool:
    """Return whether the parts of a receipt cover names. Those of version 0.2 do not."""
    return claims.get(PEOPLE, "").startswith(NAMED)


def claim(event: Event, key: bytes, labels: Labels | None = None) -> dict[str, str]:
    """Return the claim of a receipt: the root over all people of a request.

    key: the receipt's    labels: to cover original ids, too
    """
    levels = _tree(sorted(_leaf(p, own, _names(p, labels)) for _, p, own in _parts(event, key)))
    return {PEOPLE: (PREFIX if labels is None else NAMED) + levels[-1][0]}


def proof_of(event: Event, key: bytes, client: int, labels: Labels | None = None) -> Proof:
    """Return the proof of one person of a request. key, labels: the receipt's"""
    found = next((p for p in proofs(event, key, labels) if p[0] == client), None)
    if found is None:
        raise ConsentError(f"client {client} is not part of this request, so there is no proof.")
    return found[1]


def proofs(event: Event, key: bytes, labels: Labels | None = None) -> Iterator[tuple[int, Proof]]:
    """Yield (client, proof) for each person of a request. key, labels: the receipt's"""
    parts = []
    for client, part, own in _parts(event, key):
        names = _names(part, labels)
        parts.append((client, part, own, names, _leaf(part, own, names)))
    levels = _tree(sorted(leaf for *_, leaf in parts))
    place = {leaf: at for at, leaf in enumerate(levels[0])}
    for client, part, own, names, leaf in parts:
        yield client, Proof(part, own, tuple(_way(levels, place[leaf])), names)


def _names(part: Event, labels: Labels | None) -> str:
    from rescind.storage.events import names_text

    return "" if labels is None else names_text(part, labels)


def _parts(event: Event, key: bytes) -> Iterator[tuple[int, Event, bytes]]:
    """Yield (client, part of the request, key) of each person."""
    records = getattr(event, "records", None)
    if records is None:  # somebody leaves
        client = int(getattr(event, "client"))  # noqa: B009 - only Withdraw has one
        yield client, event, _own_key(key, client)
        return
    ordered, start = records.sorted(), 0
    clients, counts = ordered.client.unique_consecutive(return_counts=True)
    for client, count in zip(clients.tolist(), counts.tolist(), strict=True):
        mine = ordered[slice(start, start + count)]
        start += count
        yield client, replace(event, records=mine), _own_key(key, client)  # type: ignore[call-arg]


def _own_key(key: bytes, client: int) -> bytes:
    """Return a person's key. It follows from the receipt's key, but not the other way."""
    text = str(client).encode()
    return hashlib.blake2b(
        text, key=key, digest_size=SECRET_BYTES, person=b"rescind person"
    ).digest()


def _leaf(part: Event, key: bytes, names: str = "") -> str:
    covered = part.digest(key) + (sealed(names, key) if names else "")
    return hashlib.blake2b(b"leaf" + covered.encode(), digest_size=32).hexdigest()


def _node(left: str, right: str) -> str:
    both = bytes.fromhex(left) + bytes.fromhex(right)
    return hashlib.blake2b(b"node" + both, digest_size=32).hexdigest()


def _tree(leaves: list[str]) -> list[list[str]]:
    """Return all levels, the leaves first; the last one without a neighbour goes up as it is."""
    levels = [leaves or [_node("", "")]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [_node(*below[at : at + 2]) for at in range(0, len(below) - 1, 2)]
        levels.append(pairs + below[len(pairs) * 2 :])
    return levels


def _way(levels: list[list[str]], at: int) -> Iterator[tuple[str, str]]:
    for level in levels[:-1]:
        other = at ^ 1
        if other < len(level):
            yield ("left" if other < at else "right"), level[other]
        at //= 2


def proof_text(proof: Proof, user: str, labels: Labels | None = None) -> str:
    """Return a proof as JSON, for this person only. labels: to name items by original ids, too"""
    from rescind.storage.events import event_text

    table = {
        "user": user, "request": json.loads(event_text(proof.part, labels)),
        "key": proof.key.hex(), "way": [list(step) for step in proof.way],
    }  # fmt: skip
    return json.dumps(table, indent=1) + "\n"


def read_proof(text: str) -> tuple[str, Proof]:
    """Read what `proof_text` wrote; return (user, proof). Raises `DataError`."""
    from rescind.storage.events import names_in, read_event, why_not

    try:
        table: dict[str, Any] = json.loads(text)
        way = tuple((str(side), str(other)) for side, other in table["way"])
        asked = json.dumps(table["request"])
        key, part, names = bytes.fromhex(table["key"]), read_event(asked), names_in(asked)
        if names and {table["user"]} != _users(json.loads(names)["user"]):
            raise ValueError("it names two users")
        sides = all(side in ("left", "right") and len(bytes.fromhex(d)) == 32 for side, d in way)
        if len(key) != SECRET_BYTES or len(way) > LONGEST or not sides:
            raise ValueError("its key or its way is damaged")
        return str(table["user"]), Proof(part, key, way, names)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"not a part of a request ({why_not(error)}). Give the file that came from rescind "
            f"forget --parts."
        ) from None


def _users(named: str | list[str]) -> set[str]:
    return {named} if isinstance(named, str) else set(named)
