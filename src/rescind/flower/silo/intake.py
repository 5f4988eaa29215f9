"""What a silo takes in from its data: its own part, without what was forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive, Event, Records, Withdraw
from rescind.data.blocklist import Blocklist
from rescind.errors import ConsentError, DataError
from rescind.flower.silo.imported_rows import leave_out_of_table
from rescind.flower.silo.names import Numbering, find, table_facts
from rescind.flower.silo.partition import leave_out, silo_part
from rescind.flower.silo.storage import Store
from rescind.flower.silo.withheld import read_list
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
        if everything.graph is None:
            self._check_moved(listed, everything.records, numbering)
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
        return self.own_part(block, numbering, check=True), numbering

    def own_part(self, block: Arrive, numbering: Numbering, check: bool = False) -> Arrive:
        """Return a block with the records of this silo's clients only, and nothing forgotten."""
        listed = read_list(self.store.folder)
        if check:
            self._check_moved(listed, block.records, numbering)
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
        name = self.store.numbering_of(moment)
        if not name:
            raise DataError(
                f"silo {self.silo} saved this run with an earlier version, and its data was "
                f"numbered anew since: who is meant is not known. Train again (rescind flower run "
                f"without requests), then repeat the request."
            )
        return self.store.numbering(name)

    def find(self, request: Letter) -> Letter:
        """Reply with the numbers of original ids: in a run, or else in the data of now."""
        moments = request.facts.get("held")
        # Others' people have no ids in a table of own people, only places.
        place = (self.silo, self.silos) if self.source.own else (0, 1)
        if not moments:
            return find(Numbering.of(*self.source.names()), request, *place)
        there = [moment for moment in moments if self.store.has(HELD, moment)]
        if not there:
            self.store.held(moments[0])  # raises: the run's data was removed
        return find(self.numbering(there[0]), request, *place)

    def remember(self, moment: int, before: Holdings, event: Event) -> None:
        """Put records that an event removes on the silo's list, so that no later run has them.

        Those of an imported table are told about, once: the machine still has their rows.

        before: the holdings of the moment, or of one that follows from it
        """
        after, folder = leave_out(before, event), self.store.folder
        if before.graph is not None and after.graph is not None:
            read_list(folder).with_lost(before.graph, after.graph).write(folder)
            return
        gone = before.records[~before.records.among(after.records)]
        leaves = isinstance(event, Withdraw) and event.client % self.silos == self.silo
        if not (len(gone) or leaves):  # whoever leaves may have nothing any more
            return
        numbering = self.numbering(moment)
        users = [numbering.users[client] for client in gone.client.tolist()]
        items = [numbering.items[item] for item in gone.item.tolist()]
        known = read_list(folder)
        listed = known.with_erased(users, items)
        if isinstance(event, Withdraw):
            listed = listed.with_withdrawn(numbering.users[event.client])
        if listed == known:  # a request comes here more than once
            return
        if name := self.source.imported:
            pairs = list(zip(users, items, strict=True))
            leave_out_of_table(name, self.source.own, pairs, isinstance(event, Withdraw))
        listed.write(folder)  # last: after a kill before it, the rows are told about again

    def _check_moved(self, listed: Blocklist, records: Records, numbering: Numbering) -> None:
        """Refuse data in which people on this silo's list have numbers of other silos.

        Those silos would learn them: they do not know who left here.
        """
        gone = listed.listed(records, numbering.users, numbering.items)
        moved: Tensor = gone & (records.client.cpu() % self.silos != self.silo)
        if not bool(moved.any()):
            return
        people = len(torch.unique(records.client.cpu()[moved]))
        raise ConsentError(
            f"{people} of those who withdrew or erased rows on silo {self.silo} would now be on "
            f"another silo, because the data was numbered anew (core, min_user or blocks) and "
            f"users go to silos by number. Delete their rows on each machine that has this data "
            f"(rescind data erase NAME --user ID, of single rows with --item), then run again. "
            f"Nothing was trained."
        )
