"""What every additive learner has in common: how it forgets, what it publishes, what it can prove.

An event is answered by differences: the server's own for loans, the devices' for what they keep.
The sum forgets at once; devices are sent a release, which may be older than the sum.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.claims import AFTER, BEFORE, EPSILON, NEXT, OPEN, PUBLISHED, Claims
from rescind.core.cohort import Lot
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Arrive, Erase, Event, Records, Share, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.run_state import RoundResult
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.errors import ConfigError, DataError
from rescind.methods.additive._exchange import (
    BLOCK,
    CHANGE,
    LEAVE,
    OWNERS,
    Lent,
    client_erased,
    grown_flags,
    outstanding,
    parts_of_loans,
)
from rescind.methods.additive._pairs import Parts, from_bits
from rescind.methods.additive._release import Dial
from rescind.privacy import shared_sums
from rescind.privacy.accountant import epsilon_of

if TYPE_CHECKING:
    from rescind.core.federation import Federation

ALONE = 32
"""Up to this many devices answer an event one by one; more are summed, and the model is solved."""
FORMS = {
    "dense": "all weights",
    "neighbours": "the {size} largest weights of each item",
    "factors": "weights of rank {size}",
}


@dataclass(frozen=True, kw_only=True)
class Additive(Dial, Method):
    """A learner whose model is a function of a sum over people."""

    unlearning: ClassVar[str] = "Subtract"
    works_without_devices: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    cross: bool = False
    """A device sends the pairs of all its items, lent ones too, and the server counts nothing for
    it: slightly better, but nothing is forgotten without the device."""

    @property
    def local_includes_shared(self) -> bool:
        """Whether devices count what they lent: with `cross`."""
        return self.cross

    @property
    def derived(self) -> dict[str, bool]:
        """Return what digests of settings also hold: in 0.1 this was a field."""
        return {} if self.cross else {"local_includes_shared": False}

    @property
    def asks_devices(self) -> bool:
        """Whether devices are counted at all; if not, loans are all there is."""
        return True

    @property
    def exactness(self) -> tuple[str, ...]:
        """Parts of the model that the exactness of its sum does not cover, for a receipt."""
        return ()

    @abstractmethod
    def server_absorb(
        self,
        state: ServerState,
        sums: Mapping[str, Sum],
        world: World,
        lenders: Tensor | None = None,
    ) -> ServerState:
        """Return the state after differences came in. lenders: whose loans changed; None: all"""

    @abstractmethod
    def server_published(self, state: ServerState, world: World, people: int) -> ServerState:
        """Return the state with a new release, if enough people have changed since the last."""

    @abstractmethod
    def server_reach(self, world: World) -> float:
        """Return how much one person can change of the sum that is released."""

    @abstractmethod
    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        """Return the sum of these parts alone."""

    def client_erased(self, private: Params, records: Records, block: int) -> Params:
        """Note on devices what was erased of the items they counted."""
        return client_erased(private, records, block)

    def executor_for(self, executor: Executor) -> Executor:
        """With two servers, send sums through both of them."""
        return shared_sums.executor_for(executor) if self.servers == 2 else executor

    # -- forgetting: subtraction -----------------------------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Subtract what went and add what came: exactly the sum of a history without it.

        Devices may be away: what they lent is forgotten all the same. What they kept stays counted:
        it is owed until they are next online, and lost if they have withdrawn.
        """
        return self.follow(fed, request.event, request.away)

    def follow(self, fed: Federation, event: Event, away: tuple[int, ...] = ()) -> Federation:
        """Apply an event of any kind, and bring the sum up to date at once."""
        after = fed.apply(event)
        if not fed.now.state.round:
            return after
        leaving, arriving = isinstance(event, Withdraw), isinstance(event, Arrive)
        state, vault = after.now.state, after.now.vault
        asked, lenders = concerned(self, fed, after, event)
        if not self.asks_devices:
            asked = asked[:0]
        absent = torch.isin(asked, asked.new_tensor(list(away)))
        flags = grown_flags(state.own, after.world)
        if leaving:
            flags["lost"][asked[absent]] = True
            flags["counted"][lenders], flags["owes"][lenders] = -1, False
            sums, _ = _answers(self, fed, fed.now.vault, asked[~absent], LEAVE)
        else:
            flags["owes"][asked[absent]] = not arriving  # a new block is not a debt
            if isinstance(event, Erase):
                records = event.records.to(asked.device)
                noted = self.client_erased(vault.private, records, after.world.block)
                vault = replace(vault, private=noted)
            sums, vault = _answers(self, after, vault, asked[~absent], CHANGE)
        hosts, hosted = _hosts(self, fed, after)
        state = replace(state, own={**state.own, **flags})
        state = self.server_absorb(
            state, {**sums, **hosts}, after.world, None if arriving else lenders
        )
        after = replace(after, now=replace(after.now, state=state, vault=vault, hosted=hosted))
        for look in fed.watch if sums else ():  # devices had to be online for this
            look(RoundResult(after.now, sums, None, after.past))
        return after

    # -- releases --------------------------------------------------------------------------------

    def released(self, fed: Federation) -> tuple[int, int]:
        """Return the number of releases, and of people who changed since the last."""
        own = fed.now.state.own
        if "released" not in own:  # saved before releases were counted
            return int(fed.now.state.round > 0), 0
        count, since = own["released"].tolist()
        return count, since

    def pending(self, fed: Federation) -> int:
        """Return how many more people must change before the next release; 0: it is up to date."""
        _, since = self.released(fed)
        return self.release_every - since if since else 0

    def settled(self, fed: Federation) -> bool:
        """Return whether the release is up to date and no device owes a difference."""
        return not self.pending(fed) and not outstanding(fed.now.state.own)

    def release_form(self) -> str:
        """Return what a release holds, in words."""
        said = FORMS[self.release].format(size=self.release_size)
        if self.min_count:
            said += f", of items that {self.min_count:,} people or more have"
        if self.longest_history:
            said += f", histories counting as {self.longest_history:,} items at most"
        noise = f"noise of {self.noise:g} times what one person can change" if self.noise else ""
        return f"{said}; {noise or 'no noise'}"

    def published(self, fed: Federation) -> dict[str, Any]:
        """Return the privacy settings and the state of releases, for run.json."""
        count, since = self.released(fed)
        more = self.release_every - since
        return {
            "what": self.release_form(),
            "servers": self.servers,
            "releases": count,
            "people_since": since,
            "next": f"when {more} more changed" if self.pending(fed) else "due",
            **self.promise(fed),
        }

    def promise(self, fed: Federation) -> dict[str, Any]:
        """Return the epsilon of all releases so far together; nothing where there is no noise.

        Everybody counted is in every release, so each release is one more Gaussian mechanism.
        """
        if not self.noise:
            return {}
        count, _ = self.released(fed)
        return {
            "epsilon": epsilon_of(self.noise, self.delta, count),
            "delta": self.delta,
            "noise_multiplier": self.noise,
            "sensitivity": self.server_reach(fed.world),
            "protects": (
                f"Each person's whole contribution (user level), lent and kept: {count} releases "
                f"of the weights, with that person and without. Central: the server holds the "
                f"exact sum, adds the noise and must show nobody a sum without it. What a person "
                f"lent is seen by the server itself."
            ),
        }

    def publish(self, fed: Federation) -> Federation:
        """Return the federation with a new release."""
        if not self.released(fed)[0]:
            raise ConfigError("no device has been counted yet, so there is nothing to release. "
                              "Run a round.")  # fmt: skip
        state = self.server_published(fed.now.state, fed.world, self.release_every)
        return replace(fed, now=replace(fed.now, state=state))

    # -- proof -----------------------------------------------------------------------------------

    def claims(self, before: Federation, after: Federation) -> Claims:
        """Return the digests of the sum before and after, and the state of releases."""
        left = outstanding(after.now.state.own)
        limits = []
        if len(left.owes):
            limits.append(
                f"What {len(left.owes)} devices that could not be reached had kept: it is "
                f"subtracted when they are next online."
            )
        if len(left.lost):
            limits.append(
                f"What {len(left.lost)} devices had kept that left and never came back: it stays "
                f"in the sum until everybody is counted anew."
            )
        limits += self.exactness
        more, promised = self.pending(after), self.promise(after)
        if more:
            limits.append(
                f"What devices are sent until the next release, which is due when {more} more "
                f"people have changed something: it was made before this request and still holds "
                f"the records."
            )
        plain = {
            AFTER: sum_digest(after.now.state.own),
            OPEN: f"{len(left.owes)} owed, {len(left.lost)} lost",
            PUBLISHED: self.release_form(),
            NEXT: f"due when {more} more people have changed something" if more else "made",
        }
        if promised:
            count, _ = self.released(after)
            plain[EPSILON] = (
                f"{promised['epsilon']:.4g} at delta {promised['delta']:g}, {count} releases"
            )
        return Claims(plain, {BEFORE: sum_digest(before.now.state.own)}, tuple(limits))

    def rebuilt(self, fed: Federation) -> str:
        """Return the digest of the sum over a federation's data, added up from nothing."""
        lent = torch.unique(fed.world.shared.pairs())
        if not self.cross and not torch.equal(lent, Lent.of(fed.now.state.own).pair):
            raise DataError("its loans are not those that its sum was made of")
        return sum_digest(rebuilt(self, fed))


def sum_digest(own: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a sum's whole numbers, independent of their width in bytes."""
    sums = {n: v.long() for n, v in own.items() if n.startswith("gram/") or n == OWNERS}
    return params.digest(sums)


def rebuilt(method: Additive, fed: Federation) -> dict[str, Tensor]:
    """Add up the sum over the data of a federation from nothing.

    Loans come from the server's copy and what devices kept from the devices; of blocks that are
    over, devices have only their notes of what they counted.
    """
    own = fed.now.state.own
    everybody = torch.arange(fed.world.sizes.clients, device=own["counted"].device)
    parts = _kept(method, fed.now.vault, everybody, own["counted"] >= 0, fed.world.block)
    for (number, _), vault in zip(fed.world.hosted, fed.now.hosted, strict=True):
        who = torch.tensor([number], device=everybody.device)
        parts += _kept(method, vault, who, torch.ones_like(who, dtype=torch.bool), fed.world.block)
    if not method.cross:
        parts += parts_of_loans(Lent.of(own), method.longest_history)
    return method.server_added(parts, fed.world)


def _kept(method: Additive, vault: Vault, who: Tensor, counted: Tensor, now: int) -> Parts:
    """Return what these devices hold, as far as they were counted. who, counted: [C]"""
    name = "own" if method.cross else "unshared"
    longest = method.longest_history
    parts = _once(vault.holdings.of_clients(name, who), counted, who, now, longest)
    for note, bits in vault.private.items():
        if note.startswith("sent/") and int(note[-4:]) < now:
            parts += _once(from_bits(bits[who]), counted, who, int(note[-4:]), longest)
    return parts


def _once(lot: Lot, chosen: Tensor, who: Tensor, block: int, longest: int) -> Parts:
    """Return a part for each of the chosen owners. chosen, who: [owners]"""
    mine = chosen[lot.owner]
    inside = Lot(lot.owner[mine], lot.item[mine], lot.clients)
    return Parts.of(inside, 1, who, torch.full_like(who, block), longest)


def concerned(
    method: Additive, fed: Federation, after: Federation, event: Event
) -> tuple[Tensor, Tensor]:
    """Which devices have something to send after an event, and whose loans may have changed."""
    world, state = after.world, after.now.state
    none = torch.zeros(0, dtype=torch.int64, device=world.members.device)
    if isinstance(event, Arrive):
        return method.server_sample(state, world, fed.clock.at(state.round)), none
    counted = grown_flags(state.own, world)["counted"]
    if isinstance(event, Withdraw) and not fed.world.concerns_hosted_only(event):
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
