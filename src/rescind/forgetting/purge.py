"""Remove everything derived from a request except the model, after any unlearner.

Removes what holds the records or was computed from them: copies, server rows of the users
concerned, optimiser moments, snapshots, restore points and logs. `traces` looks for leftovers,
`inventory` lists what is kept, `kept_list` what is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from rescind.core import params
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Anew, Erase, Records, Share, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.state import Memory, Snapshot, has_user_rows, reset_rows
from rescind.methods.additive._additive import Additive
from rescind.privacy.sealing import band
from rescind.receipts.receipt import Kept


def purge(before: Federation, after: Federation, request: Request, exact: bool) -> Federation:
    """Remove everything derived from a request except the model itself.

    exact: the unlearner is exact, so its state is already free of the records. After an approximate
    one, server rows of the users concerned are reset to their initial values
    """
    event, first = request.event, request.first_round
    if after.past is not None and before.past is not None:
        past = after.past.without(event)
        tainted = {id(p) for p in before.past.points if first is not None and p.round >= first}
        points = tuple(p for p in past.points if id(p) not in tainted)
        after = replace(after, past=replace(past, points=points))
    if isinstance(event, Withdraw):
        after = replace(after, labels=after.labels.without_user(event.client))
    if isinstance(event, Erase):
        for client in _without_records(after, request):
            after = replace(after, labels=after.labels.without_user(client))
    if isinstance(event, Withdraw | Erase):
        after = replace(after, labels=after.labels.without_items(_only_theirs(after, request)))
    old = {id(s) for s in _made_with(before, request)}
    memory = Memory(tuple(s for s in after.now.state.memory if id(s) not in old))
    after = after.with_(state=replace(after.now.state, memory=memory))
    if exact:
        return after
    state = after.now.state
    fresh = after.method.server_init(after.world, after.clock).own
    own = reset_rows(state.own, fresh, request.people, after.world.sizes.clients)
    after = after.with_(state=replace(state, own=own))
    if isinstance(event, Erase):  # private values were trained on the erased records
        reset, public = Anew(event.records), after.now.state.public
        vault = after.executor.apply(after.method, public, reset, after.now.vault, after.clock)
        after = after.with_(vault=vault)
    return after


def _without_records(after: Federation, request: Request) -> list[int]:
    """Return the users of a request who have no record left: then their ids are of no use here."""
    left = after.now.vault.holdings.records
    if not len(left):  # devices are remote: nobody here knows what they hold
        return []
    people = request.people
    return people[~torch.isin(people, left.client.to(people.device))].tolist()


def _only_theirs(after: Federation, request: Request) -> list[int]:
    """Return items of a request that nobody has any more: their names would tell who was here."""
    left = after.now.vault.holdings.records
    if not len(left):  # devices are remote: nobody here knows what they hold
        return []
    asked = torch.unique(request.records.item)
    owners = torch.zeros(after.world.sizes.items, dtype=torch.int64)
    owners[: len(left.per_item)] = left.per_item
    return asked[owners.to(asked.device)[asked] == 0].tolist()


def _made_with(before: Federation, request: Request) -> list[Snapshot]:
    """Return the server's snapshots that the records may have influenced."""
    first = request.first_round
    return [s for s in before.now.state.memory if first is not None and s.round >= first]


def traces(
    fed: Federation, request: Request, before: Federation, made: bool = True
) -> dict[str, int]:
    """Return the places where records of a request, or values made from them, remain, with counts.

    before: the federation before the request
    made: count rows, snapshots and points that did not change. Not after retraining, which gives
    the same values where the records had no influence
    """
    found: dict[str, int] = {}
    for place, records in _copies(fed, request):
        found[place] = len(records.matching(request.records))
    if made:
        found |= _same_rows(fed, before, request)
        old = {params.digest(s.values) for s in _made_with(before, request)}
        found["snapshots"] = sum(params.digest(s.values) in old for s in fed.now.state.memory)
        first = request.first_round
        old_points = {
            params.digest(p.state.public)
            for p in (before.past.points if before.past else ())
            if first is not None and p.round >= first
        }
        points = fed.past.points if fed.past else ()
        found["points"] = sum(params.digest(p.state.public) in old_points for p in points)
    found["logs"] = sum(
        int(torch.isin(rows.owner, request.people.to(rows.owner.device)).sum())
        for _, _, rows in fed.now.vault.log.entries
    )
    return {place: count for place, count in found.items() if count}


def _copies(fed: Federation, request: Request) -> Iterator[tuple[str, Records]]:
    """Yield every place with records that a request may concern; of an Unshare, lent ones."""

    def of(holdings: Holdings) -> Records:
        mine = holdings.part(request.records.clients)
        return mine.records[mine.lent] if isinstance(request.event, Unshare) else mine.records

    yield "the server's copy", fed.world.shared
    yield "devices", of(fed.now.vault.holdings)
    for number, data in fed.world.hosted:
        yield f"hosted client {number}", data.records
    for vault in fed.now.hosted:
        yield "hosted devices", vault.holdings.records
    if fed.past is not None:
        yield "the past", of(fed.past.origin)
        for _, event in fed.past.story:
            if isinstance(event, Share | Unshare):
                yield "the story", event.records


def _same_rows(fed: Federation, before: Federation, request: Request) -> dict[str, int]:
    users, found = request.people, {}
    first = before.method.server_init(before.world, before.clock).own
    for name, value in fed.now.state.own.items():
        old = before.now.state.own.get(name)
        if old is None or not has_user_rows(name, value, fed.world.sizes.clients):
            continue
        if len(old) != len(value):
            continue
        initial = first.get(name, torch.zeros_like(old))
        same = (value[users] == old[users]).flatten(1).all(1)
        untouched = (old[users] == initial.to(old)[users]).flatten(1).all(1)
        found[f"server rows '{name}'"] = int((same & ~untouched).sum())
    return found


OWN = "Rows of people who lend, optimiser moments and similar values"
SUMS = "Sums over what people have or lend, what is computed from them, and whose part they count"


def inventory(fed: Federation) -> tuple[Kept, ...]:
    """List what is kept after forgetting, with its size and why it may stay."""
    state, vault, past = fed.now.state, fed.now.vault, fed.past
    sizes = {
        "model": (params.nbytes(state.public), "The parameters that are sent to devices."),
        "server's own values": (
            params.nbytes(state.own),
            f"{SUMS if isinstance(fed.method, Additive) else OWN}; never sent.",
        ),
        "snapshots": (
            state.memory.nbytes,
            "Earlier item tables, none of which was made with what was taken back.",
        ),
        "points to go back to": (
            past.nbytes if past else 0,
            "Models of earlier rounds, before what was taken back had influence, or without it.",
        ),
        "private values on devices": (
            params.nbytes(vault.private),
            "Each is on a simulated device, on the operator's machine."
            if isinstance(fed.executor, InProcess)
            else "Each stays on the device of its owner.",
        ),
        "logs on devices": (vault.log.nbytes, "Rows of their updates that devices keep."),
        "loans": (
            _records_bytes(fed.world.shared),
            "The server's copy of the records that people lend now.",
        ),
    }
    return tuple(Kept(name, size, says) for name, (size, says) in sizes.items())


def kept_list(of: str, size: int) -> Kept:
    """Return the line about a list of rows that are not learnt again (`data.blocklist`).

    Its size is a band for the requester, too: an exact one would tell how much others erased.
    """
    return Kept(
        f"list of removed rows, {of}",
        band(size),
        "Digests under a secret key of the operator, so that no run undoes this and earlier "
        "requests. They are personal data while that key exists, and stay until the "
        "operator deletes the list or the key.",
    )


def _records_bytes(records: Records) -> int:
    return sum(c.numel() * c.element_size() for c in (records.client, records.item, records.time))
