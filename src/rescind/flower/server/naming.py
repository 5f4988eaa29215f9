"""Requests over silos, by original ids: read, looked up on the silos, and made into events.

The server knows users by number. Whoever sends a request names them as the data does, so each silo
that knows an id says its number. An id is sent to all silos that are there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.flower.run_request import NamedRequest, silo_names
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.remote_holdings import RemoteHoldings
from rescind.flower.server.requests import request
from rescind.flower.server.transport import SILENT
from rescind.flower.wire.payloads import holdings_named
from rescind.privacy.keys import erasure_key
from rescind.storage.packing import Facts

log = logging.getLogger(__name__)

NOTHING = "This request changed nothing."


def digest_of(one: NamedRequest) -> str:
    """Return a digest under a secret of this machine, to recognise a request that is repeated."""
    where = [] if one.silo is None else [one.silo]
    text = json.dumps([one.kind, one.user, list(one.items), *where])
    return hashlib.blake2b(text.encode(), key=erasure_key(), digest_size=32).hexdigest()


Answers = dict[str, dict[int, int]]
"""By name and silo: the number that a silo has for it, `UNKNOWN` if it does not know it."""
UNKNOWN = -1


@dataclass(frozen=True)
class Numbers:
    """The numbers of the users and items that requests name, as far as silos know them."""

    silos: int
    users: Answers
    items: Answers
    hint: str
    """Why an id may be unknown."""
    missing: Mapping[int, str] = field(default_factory=dict)
    """Why there is no answer of a silo, by silo."""

    def of(self, one: NamedRequest) -> tuple[int, list[int]]:
        """Return the numbers of the user and the items of a request.

        Raises `UnknownError` if one is unknown, or if it is not sure who or what is meant.
        """
        return self._user(one), [self._item(name) for name in one.items]

    def _user(self, one: NamedRequest) -> int:
        answers = self.users[one.user]
        found = {
            (silo, number) for silo, number in answers.items()
            if number != UNKNOWN and one.silo in (None, number % self.silos)
        }  # fmt: skip
        for silo, number in sorted(found):
            holder = number % self.silos
            if answers.get(holder, number) != number:  # another person has that number there
                raise UnknownError(
                    f"silo {silo} says that user '{one.user}' is on silo {holder}, which does not "
                    f"know them under this number: the two have different tables. {NOTHING}"
                )
        numbers = {number for _, number in found}
        if len(numbers) > 1:
            raise UnknownError(
                f"{silo_names(number % self.silos for number in numbers)} each have a user "
                f"'{one.user}'. Say whose user is meant: --at SILO. If all are the same user, give "
                f"the request once for each of these silos. {NOTHING}"
            )
        return self._only("user", one.user, numbers)

    def _item(self, name: str) -> int:
        numbers = {*self.items[name].values()} - {UNKNOWN}
        if len(numbers) > 1:
            raise UnknownError(
                f"silos have different numbers for item '{name}': they have different tables. "
                f"{NOTHING}"
            )
        return self._only("item", name, numbers)

    def _only(self, kind: str, name: str, numbers: set[int]) -> int:
        if not numbers:
            if self.missing:
                why, when = self._missing()
                raise MissingError(
                    f"{silo_names(self.missing)} {why} and may know {kind} '{name}'; no other silo "
                    f"does. Give the request again when {when}.{self.hint} {NOTHING}"
                )
            raise UnknownError(
                f"no silo knows {kind} '{name}'. Original ids are used here, as in the data: "
                f"capitals, blanks and the form of accents count.{self.hint} {NOTHING}"
            )
        return numbers.pop()

    def _missing(self) -> tuple[str, str]:
        """Return why silos are not among those that answered, and what to wait for."""
        reasons = sorted({*self.missing.values()})
        if reasons == [SILENT]:
            return "did not answer", "all have joined"
        return f"could not look up ids ({'; '.join(reasons)})", "that is mended"


class UnknownError(DataError):
    """No silo knows a user or an item, or it is not sure which one is meant."""


class MissingError(UnknownError):
    """A silo that may know a user or an item did not say: the request can be given again."""


def numbers(
    executor: FlowerExecutor, wanted: Sequence[NamedRequest], fed: Federation | None = None
) -> Numbers:
    """Ask the silos for the numbers of the users and items that requests name.

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
    replies, why = executor.line.ask(letters)
    if why and not replies:
        raise DataError(f"no silo could look up who is meant: {why[min(why)]}")
    for silo, reason in sorted(why.items()):
        log.warning("silo %d did not say who is meant: %s", silo, reason)
    late = " What was added later is not in this run." if fed else ""
    said = {silo: reply.facts for silo, reply in replies.items()}
    by_name = _by_name(users, "found_users", said), _by_name(items, "found_items", said)
    return Numbers(executor.line.silos, *by_name, late, why)


def _by_name(names: Sequence[str], place: str, said: Mapping[int, Facts]) -> Answers:
    return {
        name: {silo: int(facts[place][at]) for silo, facts in said.items()}
        for at, name in enumerate(names)
    }


def _moments(fed: Federation | None, silo: int) -> Facts:
    """Return the holdings of a run, one of which a silo has, whatever it missed.

    Letters that it missed bring along those that it missed before: only the oldest of these may
    start from what it has.
    """
    if fed is None:
        return {}
    origin, found = fed.past.origin if fed.past else None, list[int]()
    for held in (fed.now.vault.holdings, origin):
        if isinstance(held, RemoteHoldings):
            found.append(int(held.moment[silo]))
            found += [step.held for step in held.owed if step.silo == silo]
            found += [one for letter in held.missed(silo) for one in holdings_named(letter.facts)]
    return {"held": list(dict.fromkeys(found))}


def event_of(one: NamedRequest, fed: Federation, known: Numbers) -> Event:
    """Return the event of a request. Raises if an id is unknown or the user has withdrawn."""
    client, items = known.of(one)
    if client >= len(fed.world.members) or not bool(fed.world.members[client]):
        raise ConsentError(
            f"user '{one.user}' is not a member of this run: they withdrew, or have no data here. "
            f"See the receipt of the earlier request. If they were let in again since then "
            f"(rescind data admit), later rows count: train first (rescind flower run without "
            f"requests), then give this request again. It changed nothing."
        )
    if one.kind == "withdraw":
        return Withdraw(client)
    if one.kind == "erase":
        return Erase(Records.of([client] * len(items), items))
    if one.kind != "unshare":
        raise ConfigError(f"unknown request '{one.kind}'. Use unshare, erase or withdraw.")
    lent = fed.world.shared[fed.world.shared.client == client]
    if not len(lent):
        raise ConsentError(f"user '{one.user}' lends nothing now, so there is nothing to unshare.")
    return Unshare(lent)
