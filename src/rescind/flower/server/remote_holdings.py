"""The devices as the server sees them on a network: names of moments, and what devices announce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch
from torch import Tensor

from rescind.core.cohort import Graph
from rescind.core.executor import Vault
from rescind.core.holdings import Holdings
from rescind.core.params import Params
from rescind.core.records import Anew, Arrive, Erase, Event, Join, Records, Share, Unshare, Withdraw
from rescind.core.world import Announced
from rescind.errors import BoundaryError, DataError
from rescind.experiments.streams import Announcement
from rescind.flower.wire.steps import MOMENT, Step
from rescind.storage.packing import Facts

FORGETTING = (Erase, Unshare, Withdraw)


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class RemoteHoldings(Holdings):
    """Holdings that are not here: no record is in it, only where to ask.

    It is a value like other holdings, so federations on a network can be compared, gone back to
    and retrained; what it names is kept on the silos until `FlowerExecutor.settle`.
    """

    moment: Tensor = field(default_factory=_none)
    """[silos] which moment of its holdings each silo is at, once it has taken its steps."""
    said: Announced | None = None
    owed: tuple[Step, ...] = ()
    """What silos have not acknowledged yet, oldest first."""
    nevers: tuple[tuple[int, Event], ...] = ()
    """(silo, event) whose records are to be left out when devices begin anew from here."""
    epoch: int = 0
    """How often something was forgotten so far."""
    seed: int = 0
    """Of the run: a silo that catches up while it measures draws first values with it, too."""
    validated: Tensor = field(default_factory=_none)
    """[silos] how many people on each have something held out for validation."""

    @property
    def silos(self) -> int:
        """How many silos there are."""
        return len(self.moment)

    @property
    def available(self) -> Tensor:
        """What the devices said of themselves. [clients] bool"""
        return self._said.available

    @property
    def keeps(self) -> Tensor:
        """What the devices said of themselves. [clients] bool"""
        return self._said.keeps

    @property
    def _said(self) -> Announced:
        if self.said is None:
            raise DataError("the silos have not said yet who is there: open them first.")
        return self.said

    def lot(self, name: str, block: int | None = None) -> NoReturn:
        """Nobody here can look."""
        raise BoundaryError(
            f"what devices hold ('{name}') is on their silos. Ask through the executor: train, "
            f"measure, or query where a silo allows it."
        )

    def holders(self, split: str, block: int | None = None) -> Tensor:
        """Nobody here knows who: all members, of whom silos count those that have something."""
        nobody = split == "valid" and block is None and not int(self.validated.sum())
        return _none() if nobody else self.members.nonzero()[:, 0]

    # -- histories without something, for retraining -----------------------------------------------

    def without(self, records: Records) -> RemoteHoldings:
        """Begin anew without these records."""
        return self._never(Erase(records))

    def without_loans(self, records: Records) -> RemoteHoldings:
        """Begin anew with nothing of these records lent."""
        return self._never(Unshare(records))

    def without_client(self, client: int) -> RemoteHoldings:
        """Begin anew without this client."""
        return self._never(Withdraw(client))

    def apply(self, event: Event) -> RemoteHoldings:
        """A history in which a client never was."""
        if not isinstance(event, Withdraw):
            raise BoundaryError("events on devices elsewhere go through the executor.")
        members = self.members.clone()
        members[event.client] = False
        return replace(self._never(event), members=members)

    def _never(self, event: Event) -> RemoteHoldings:
        parts = ((silo, part_for(event, silo, self.silos)) for silo in range(self.silos))
        new = tuple((silo, part) for silo, part in parts if part is not None)
        # Who begins anew from here has forgotten, too: nobody may answer it from before.
        return replace(self, nevers=self.nevers + new, epoch=self.epoch + 1)


def elsewhere(vault: Vault) -> RemoteHoldings:
    """The holdings of a vault whose devices are on a network."""
    if not isinstance(vault.holdings, RemoteHoldings) or MOMENT not in vault.private:
        raise BoundaryError(
            "this federation's devices are in this process. Start it with the holdings that "
            "`FlowerExecutor.gather` gives."
        )
    return vault.holdings


def part_for(event: Event, silo: int, silos: int) -> Event | None:
    """What of an event concerns a silo; None: nothing."""
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


def after(vault: Vault, event: Event, public: Params) -> Vault:
    """The server's view of an event before anybody has acknowledged it.

    What it cannot know without the silos (who has something left to train on) stays as it was,
    but nobody who left is available, and sizes grow.
    """
    holdings, owed = elsewhere(vault), list[Step]()
    moment, private = holdings.moment.clone(), vault.private[MOMENT].clone()
    for silo in range(holdings.silos):
        part = part_for(event, silo, holdings.silos)
        if part is not None:
            seen = dict(public) if isinstance(part, Arrive) else {}
            step = Step(silo, part, int(moment[silo]), int(private[silo]), seen)
            moment[silo], private[silo] = step.after
            owed.append(step)
    members, items, now = holdings.members, holdings.items, holdings.now
    if isinstance(event, Withdraw) and 0 <= event.client < len(members):
        members = members.clone()
        members[event.client] = False
    if isinstance(event, Join):
        members = _longer(members, event.client + 1)
        members[event.client] = True
    if isinstance(event, Arrive):
        new = torch.ones(event.clients, dtype=torch.bool)
        new[: len(members)] = members
        members, items, now = new, event.items, now + 1
    many = len(members)
    said = holdings._said
    flags = Announced(_longer(said.available, many) & members, _longer(said.keeps, many) & members)
    if isinstance(event, Announcement):  # the silos have said who trains; nothing of it is lent
        flags = Announced(event.trains & members, event.trains & members)
    epoch = holdings.epoch + isinstance(event, FORGETTING)
    held = replace(
        holdings, moment=moment, owed=(*holdings.owed, *owed), members=members, items=items,
        now=now, said=flags, epoch=epoch,
    )  # fmt: skip
    return replace(vault, holdings=held, private={**vault.private, MOMENT: private})


def heard(
    holdings: RemoteHoldings, silo: int, facts: Facts, said: Mapping[str, Tensor]
) -> RemoteHoldings:
    """The same holdings after a silo has acknowledged everything and said who is there."""
    moment, validated = holdings.moment.clone(), holdings.validated.clone()
    moment[silo], validated[silo] = int(facts["held"]), int(facts["validated"])
    many = max(holdings.clients, int(facts["clients"]))
    here = torch.arange(many) % holdings.silos == silo
    before = holdings.said or Announced(torch.zeros(many).bool(), torch.zeros(many).bool())
    flags = {}
    for name, old in (
        ("available", before.available), ("keeps", before.keeps), ("member", holdings.members)
    ):  # fmt: skip
        new = _longer(old, many) & ~here
        ids = said[name]
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= many or not bool(here[ids].all())):
            raise DataError(f"silo {silo} speaks for clients that do not live there.")
        new[ids] = True
        flags[name] = new
    return replace(
        holdings,
        moment=moment,
        validated=validated,
        members=flags["member"],
        said=Announced(flags["available"], flags["keeps"]),
        owed=tuple(step for step in holdings.owed if step.silo != silo),
    )


def unseen(silos: int, facts: Facts) -> RemoteHoldings:
    """Holdings of which only the sizes are known."""
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
        moment=torch.zeros(silos, dtype=torch.int64),
        validated=torch.zeros(silos, dtype=torch.int64),
    )


def _longer(flags: Tensor, many: int) -> Tensor:
    longer = flags.new_zeros(max(many, len(flags)))
    longer[: len(flags)] = flags
    return longer
