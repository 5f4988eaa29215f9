"""What a silo takes in from its data: its own part, without what was forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive, Event, Withdraw
from rescind.data.blocklist import Blocklist
from rescind.errors import DataError
from rescind.flower.silo.departures import (
    Asked,
    Rows,
    add_to_list,
    depart,
    meaning,
    read_list,
    still_held,
)
from rescind.flower.silo.names import NOT_HERE, USER, Numbering, key_of, table_facts
from rescind.flower.silo.partition import leave_out, silo_part
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.steps import HELD
from rescind.storage.packing import Facts


class Names(NamedTuple):
    """Original ids of data, and how many users and items it has."""

    labels: Labels
    clients: int
    items: int


class Source(Protocol):
    """The source of a silo's data."""

    @property
    def own(self) -> bool:
        """Return whether it has this silo's people only, not those of all silos."""
        ...

    @property
    def imported(self) -> str:
        """Return the name of the imported table whose people ask; "" if there is none."""
        ...

    def hold(self, seed: int) -> tuple[Holdings, Labels]:
        """Read the data: the initial holdings of all clients of all silos, and their ids."""
        ...

    def block(self, number: int, seed: int) -> tuple[Arrive, Labels] | None:
        """Return the records of a block; None if the server's event contains them."""
        ...

    def names(self) -> Names:
        """Read the original ids of users and items, as the data has them now."""
        ...


@dataclass(frozen=True)
class Intake:
    """The door of a silo: all records come in here, and its list says which do not."""

    store: Store
    source: Source
    silo: int
    silos: int

    def first(self, seed: int) -> tuple[Holdings, Numbering, Facts]:
        """Read the data. Return this silo's part, without those who left in an earlier run.

        Also returns its numbering, and by which facts the server tells tables apart.
        """
        everything, labels = self.source.hold(seed)
        numbering = Numbering.of(labels, everything.clients, everything.items)
        listed = read_list(self.store.folder)
        holdings = silo_part(everything, self.silo, self.silos)
        left = listed.without_erased(holdings, numbering.users, numbering.items)
        table = table_facts(labels, everything.clients, everything.items, self.source.own)
        return left, numbering, table

    def block(self, number: int, seed: int) -> tuple[Arrive, Numbering] | None:
        """Return this silo's part of a block of its data, and how that is numbered."""
        found = self.source.block(number, seed)
        if found is None:
            return None
        block, labels = found
        numbering = Numbering.of(labels, block.clients, block.items)
        return self.own_part(block, numbering), numbering

    def own_part(self, block: Arrive, numbering: Numbering) -> Arrive:
        """Return a block with the records of this silo's clients only, and nothing forgotten."""
        listed = read_list(self.store.folder)
        mine = block.records.client % self.silos == self.silo
        own = replace(block, records=block.records[mine], split=block.split[mine])
        return listed.left_of_block(own, numbering.users, numbering.items)

    def arriving(self, moment: int, event: Arrive, now: int, seed: int) -> tuple[Arrive, str]:
        """Return a block that arrives after a saved state, and the name of its numbering.

        now: the block of the saved state
        """
        before = self.numbering(moment)
        found = self.block(now + 1, seed)
        if found is None:  # the server's event has the records
            numbering = before.with_room(event.clients, event.items)
            return self.own_part(event, numbering), self.store.save_numbering(numbering)
        block, numbering = found
        if not numbering.continues(before):
            raise DataError(
                f"the data of silo {self.silo} has changed since this run began, and with it who "
                f"has which number. Start the run again, without --resume."
            )
        return block, self.store.save_numbering(numbering)

    def numbering(self, moment: int) -> Numbering:
        """Return what the numbers of a saved state stand for."""
        return self.store.numbering(self.store.numbering_of(moment))

    def find(self, request: Letter) -> Letter:
        """Reply with what a request means to this silo; if it is about others', with a number.

        rank: 2 if the person is on this silo; 1 if this is all that is left of them; else 0
        """
        moments, holdings = request.facts.get("held"), None
        if moments:
            there = [moment for moment in moments if self.store.has(HELD, moment)]
            moment = (there or moments)[0]
            holdings, numbering = self.store.held(moment), self.numbering(moment)
        else:
            numbering = Numbering.of(*self.source.names())
        asked = Asked.of(request.facts)
        number, stored = numbering.user(asked.user), Rows(self.source.imported, asked)
        own = self.source.own and (number == NOT_HERE or number % self.silos == self.silo)
        if self.source.own and not own:  # others' people have no ids here, only places
            number = NOT_HERE
        at = number
        if at == NOT_HERE and holdings is not None:  # rows that came later
            at = Numbering.of(*self.source.names()).user(asked.user)
        listed = read_list(self.store.folder).has_asked(key_of(USER, asked.user))
        rank = 2 * (at % self.silos == self.silo) if at != NOT_HERE else 0
        if at == NOT_HERE and (listed or stored.items):
            rank = 2 if own else int(listed or self.silo == 0)
        facts = meaning(self.store.folder, asked, numbering, holdings, stored)
        of_rows = {"rows": stored.count, "things": len(stored.named)}
        said = {"number": number, "rank": rank, "own": self.source.own}
        return Letter({**facts, **of_rows, **said}, {})

    def purge(self, request: Letter) -> Letter:
        """List who asked, delete the rows that this machine stores, and look whether any is left.

        A table that all silos have must be the same on all, so each of them deletes and lists.
        """
        asked = Asked.of(request.facts)
        left, rows, things = 0, 0, 0
        if request.facts["at"] == self.silo or not self.source.own:
            stored, name = Rows(self.source.imported, asked), self.source.imported
            depart(self.store.folder, asked, stored.items)
            if self.source.own and name:  # other silos would leave out others of the same id
                listed = Blocklist().with_erased([asked.user] * len(stored.named), stored.named)
                leaves = asked.kind == "leave"
                (listed.with_withdrawn(asked.user) if leaves else listed).add_to(name)
            stored.delete()
            rows, things = stored.count, len(stored.named)
            left = Rows(name, asked).count + sum(
                still_held(self.store.held(moment), self.numbering(moment), asked)
                for moment in self.store.moments(HELD)
            )
        return Letter({"left": left, "rows": rows, "things": things}, {})

    def remember(self, moment: int, before: Holdings, event: Event) -> None:
        """Put records that an event removes on the silo's list, so that no later run has them.

        before: the holdings of the moment, or of one that follows from it
        """
        after, folder = leave_out(before, event), self.store.folder
        if before.graph is not None and after.graph is not None:
            add_to_list(folder, Blocklist().with_lost(before.graph, after.graph))
            return
        gone = before.records[~before.records.among(after.records)]
        numbering = self.numbering(moment)
        users = [numbering.users[client] for client in gone.client.tolist()]
        items = [numbering.items[item] for item in gone.item.tolist()]
        listed = Blocklist().with_erased(users, items)
        if isinstance(event, Withdraw) and event.client % self.silos == self.silo:
            listed = listed.with_withdrawn(numbering.users[event.client])
        if listed:
            add_to_list(folder, listed)
