"""Requests over silos, by original ids: looked up on the silos, and made into events.

The server knows users by number. Whoever asks is named as the data does, so each silo says what it
knows of an id. An id is sent to all silos that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.labels import Labels
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.errors import DataError
from rescind.flower.run_request import silo_names
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.remote_holdings import RemoteHoldings
from rescind.flower.server.requests import request as letter
from rescind.flower.wire.payloads import holdings_named
from rescind.home import Refused, Request
from rescind.home.request import ERASED
from rescind.storage.packing import Facts

UNKNOWN = -1
SILO = "silo"
"""The option of a request that says on which silo the person is."""
REASONS = {
    "unknown-person": "no silo has a person '{user}' in its data.",
    "has-left": "'{user}' has left.",
    "nothing-lent": "'{user}' lends nothing that the request names.",
    "not-held": "'{user}' has no '{item}'.",
}


class AwayError(DataError):
    """A silo that may have the person did not say: the request waits for it."""


@dataclass(frozen=True)
class Found:
    """What silos say of a request."""

    outcome: str
    silo: int
    """On which the person is."""
    client: int = UNKNOWN
    items: Mapping[str, int] = field(default_factory=dict)
    """The numbers of the items that were learnt, by original id."""
    rows: int = 0
    """Rows that its machine stores of what is named."""
    things: int = 0
    """How many items these are."""

    @property
    def stored(self) -> dict[str, Any]:
        """Return the rows as `requests.signing` reads them."""
        return {"rows": self.rows, "items": self.things, "before": ""}


def asked_facts(request: Request) -> Facts:
    """Return a request as silos read it."""
    if request.kind not in ("leave", "erase", "unshare") or len(request.records) != 1:
        raise Refused("kind", "over silos one user asks to leave, to erase or to unshare.")
    ((user, items),) = request.records.items()
    if request.kind == "erase" and not items:
        raise Refused("items", "over silos an erasure names its items: --item.")
    return {"kind": request.kind, "user": user, "items": [*(items or ())]}


def look_up(executor: FlowerExecutor, request: Request, fed: Federation | None = None) -> Found:
    """Ask the silos what a request means. Raises `Refused` or `AwayError`.

    fed: the run that is asked about, whose numbers may not be those of the data of now; None
    before it is trained
    """
    asked = asked_facts(request)
    letters = {
        silo: letter(executor.run, "find", Clock(0), {**asked, **_moments(fed, silo)})
        for silo in range(executor.line.silos)
    }
    replies, why = executor.line.ask(letters, needed=False)
    at = request.options.get(SILO)
    said = {silo: reply.facts for silo, reply in replies.items() if at in (None, silo)}
    why = {silo: reason for silo, reason in why.items() if at in (None, silo)}
    best = max((facts["rank"] for facts in said.values()), default=0)
    having = [silo for silo, facts in said.items() if best and facts["rank"] == best]
    if len(having) > 1 and (best > 1 or said[having[0]]["own"]):
        raise Refused(
            "ambiguous", f"{silo_names(having)} each have a '{asked['user']}': --at SILO."
        )
    numbers = {facts["number"] for facts in said.values() if not facts["own"]} - {UNKNOWN}
    if len(numbers) > 1:
        raise Refused("other-tables", "silos have different numbers for this user.")
    if not having:
        return _of_others(request, said, why, fed, executor.line.silos)
    return _found(asked, having[0], said[having[0]])


def _found(asked: Facts, silo: int, facts: Facts) -> Found:
    if code := facts["code"]:
        item = asked["items"][facts["missing"]] if facts["missing"] != UNKNOWN else ""
        raise Refused(code, REASONS[code].format(user=asked["user"], item=item))
    numbered = zip(asked["items"], facts["numbers"], facts["learnt"], strict=True)
    items = {item: number for item, number, learnt in numbered if learnt}
    return Found(facts["outcome"], silo, facts["number"], items, facts["rows"], facts["things"])


def _of_others(
    request: Request,
    said: Mapping[int, Facts],
    why: Mapping[int, str],
    fed: Federation | None,
    silos: int,
) -> Found:
    """Return what others say of a person whose silo is away: a number, if all have one table."""
    for facts in said.values():
        client = int(facts["number"])
        away = client != UNKNOWN and client % silos in why
        if away and fed is not None and client < len(fed.world.members):
            if UNKNOWN in facts["numbers"] or not bool(fed.world.members[client]):
                break
            named = asked_facts(request)["items"]
            items = dict(zip(named, facts["numbers"], strict=True))
            return Found(ERASED, client % silos, client, items)
    if why:
        reasons = "; ".join(sorted({*why.values()}))
        raise AwayError(f"{silo_names(why)} may have this user and did not say ({reasons}).")
    (user,) = request.records
    raise Refused("unknown-person", REASONS["unknown-person"].format(user=user))


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


def event_of(request: Request, found: Found, fed: Federation) -> Event:
    """Return the event of a request, in the numbers of a run."""
    if request.kind == "leave":
        return Withdraw(found.client)
    if request.kind == "erase":
        return Erase(Records.of([found.client] * len(found.items), [*found.items.values()]))
    lent = fed.world.shared[fed.world.shared.client == found.client]
    if not len(lent):
        (user,) = request.records
        raise Refused("nothing-lent", REASONS["nothing-lent"].format(user=user))
    return Unshare(lent)


def labels_of(request: Request, found: Found, items: int) -> Labels:
    """Return the original ids that a request names, by number; "#" and the number of others.

    items: how many the run has
    """
    (user,) = request.records
    named = {number: item for item, number in found.items.items()}
    users = (*(f"#{n}" for n in range(found.client)), user)
    return Labels(users, tuple(named.get(n, f"#{n}") for n in range(items)))
