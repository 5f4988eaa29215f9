"""Base of additive learners: forgetting by subtraction, releases, and proofs."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.claims import AFTER, BEFORE, EPSILON, NEXT, OPEN, PUBLISHED, Claims
from rescind.core.clock import Clock
from rescind.core.executor import Executor, InProcess, Vault
from rescind.core.memory import keep_freed_memory
from rescind.core.method import Method
from rescind.core.named import Named
from rescind.core.params import Params
from rescind.core.records import Arrive, Erase, Event, Records, Share, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.run_state import RoundResult
from rescind.core.signatures import Sums
from rescind.core.state import ServerState
from rescind.core.update import Sum
from rescind.core.world import World
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.methods.additive import _exchange as exchange
from rescind.methods.additive._exchange import BLOCK, CHANGE, LEAVE, OWNERS, Lent
from rescind.methods.additive._notes import BITS, Notes
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive._release import Dial
from rescind.methods.additive._saved_sums import check_notes, check_sums

if TYPE_CHECKING:
    from rescind.core.federation import Federation

keep_freed_memory()  # each change of a sum is a new table of all pairs
NONE_LEFT = "no release left in the schedule"
ALONE = 32
"""Up to this many devices answer an event one by one; more are summed, and the model solved."""


@dataclass(frozen=True, kw_only=True)
class Additive(Dial, Method):
    """Base of learners with a model that is a function of a sum over users."""

    unlearning: ClassVar[str] = "Subtract"
    works_without_devices: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    renamed: ClassVar[dict[str, str]] = {"local_includes_shared": "cross"}
    """A field of version 0.1, and the field that it became: digests of settings still have it."""

    cross: bool = False
    """A device sends the pairs of all its items, lent ones too, and the server counts no loans:
    slightly more accurate, but nothing is forgotten while the device is offline."""

    @property
    def local_includes_shared(self) -> bool:
        return self.cross

    @property
    def notes(self) -> Notes:
        return BITS

    @property
    def asks_devices(self) -> bool:
        return True

    @property
    def exactness(self) -> tuple[str, ...]:
        """Return what the exact sum does not cover, for receipts."""
        return ()

    @abstractmethod
    def server_absorb(
        self, state: ServerState, sums: Sums, world: World, lenders: Tensor | None = None
    ) -> ServerState:
        """Return the state with differences added. lenders: clients with new loans; None: all"""

    @abstractmethod
    def server_published(self, state: ServerState, world: World, people: int) -> ServerState:
        """Return the state with a new release, if enough users have changed since the last."""

    @abstractmethod
    def server_reach(self, world: World) -> float:
        """Bound how much one user can change the released sum."""

    @abstractmethod
    def server_added(self, parts: Parts, world: World) -> dict[str, Tensor]:
        """Return the sum of these parts alone."""

    def client_erased(self, private: Params, records: Records, block: int) -> Params:
        return exchange.client_erased(private, records, block, self.notes)

    def executor_for(self, executor: Executor) -> Executor:
        if self.servers != 2:
            return executor
        from rescind.privacy import shared_sums

        return shared_sums.executor_for(executor)

    def check_saved(self, state: ServerState, kept: Params, world: World) -> None:
        check_sums(state, self.server_init(world, Clock(0)), world.sizes)
        check_notes(kept, self.notes, world)

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Subtract the records: the sum equals one of a history without them, exactly.

        Lent items are forgotten even if devices are offline. Their kept items stay counted: owed
        until they are next online, and lost if they have withdrawn.
        """
        return self.follow(fed, request.event, request.away)

    def follow(
        self, fed: Federation, event: Event | Named, away: tuple[int, ...] = ()
    ) -> Federation:
        event = fed.event_of(event)  # what follows asks which kind it is, and names have their own
        after = fed.apply(event)
        if not fed.now.state.round:
            return after
        leaving, arriving = isinstance(event, Withdraw), isinstance(event, Arrive)
        state, vault = after.now.state, after.now.vault
        asked, lenders = affected(self, fed, after, event)
        if not self.asks_devices:
            asked = asked[:0]
        absent = torch.isin(asked, asked.new_tensor(list(away)))
        flags = exchange.grown_flags(state.own, after.world)
        if leaving:
            flags["lost"] = exchange.flagged(flags["lost"], asked[absent], True)
            flags["counted"] = exchange.flagged(flags["counted"], lenders, -1)
            flags["owes"] = exchange.flagged(flags["owes"], lenders, False)
            sums, _ = _answers(self, fed, fed.now.vault, asked[~absent], LEAVE)
        else:
            # A new block is not a debt.
            flags["owes"] = exchange.flagged(flags["owes"], asked[absent], not arriving)
            if isinstance(event, Erase):
                records = event.records.to(asked.device)
                noted = self.client_erased(vault.private, records, after.world.block)
                vault = replace(vault, private=noted)
            sums, vault = _answers(self, after, vault, asked[~absent], CHANGE)
        if not arriving:
            _must_all_be_there(sums)
        hosts, hosted = _hosts(self, fed, after)
        state, changed = replace(state, own={**state.own, **flags}), None if arriving else lenders
        state = self.server_absorb(state, {**sums, **hosts}, after.world, changed)
        after = replace(after, now=replace(after.now, state=state, vault=vault, hosted=hosted))
        for progress in fed.watch if sums else ():  # a round of devices took place
            progress(RoundResult(after.now, sums, None, after.past))
        return after

    def released(self, fed: Federation) -> tuple[int, int]:
        """Return the number of releases, and of users that changed since the last."""
        count, since = fed.now.state.own["released"].tolist()
        return count, since

    def pending(self, fed: Federation) -> int:
        """Return how many more users must change before the next release; 0 if up to date."""
        _, since = self.released(fed)
        return max(1, self.release_every - since) if since else 0

    def spent(self, fed: Federation) -> bool:
        """Return whether the schedule has no release left."""
        return 0 < self.releases <= self.released(fed)[0]

    def settled(self, fed: Federation) -> bool:
        return not self.pending(fed) and not exchange.outstanding(fed.now.state.own)

    def published(self, fed: Federation) -> dict[str, Any]:
        count, since = self.released(fed)
        more = self.pending(fed)
        due = f"when {more} more changed" if more else "due"
        return {
            "what": self.release_form(),
            "servers": self.servers,
            "releases": count,
            "people_since": since,
            "next": NONE_LEFT if self.spent(fed) else due,
            **self.promise(fed),
        }

    def promise(self, fed: Federation) -> dict[str, Any]:
        """Return the epsilon of all releases so far; empty without noise.

        Each release covers all counted users, so fresh noise is one more Gaussian mechanism. A
        schedule is one mechanism, stated whole from its first release on.
        """
        if not self.noise:
            return {}
        from rescind.privacy.gaussian import epsilon_of
        from rescind.privacy.schedules import over_blocks

        count, _ = self.released(fed)
        noise, times, over = self.noise, count, f"{count} releases of the weights"
        if self.releases:
            noise, times = over_blocks(noise, fed.world.block + 1), min(count, 1)
            over = (
                f"all {self.releases} releases of the schedule, {count} made, for people who come "
                f"once in each block and are forgotten once; each change in between counts as one "
                f"more person"
            )
        return {
            "epsilon": epsilon_of(noise, self.delta, times),
            "delta": self.delta,
            "noise_multiplier": noise,
            "sensitivity": self.server_reach(fed.world),
            "protects": (
                f"Each person's whole contribution (user level), lent and kept, over {over}. "
                f"Central: the server adds the noise, must keep the exact sum and the noise "
                f"secret, and sees what a person lent."
            ),
        }

    def check_retraining(self, fed: Federation) -> None:
        """Refuse to make releases again: `promise` would count the new ones alone."""
        if self.noise and (made := self.released(fed)[0]):
            raise ConfigError(
                f"{type(self).__name__} made {made} releases with noise, and retraining "
                f"would make more, beyond the stated epsilon. Forget by subtraction."
            )

    def publish(self, fed: Federation) -> Federation:
        if not self.released(fed)[0]:
            raise ConfigError("no device is counted yet, so nothing can be released. Run a round.")
        if self.spent(fed):
            raise ConfigError(
                f"{NONE_LEFT}: all {self.releases} of {type(self).__name__}.releases are made. "
                f"Start a new run."
            )
        state = self.server_published(fed.now.state, fed.world, self.release_every)
        return replace(fed, now=replace(fed.now, state=state))

    def claims(self, before: Federation, after: Federation) -> Claims:
        left = exchange.outstanding(after.now.state.own)
        limits = []
        if len(left.owes):
            limits.append(
                f"Kept items of {len(left.owes)} unreached devices, until they are online."
            )
        if len(left.lost):
            limits.append(f"Kept items of {len(left.lost)} devices that left while offline.")
        limits += self.exactness
        more, promised = self.pending(after), self.promise(after)
        waits = f"due when {more} more people have changed something" if more else "made"
        if more and self.spent(after):
            waits = NONE_LEFT
            limits.append(
                "The last release still holds the records, and no release is left in the schedule."
            )
        elif more:
            limits.append(f"The last release still holds the records; the next is {waits}.")
        plain = {
            OPEN: f"{len(left.owes)} owed, {len(left.lost)} lost",
            PUBLISHED: self.release_form(),
            NEXT: waits,
        }
        if promised:
            spent, delta = promised["epsilon"], promised["delta"]
            count, _ = self.released(after)
            over = f"all {self.releases} releases, {count} made" if self.releases else ""
            plain[EPSILON] = f"{spent:.4g} at delta {delta:g}, {over or f'{count} releases'}"
        return Claims(
            plain,
            bound={AFTER: sum_digest(after.now.state.own)},
            sealed={BEFORE: sum_digest(before.now.state.own)},
            not_covered=tuple(limits),
        )

    def rebuilt(self, fed: Federation) -> str:
        lent = torch.unique(fed.world.shared.pairs())
        if not self.cross and not torch.equal(lent, Lent.of(fed.now.state.own).pair):
            raise DataError("the lent records differ from those counted in the sum")
        return sum_digest(rebuilt(self, fed))


def sum_digest(own: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a sum's integers (tensors or arrays), independent of their width."""
    sums = {n: v for n, v in own.items() if n.startswith("gram/") or n == OWNERS}
    return params.digest({n: torch.as_tensor(v).long() for n, v in sums.items()})


def rebuilt(method: Additive, fed: Federation) -> dict[str, Tensor]:
    return method.server_added(counted_parts(method, fed), fed.world)


def counted_parts(method: Additive, fed: Federation) -> Parts:
    """Return what each person adds to the sum, from the data."""
    own = fed.now.state.own
    everyone = torch.arange(fed.world.sizes.clients, device=own["counted"].device)
    parts = _kept(method, fed.now.vault, everyone, own["counted"] >= 0, fed.world.block)
    for (number, _), vault in zip(fed.world.hosted, fed.now.hosted, strict=True):
        ids = torch.tensor([number], device=everyone.device)
        parts += _kept(method, vault, ids, torch.ones_like(ids, dtype=torch.bool), fed.world.block)
    if not method.cross:
        parts += exchange.parts_of_loans(Lent.of(own), method.bound)
    return parts


def _kept(method: Additive, vault: Vault, ids: Tensor, counted: Tensor, now: int) -> Parts:
    """Return the parts of counted devices. ids, counted: [C]"""
    name = "own" if method.cross else "unshared"
    earlier = {int(n[-4:]): v for n, v in vault.private.items() if n.startswith("sent/")}
    current = vault.holdings.of_clients(name, ids, ordered=method.ordered)
    if method.ordered:  # a note may hold the last items only
        current = method.notes.read(method.notes.of(current, vault.holdings.items))
    lots = {now: current}
    lots |= {block: method.notes.read(note[ids]) for block, note in earlier.items() if block < now}
    parts = Parts.none(ids.device)
    for block, lot in lots.items():
        mine = counted[lot.owner]
        inside = lot.only(mine, lot.owner[mine], lot.clients)
        parts += Parts.of(inside, 1, ids, torch.full_like(ids, block), method.bound)
    return parts


def affected(
    method: Additive, fed: Federation, after: Federation, event: Event
) -> tuple[Tensor, Tensor]:
    """Return the devices that must answer an event, and the clients with changed loans."""
    world, state = after.world, after.now.state
    none = torch.zeros(0, dtype=torch.int64, device=world.members.device)
    if isinstance(event, Arrive):
        return method.server_sample(state, world, fed.clock.at(state.round)), none
    counted = state.own["counted"]
    if len(counted) < world.sizes.clients:
        counted = exchange.grown_flags(state.own, world)["counted"]
    if isinstance(event, Withdraw) and not fed.world.concerns_hosted_only(event):
        ids = none.new_tensor([event.client])
        return ids[counted[ids] >= 0], ids
    if not isinstance(event, Share | Unshare | Erase):
        return none, none
    ids = torch.unique(event.records.client).to(none.device)
    # After a round, a device with nothing to send is up to date, like a counted one.
    empty = ~(fed.world.available if method.cross else fed.world.announced.keeps)
    current = int(state.own["rounds"]) == world.block
    asked = (counted[ids] == world.block) | (empty[ids] & current)
    if isinstance(event, Erase):  # also items counted in earlier blocks
        asked |= counted[ids] >= 0
    return ids[asked], ids


def _answers(
    method: Additive, fed: Federation, vault: Vault, ids: Tensor, role: str
) -> tuple[dict[str, Sum], Vault]:
    """Ask devices for differences: each alone if they are few, else as one sum of pairs."""
    if not len(ids):
        return {}, vault
    single = ids.tolist() if role == LEAVE or len(ids) <= ALONE else []
    roles = {i: f"{role}/{i}" for i in single} or None
    public = {BLOCK: fed.now.state.public[BLOCK]}  # a difference needs no weights
    return fed.executor.train(method, public, None, vault, ids, roles, fed.clock)


def _must_all_be_there(sums: dict[str, Sum]) -> None:
    missing = Counter[str]()
    for one in sums.values():
        missing.update(one.refused)
    if missing.total():
        told = ", ".join(f"{n:,} {why}" for why, n in sorted(missing.items()))
        raise ConsentError(
            f"some devices did not answer ({told}), so nothing was subtracted. "
            f"Give the request again when they are there."
        )


def _hosts(
    method: Additive, fed: Federation, after: Federation
) -> tuple[dict[str, Sum], tuple[Vault, ...]]:
    sums: dict[str, Sum] = {}
    stay = {number for number, _ in after.world.hosted}
    asked = [
        (number, vault, role)
        for each, role in ((after, CHANGE), (fed, LEAVE))
        for (number, _), vault in zip(each.world.hosted, each.now.hosted, strict=True)
        if role == CHANGE or number not in stay
    ]
    hosted, public = [], {BLOCK: after.now.state.public[BLOCK]}
    for number, vault, role in asked:
        device = vault.holdings.members.device
        ids = torch.tensor([number], device=device)
        named = {number: f"host/{role}/{number}"}
        mine, new = InProcess(str(device)).train(method, public, None, vault, ids, named, fed.clock)
        sums |= mine
        hosted += [new] if role == CHANGE else []
    return sums, tuple(hosted)
