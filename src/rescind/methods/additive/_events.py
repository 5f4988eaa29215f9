"""What happens to an additive learner when people change their minds: who is asked, what is sent.

An event is answered by differences: the server's own for loans, the devices' for what they keep.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rescind.core.executor import InProcess, Vault
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.records import Arrive, Erase, Event, Share, Unshare, Withdraw
from rescind.core.run_state import RoundResult
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.methods.additive._exchange import BLOCK, CHANGE, LEAVE, client_erased, grown_flags

ALONE = 32
"""Up to so many devices answer an event each for itself; more are added up and solved anew."""


class Additive(Method):
    """A learner whose model is a function of a sum over people."""

    cross: bool
    """A device sends the pairs of all its items, and the server counts nothing for it."""

    @property
    def asks_devices(self) -> bool:
        """Whether devices are counted at all; where not, loans are all there is."""
        return True

    @abstractmethod
    def server_absorb(
        self,
        state: ServerState,
        sums: Mapping[str, Sum],
        world: World,
        lenders: Tensor | None = None,
    ) -> ServerState:
        """The state after differences came in. lenders: whose loans changed; None looks at all"""


def subtracted(
    method: Additive, fed: Federation, event: Event, absent: Sequence[int] = ()
) -> Federation:
    """The federation after an event: what went is subtracted, what came is added.

    absent: devices that cannot be reached
    """
    after = fed.apply(event)
    if not fed.now.state.round:
        return after
    leaving, arriving = isinstance(event, Withdraw), isinstance(event, Arrive)
    state, vault = after.now.state, after.now.vault
    asked, lenders = concerned(method, fed, after, event)
    if not method.asks_devices:
        asked = asked[:0]
    away = torch.isin(asked, asked.new_tensor(list(absent)))
    flags = grown_flags(state.own, after.world)
    if leaving:
        flags["lost"][asked[away]] = True
        flags["counted"][lenders], flags["owes"][lenders] = -1, False
        sums, _ = _answers(method, fed, fed.now.vault, asked[~away], LEAVE)
    else:
        flags["owes"][asked[away]] = not arriving  # a new block is no debt
        if isinstance(event, Erase):
            records = event.records.to(asked.device)
            noted = client_erased(vault.private, records, after.world.block)
            vault = replace(vault, private=noted)
        sums, vault = _answers(method, after, vault, asked[~away], CHANGE)
    hosts, hosted = _hosts(method, fed, after)
    state = replace(state, own={**state.own, **flags})
    state = method.server_absorb(
        state, {**sums, **hosts}, after.world, None if arriving else lenders
    )
    after = replace(after, now=replace(after.now, state=state, vault=vault, hosted=hosted))
    for look in fed.watch if sums else ():  # devices had to be online for this
        look(RoundResult(after.now, sums, None, after.past))
    return after


def concerned(
    method: Additive, fed: Federation, after: Federation, event: Event
) -> tuple[Tensor, Tensor]:
    """Which devices have something to send after an event, and whose loans may have changed."""
    world, state = after.world, after.now.state
    none = torch.zeros(0, dtype=torch.int64, device=world.members.device)
    if isinstance(event, Arrive):
        return method.server_sample(state, world, fed.clock.at(state.round)), none
    counted = grown_flags(state.own, world)["counted"]
    if isinstance(event, Withdraw) and not fed.world.only_hosts(event):
        who = none.new_tensor([event.client])
        return who[counted[who] >= 0], who
    if not isinstance(event, Share | Unshare | Erase):
        return none, none
    who = torch.unique(event.records.client).to(none.device)
    # After a round, a device that had nothing to send is as up to date as one that was counted.
    empty = ~(fed.world.available if method.cross else fed.world.announced.keeps)
    current = int(state.own["rounds"]) == world.block
    asked = (counted[who] == world.block) | (empty[who] & current)
    if isinstance(event, Erase):  # also of what it counted in blocks that are over
        asked |= counted[who] >= 0
    return who[asked], who


def _answers(
    method: Additive, fed: Federation, vault: Vault, ids: Tensor, role: str
) -> tuple[dict[str, Sum], Vault]:
    """What these devices send: a few each for itself, many as one sum of pairs."""
    if not len(ids):
        return {}, vault
    single = ids.tolist() if role == LEAVE or len(ids) <= ALONE else []
    roles = {i: f"{role}/{i}" for i in single} or None
    public = {BLOCK: fed.now.state.public[BLOCK]}  # no weights are needed for a difference
    return fed.executor.train(method, public, None, vault, ids, roles, fed.clock)


def _hosts(
    method: Additive, fed: Federation, after: Federation
) -> tuple[dict[str, Sum], tuple[Vault, ...]]:
    """The differences of clients that the server hosts itself."""
    sums: dict[str, Sum] = {}
    stay = {number for number, _ in after.world.hosted}
    asked = [(n, v, CHANGE) for (n, _), v in zip(after.world.hosted, after.now.hosted, strict=True)]
    asked += [
        (n, v, LEAVE)
        for (n, _), v in zip(fed.world.hosted, fed.now.hosted, strict=True)
        if n not in stay
    ]
    hosted = []
    for number, vault, role in asked:
        device = vault.holdings.members.device
        ids = torch.tensor([number], device=device)
        public = {BLOCK: after.now.state.public[BLOCK]}
        named = {number: f"host/{role}/{number}"}
        mine, new = InProcess(str(device)).train(method, public, None, vault, ids, named, fed.clock)
        sums |= mine
        hosted += [new] if role == CHANGE else []
    return sums, tuple(hosted)
