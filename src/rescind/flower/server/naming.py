"""Requests over silos, by original ids: read, looked up on the silos, and made into events.

The server knows users by number. Whoever sends a request names them as the data does, so each silo
that knows an id says its number. An id is sent to all silos that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

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


def numbers(
    executor: FlowerExecutor, wanted: Sequence[NamedRequest], fed: Federation | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the numbers of the users and items that requests name. Raises if one is unknown.

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
            if not known:
                away = f" Silos {missing} did not answer and may know it." if missing else ""
                late = " What was added later is not in this run." if fed else ""
                raise DataError(
                    f"no silo knows {kind} '{name}'. Original ids are used here, as in the data."
                    f"{late}{away} Nothing was changed."
                )
            found[name] = known.pop()
        out.append(found)
    return out[0], out[1]


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


def event_of(
    one: NamedRequest, fed: Federation, users: dict[str, int], items: dict[str, int]
) -> Event:
    """Return the event of a request. Raises `ConsentError` if the user has withdrawn."""
    client = users[one.user]
    if client >= len(fed.world.members) or not bool(fed.world.members[client]):
        raise ConsentError(
            f"user '{one.user}' is not a member of this run: they withdrew, or have no data here. "
            f"See the receipt of the earlier request. Nothing was changed."
        )
    if one.kind == "withdraw":
        return Withdraw(client)
    if one.kind == "erase":
        return Erase(Records.of([client] * len(one.items), [items[item] for item in one.items]))
    if one.kind != "take-back":
        raise ConfigError(f"unknown request '{one.kind}'. Use take-back, erase or withdraw.")
    lent = fed.world.shared[fed.world.shared.client == client]
    if not len(lent):
        raise ConsentError(f"user '{one.user}' lends nothing now, so there is nothing to unshare.")
    return Unshare(lent)
