"""Purging: the platform's duty, whatever a method did to the model.

After a request nothing may be left that holds the records or was made from them and is no model:
copies, server rows of the people concerned, optimiser moments, snapshots, points to go back to,
logs. `traces` looks for what should not be there, `inventory` lists what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.core.history import History
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.records import Erase, Event, Records, Share, Unshare, Withdraw, concerned
from rescind.core.state import Memory, Snapshot, begun_anew, rows_of_people
from rescind.forgetting.receipt import Kept


def requested(fed: Federation, event: Event) -> Records:
    """The records a request is about, as the devices hold them. For a Withdraw: all of a client."""
    held = fed.now.vault.holdings.records
    if isinstance(event, Withdraw):
        return held[held.client == event.client]
    assert isinstance(event, Unshare | Erase)
    return held[held.among(event.records)]


def purge(
    before: Federation, after: Federation, event: Event, exact: bool | None = None
) -> Federation:
    """Whatever a method left behind of a request goes; the model itself is the method's business.

    exact: whether the unlearner was; None: as the federation's own method says

    An exact method's state is already that of a world without the records: rows of people who go
    on lending are right as they are. An approximate one's rows of the people concerned were made
    with the records, so they begin anew.
    """
    if after.past is not None and before.past is not None:
        after = replace(after, past=_clean_past(before.past, after.past, event, before))
    if isinstance(event, Withdraw):
        after = replace(after, labels=after.labels.without_user(event.client))
    dirty = influence(before, event)
    old = {id(s) for s in before.now.state.memory if dirty is not None and s.round >= dirty}
    memory = Memory(tuple(s for s in after.now.state.memory if id(s) not in old))
    after = after.with_(state=replace(after.now.state, memory=memory))
    if after.method.exact if exact is None else exact:
        return after
    people = concerned(event)
    state = after.now.state
    fresh = after.method.server_init(after.world, after.clock).own
    own = begun_anew(state.own, fresh, people, after.world.sizes.clients)
    after = after.with_(state=replace(state, own=own))
    if isinstance(event, Erase):  # the device's own values were trained on what is erased
        vault = devices_anew(after.method, after.now.vault, people, after.clock)
        after = after.with_(vault=vault)
    return after


def devices_anew(method: Method, vault: Vault, people: Tensor, clock: Clock) -> Vault:
    """The devices with first private values for these people. people: [n] ids"""
    first = method.client_init(people.to(vault.holdings.members.device), clock)
    private = dict(vault.private)
    for name, value in vault.private.items():
        new = value.clone()
        new[people] = first.values[name].to(value) if name in first.values else 0
        private[name] = new
    return replace(vault, private=private)


def influence(fed: Federation, event: Event) -> int | None:
    """The first round in which a request's records may have mattered; None: in none.

    Whoever kept no track of the past must assume the first.
    """
    if fed.past is None:
        return 1 if fed.now.state.round else None
    return fed.past.influence(event, fed.now.state.round)


def _clean_past(before: History, after: History, event: Event, fed: Federation) -> History:
    """No point that saw the records, and no copy of them."""
    dirty = before.influence(event, fed.now.state.round)
    after = after.without(event)
    if dirty is None:
        return after
    seen = {id(p) for p in before.points if p.round >= dirty}
    return replace(after, points=tuple(p for p in after.points if id(p) not in seen))


# -- what is left ---------------------------------------------------------------------------------


def traces(fed: Federation, event: Event, before: Federation, made: bool = True) -> dict[str, int]:
    """Where a request's records or what was made of them can still be found, with counts.

    before: the federation before the request
    made: rows, snapshots and points that are still the same as before count as traces. After a
    retraining they do not: it gives the same where the records never mattered
    """
    wanted = requested(before, event)
    found: dict[str, int] = {}
    kept_by_devices = isinstance(event, Unshare)
    for place, records in _copies(fed, kept_by_devices):
        found[place] = int(records.among(wanted).sum())
    if made:
        found |= _same_rows(fed, before, event)
        old = {params.digest(s.values) for s in _dirty_snapshots(before, event)}
        kept = [s for s in fed.now.state.memory if params.digest(s.values) in old]
        found["snapshots"] = len(kept)
        dirty = influence(before, event)
        old_points = {
            params.digest(p.state.public)
            for p in (before.past.points if before.past else ())
            if dirty is not None and p.round >= dirty
        }
        points = fed.past.points if fed.past else ()
        found["points"] = sum(params.digest(p.state.public) in old_points for p in points)
    who = concerned(event)
    found["logs"] = sum(
        int(torch.isin(rows.owner, who.to(rows.owner.device)).sum())
        for _, _, rows in fed.now.vault.log.entries
    )
    return {place: many for place, many in found.items() if many}


def _dirty_snapshots(before: Federation, event: Event) -> list[Snapshot]:
    dirty = influence(before, event)
    return [s for s in before.now.state.memory if dirty is not None and s.round >= dirty]


def _copies(fed: Federation, lent_only: bool) -> Iterator[tuple[str, Records]]:
    """Every place that holds records: (name, records). lent_only: what devices keep is theirs."""

    def of(holdings: Holdings) -> Records:
        return holdings.records[holdings.lent] if lent_only else holdings.records

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


def _same_rows(fed: Federation, before: Federation, event: Event) -> dict[str, int]:
    """Rows of the people concerned that are still exactly as they were."""
    who, found = concerned(event), {}
    first = before.method.server_init(before.world, before.clock).own
    for name, value in fed.now.state.own.items():
        old = before.now.state.own.get(name)
        if old is None or not rows_of_people(name, value, fed.world.sizes.clients):
            continue
        if len(old) != len(value):
            continue
        begun = first.get(name, torch.zeros_like(old))
        same = (value[who] == old[who]).flatten(1).all(1)
        untouched = (old[who] == begun.to(old)[who]).flatten(1).all(1)
        found[f"server rows '{name}'"] = int((same & ~untouched).sum())
    return found


def inventory(fed: Federation) -> tuple[Kept, ...]:
    """What is kept after a forgetting, with its size and why it may stay."""
    state, vault, past = fed.now.state, fed.now.vault, fed.past
    sizes = {
        "model": (params.nbytes(state.public), "What devices are sent."),
        "server's own values": (
            params.nbytes(state.own),
            "Rows of people who lend, optimiser moments and the like; never sent.",
        ),
        "snapshots": (
            state.memory.nbytes,
            "Earlier item tables, none of them made with the records.",
        ),
        "points to go back to": (
            past.nbytes if past else 0,
            "Models of earlier rounds, all from before the records mattered or made without them.",
        ),
        "private values on devices": (
            params.nbytes(vault.private),
            "Each stays on the device of the person it belongs to.",
        ),
        "logs on devices": (vault.log.nbytes, "Rows of their own updates that devices keep."),
        "loans": (_records_bytes(fed.world.shared), "The server's copy of what people lend now."),
    }
    return tuple(Kept(name, many, says) for name, (many, says) in sizes.items())


def _records_bytes(records: Records) -> int:
    return sum(c.numel() * c.element_size() for c in (records.client, records.item, records.time))
