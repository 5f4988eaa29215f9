"""Requests over silos, by original ids: read, looked up on the silos, and made into events.

The server knows users by number. Whoever sends a request names them as the data does, so each silo
that knows an id says its number. An id is sent to all silos that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.flower.run_request import NamedRequest
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.remote_holdings import RemoteHoldings
from rescind.flower.server.requests import request
from rescind.privacy.keys import erasure_key
from rescind.storage.packing import Facts


def digest_of(one: NamedRequest) -> str:
    """Return a digest under a secret of this machine, to recognise a request that is repeated."""
    text = json.dumps([one.kind, one.user, list(one.items)])
    return hashlib.blake2b(text.encode(), key=erasure_key(), digest_size=32).hexdigest()


@dataclass(frozen=True)
class Numbers:
    """The numbers of the users and items that requests name, as far as silos know them."""

    users: dict[str, int]
    items: dict[str, int]
    hint: str
    """Why an id may be unknown."""

    def of(self, one: NamedRequest) -> tuple[int, list[int]]:
        """Return the numbers of the user and the items of a request. Raises if one is unknown."""
        for kind, names, known in (
            ("user", (one.user,), self.users), ("item", one.items, self.items),
        ):  # fmt: skip
            for name in names:
                if name not in known:
                    raise UnknownError(
                        f"no silo knows {kind} '{name}'. Original ids are used here, as in the "
                        f"data.{self.hint} This request changed nothing."
                    )
        return self.users[one.user], [self.items[item] for item in one.items]


class UnknownError(DataError):
    """No silo knows a user or an item."""


def numbers(
    executor: FlowerExecutor, wanted: Sequence[NamedRequest], fed: Federation | None = None
) -> Numbers:
    """Ask the silos for the numbers of the users and items that requests name.

    fed: the run that is asked about, whose numbers may not be those of the data of now; None
    before it is trained
    """
    users = list(dict.fromkeys(one.user for one in wanted))
    items = list(dict.fromkeys(item for one in wanted for item in one.items))
    asked: Facts = {"users": users, "items": items}
    letters = {
        silo: request(executor.run, "find", Clock(0), {**asked, **_moments(fed, silo)})
        for silo in range(executor.line.silos)
    }
    answers, why = executor.line.ask(letters)
    replies, missing = [reply.facts for reply in answers.values()], sorted(why)
    if missing and not replies:
        raise DataError(f"no silo could look up who is meant: {why[missing[0]]}")
    out: list[dict[str, int]] = []
    for kind, names, place in (("user", users, "found_users"), ("item", items, "found_items")):
        found: dict[str, int] = {}
        for at, name in enumerate(names):
            known = {int(reply[place][at]) for reply in replies} - {-1}
            if len(known) > 1:
                raise DataError(
                    f"silos have different numbers for {kind} '{name}'. Use one recipe for all."
                )
            if known:
                found[name] = known.pop()
        out.append(found)
    late = " What was added later is not in this run." if fed else ""
    away = f" Silos {missing} did not answer and may know it." if missing else ""
    return Numbers(out[0], out[1], late + away)


def _moments(fed: Federation | None, silo: int) -> Facts:
    """Return the holdings of a run, one of which a silo has, also if it missed the last event."""
    if fed is None:
        return {}
    origin, found = fed.past.origin if fed.past else None, list[int]()
    for held in (fed.now.vault.holdings, origin):
        if isinstance(held, RemoteHoldings):
            found.append(int(held.moment[silo]))
            found += [step.held for step in held.owed if step.silo == silo]
            found += [int(letter.facts["held"]) for letter in held.missed(silo)]
    return {"held": found}


def event_of(one: NamedRequest, fed: Federation, known: Numbers) -> Event:
    """Return the event of a request. Raises if an id is unknown or the user has withdrawn."""
    client, items = known.of(one)
    if client >= len(fed.world.members) or not bool(fed.world.members[client]):
        raise ConsentError(
            f"user '{one.user}' is not a member of this run: they withdrew, or have no data here. "
            f"See the receipt of the earlier request. This request changed nothing."
        )
    if one.kind == "withdraw":
        return Withdraw(client)
    if one.kind == "erase":
        return Erase(Records.of([client] * len(items), items))
    if one.kind != "unshare":
        raise ConfigError(f"unknown request '{one.kind}'. Use unshare, erase or withdraw.")
    lent = fed.world.shared[fed.world.shared.client == client]
    if not len(lent):
        raise ConsentError(f"user '{one.user}' lends nothing now, so there is nothing to unshare.")
    return Unshare(lent)
