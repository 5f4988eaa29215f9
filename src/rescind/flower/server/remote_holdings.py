"""Server-side placeholder for data on silos: ids of saved states and availability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch
from torch import Tensor

from rescind.core.cohort import Graph
from rescind.core.executor import Vault
from rescind.core.history import History
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Anew, Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.core.world import Announced
from rescind.errors import BoundaryError, DataError
from rescind.experiments.streams import Announcement
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.payloads import LeftOut
from rescind.flower.wire.schema import moments_after
from rescind.flower.wire.steps import MOMENT, Step
from rescind.storage.packing import Facts, drawer

FORGETTING = (Erase, Unshare, Withdraw)


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class RemoteHoldings(Holdings):
    """Holdings on silos. It contains no records, only the id of each silo's saved state.

    It is a value like other holdings, so federations over silos can be compared, restored and
    retrained. Silos keep the states it refers to until `FlowerExecutor.settle`.
    """

    moment: Tensor = field(default_factory=_none)
    """[silos] id of each silo's holdings (`wire/steps.py`) after its pending steps."""
    announced: Announced | None = None
    owed: tuple[Step, ...] = ()
    """Steps that silos have not acknowledged yet, oldest first."""
    left_out: LeftOut = ()
    """(silo, event) whose records are left out when devices restart from here."""
    letters: tuple[tuple[int, Letter], ...] = ()
    """(silo, letter) to open or to keep that a silo missed: it answers them before anything else,
    so that nothing stale is used."""
    epoch: int = 0
    """Number of times that something was forgotten."""
    seed: int = 0
    """Seed of the run. A silo that catches up while it measures draws initial values with it."""
    validated: Tensor = field(default_factory=_none)
    """[silos] number of clients of each silo with held-out validation data."""
    heaviest: Tensor = field(default_factory=_none)
    """[silos] the largest number of nodes of a client that each silo announced first, else 1."""

    @property
    def silos(self) -> int:
        """Return the number of silos."""
        return len(self.moment)

    @property
    def pending_silos(self) -> tuple[int, ...]:
        """Return the silos that have not acknowledged every event."""
        return tuple(sorted({step.silo for step in self.owed} | {s for s, _ in self.letters}))

    def most(self, method: Method, silo: int) -> float:
        """Return the largest weight of a client: 1, or as its records or nodes allow."""
        if self.graph is not None:
            return float(self.heaviest[silo])
        weigh = {"records": float(self.items), "roots": self.items**0.5}
        return weigh.get(str(getattr(method, "aggregate", "")), 1.0)

    def missed(self, silo: int) -> list[Letter]:
        """Return the letters that a silo missed, oldest first."""
        return [letter for at, letter in self.letters if at == silo]

    @property
    def available(self) -> Tensor:
        """Return which clients can train, as announced by the silos. [clients] bool"""
        return self.known.available

    @property
    def keeps(self) -> Tensor:
        """Return which clients keep records for themselves, as announced. [clients] bool"""
        return self.known.keeps

    @property
    def known(self) -> Announced:
        """Return what the silos announced. Raises `DataError` before they have replied."""
        if self.announced is None:
            raise DataError("the silos have not replied yet. Call FlowerExecutor.gather first.")
        return self.announced

    def lot(self, name: str, block: int | None = None) -> NoReturn:
        """Not available on the server."""
        raise BoundaryError(
            f"the data of the devices ('{name}') is on their silos. Use the executor: train, "
            f"measure, or query if the silo allows it."
        )

    def of_clients(
        self, name: str, ids: Tensor, block: int | None = None, ordered: bool = False
    ) -> NoReturn:
        """Not available on the server."""
        self.lot(name, block)

    def holders(self, split: str, block: int | None = None) -> Tensor:
        """Return all members, because only silos know which have held-out data. [n] ids"""
        empty = split == "valid" and block is None and not int(self.validated.sum())
        return _none() if empty else self.members.nonzero()[:, 0]

    # -- starting points of a retraining -----------------------------------------------------------

    def without(self, records: Records) -> RemoteHoldings:
        """Return holdings to restart from without these records."""
        return self._leave_out(Erase(records))

    def erased(self, event: Erase) -> RemoteHoldings:
        """Return holdings to restart from without what an erasure names."""
        return self._leave_out(event)

    def without_loans(self, records: Records) -> RemoteHoldings:
        """Return holdings to restart from with these records not lent."""
        return self._leave_out(Unshare(records))

    def without_client(self, client: int) -> RemoteHoldings:
        """Return holdings to restart from without this client."""
        return self._leave_out(Withdraw(client))

    def apply(self, event: Event) -> RemoteHoldings:
        """Return holdings to restart from without the client of a `Withdraw`."""
        if not isinstance(event, Withdraw):
            raise BoundaryError("the devices are on silos. Apply events through the executor.")
        members = self.members.clone()
        members[event.client] = False
        return replace(self._leave_out(event), members=members)

    def _leave_out(self, event: Event) -> RemoteHoldings:
        parts = ((silo, part_for(event, silo, self.silos)) for silo in range(self.silos))
        new = tuple((silo, part) for silo, part in parts if part is not None)
        # A restart from here also forgets: replies from before must be refused.
        return replace(self, left_out=self.left_out + new, epoch=self.epoch + 1)


def remote_holdings(vault: Vault) -> RemoteHoldings:
    """Return the holdings of a vault. Raises `BoundaryError` if they are not on silos."""
    if not isinstance(vault.holdings, RemoteHoldings) or MOMENT not in vault.private:
        raise BoundaryError(
            "this federation's devices are in this process. Start it with the holdings that "
            "`FlowerExecutor.gather` returns."
        )
    return vault.holdings


def needed_moments(vault: Vault, past: History | None) -> tuple[list[int], list[int]]:
    """Return the moments that a vault and its history refer to: (holdings, private)."""
    held, private = {*remote_holdings(vault).moment.tolist()}, {*vault.private[MOMENT].tolist()}
    if past is not None:
        if isinstance(past.origin, RemoteHoldings):
            held |= {*past.origin.moment.tolist()}
        for point in (past.base, *past.points):
            if point is not None and MOMENT in point.private:
                private |= {*point.private[MOMENT].tolist()}
    return sorted(held), sorted(private)


def part_for(event: Event, silo: int, silos: int) -> Event | None:
    """Return the part of an event that concerns a silo, or None."""
    match event:
        case Share(records) | Unshare(records) | Erase(records) | Anew(records):
            part = records[records.client % silos == silo]
            return type(event)(part) if len(part) else None
        case Withdraw(client) | Join(client):
            return event if client % silos == silo else None
        case Arrive(records, split, clients, items):
            mine = records.client % silos == silo
            return Arrive(records[mine], split[mine], clients, items)
        case _:
            return None


def with_pending(vault: Vault, event: Event, public: Params) -> Vault:
    """Return the vault after an event that no silo has acknowledged yet.

    Sizes grow and clients that left are not available. What only silos know (which clients still
    have data to train on) stays as it was.
    """
    holdings, owed = remote_holdings(vault), list[Step]()
    moment, private = holdings.moment.clone(), vault.private[MOMENT].clone()
    for silo in range(holdings.silos):
        part = part_for(event, silo, holdings.silos)
        if part is not None:
            model = dict(public) if isinstance(part, Arrive) else {}
            step = Step(silo, part, int(moment[silo]), int(private[silo]), model)
            moment[silo], private[silo] = step.after
            owed.append(step)
    members, items, now = holdings.members, holdings.items, holdings.now
    if isinstance(event, Withdraw) and 0 <= event.client < len(members):
        members = members.clone()
        members[event.client] = False
    if isinstance(event, Join):
        members = _pad(members, event.client + 1)
        members[event.client] = True
    if isinstance(event, Arrive):
        new = torch.ones(event.clients, dtype=torch.bool)
        new[: len(members)] = members
        members, items, now = new, event.items, now + 1
    n, known = len(members), holdings.known
    flags = Announced(_pad(known.available, n) & members, _pad(known.keeps, n) & members)
    if isinstance(event, Announcement):  # silos announced which clients train; nothing is lent
        flags = Announced(event.trains & members, event.trains & members)
    epoch = holdings.epoch + isinstance(event, FORGETTING)
    held = replace(
        holdings, moment=moment, owed=(*holdings.owed, *owed), members=members, items=items,
        now=now, announced=flags, epoch=epoch,
    )  # fmt: skip
    return replace(vault, holdings=held, private={**vault.private, MOMENT: private})


def with_reply(
    holdings: RemoteHoldings, silo: int, facts: Facts, announced: Mapping[str, Tensor]
) -> RemoteHoldings:
    """Return the holdings after a silo's reply, which acknowledges all its pending steps.

    announced: [n] ids of clients by "available", "keeps" and "member"
    """
    moment, validated = holdings.moment.clone(), holdings.validated.clone()
    moment[silo], validated[silo] = int(facts["held"]), int(facts["validated"])
    heaviest = holdings.heaviest.clone()
    if holdings.announced is None or not int(holdings.moment[silo]):  # the first reply counts
        heaviest[silo] = int(facts.get("heaviest") or 1)
    n = max(holdings.clients, int(facts["clients"]))
    here = torch.arange(n) % holdings.silos == silo
    before = holdings.announced or Announced(torch.zeros(n).bool(), torch.zeros(n).bool())
    flags = {}
    for name, old in (
        ("available", before.available), ("keeps", before.keeps), ("member", holdings.members)
    ):  # fmt: skip
        new = _pad(old, n) & ~here
        ids = announced[name]
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= n or not bool(here[ids].all())):
            raise DataError(f"silo {silo} announced clients of other silos. Check its --silo.")
        new[ids] = True
        flags[name] = new
    return replace(
        holdings,
        moment=moment,
        validated=validated,
        heaviest=heaviest,
        members=flags["member"],
        announced=Announced(flags["available"], flags["keeps"]),
        owed=tuple(step for step in holdings.owed if step.silo != silo),
        letters=tuple((at, letter) for at, letter in holdings.letters if at != silo),
    )


def after_reply(vault: Vault, silo: int, reply: Letter) -> Vault:
    """Return the vault after an accepted reply of a silo."""
    held = with_reply(remote_holdings(vault), silo, reply.facts, drawer("said", reply.tensors))
    moment = vault.private[MOMENT].clone()
    moment[silo] = int(reply.facts["private"])
    return replace(vault, holdings=held, private={**vault.private, MOMENT: moment})


def without_opening(
    holdings: RemoteHoldings, silo: int, request: Letter
) -> tuple[RemoteHoldings, int]:
    """Return the holdings after a silo missed the request to open, and its private moment then.

    Members that left are not available; the rest is as it was announced.
    """
    held, private = moments_after(request, {})
    moment, known = holdings.moment.clone(), holdings.known
    moment[silo] = held
    n = len(holdings.members)
    flags = Announced(
        _pad(known.available, n) & holdings.members, _pad(known.keeps, n) & holdings.members
    )
    letters = (*holdings.letters, (silo, request))
    return replace(holdings, moment=moment, announced=flags, letters=letters), private


def from_sizes(silos: int, facts: Facts) -> RemoteHoldings:
    """Return holdings of which only the sizes are known."""
    nothing = torch.zeros(0)
    graph = None
    if facts["features"]:  # an empty graph, for the sizes in it
        whole = _none()
        graph = Graph(
            whole, whole, whole.view(2, 0), whole, whole, nothing, whole,
            int(facts["features"]), int(facts["classes"]),
        )  # fmt: skip
    return RemoteHoldings(
        records=Records.none(),
        split=nothing.to(torch.int8),
        block=nothing.to(torch.int16),
        lent=nothing.bool(),
        members=torch.zeros(int(facts["clients"]), dtype=torch.bool),
        items=int(facts["items"]),
        now=int(facts["block"]),
        task=str(facts["task"]),
        graph=graph,
        epoch=int(facts.get("epoch", 0)),
        moment=torch.zeros(silos, dtype=torch.int64),
        validated=torch.zeros(silos, dtype=torch.int64),
        heaviest=torch.ones(silos, dtype=torch.int64),
    )


def _pad(flags: Tensor, n: int) -> Tensor:
    padded = flags.new_zeros(max(n, len(flags)))
    padded[: len(flags)] = flags
    return padded
