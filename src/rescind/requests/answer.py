"""Answer a request: seven steps, each of which can be begun again after a kill.

    asked    what it means is decided, by one table (`judged`)
    hidden   the departure is written: no load, run or silo sees the rows from now on
    unlearnt every model that has them forgets, and is audited as far as asked
    purged   every holder deletes the rest
    checked  every holder is read again: nothing is there
    signed   one receipt over all that happened
    logged   it is in the log, and its papers are ready to be sent

Audits belong to `unlearnt`, because an audit that fails decides which model is taken over.
`checked` is the control of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rescind.core.files import locked
from rescind.data.blocklist import Blocklist
from rescind.errors import DataError
from rescind.home import Ledger, Refused, Request
from rescind.home.ledger import PATIENCE
from rescind.home.request import (
    ALREADY_GONE,
    ERASED,
    REFUSED,
    REPEATED,
    ROWS_ONLY,
    WAITING,
)  # fmt: skip
from rescind.requests.copies import holders
from rescind.requests.holders import CannotForget, Holder, Progress, named
from rescind.requests.papers import write_papers
from rescind.requests.signing import log_receipt, signed_receipt

State = dict[str, dict[str, Any]]
"""What the steps so far noted, by step."""


@dataclass(frozen=True)
class Judgement:
    """What a request comes to, before anything is done."""

    outcome: str
    receipt: str = ""
    """Of REPEATED: the digest of the earlier receipt."""
    departs: bool = False
    """Of ALREADY_GONE: whether they leave from now on."""


def answer(ledger: Ledger, name: str, progress: Progress = lambda _: None) -> Request:
    """Answer a request; after a crash, call it again. A refusal is an outcome, not an error."""
    with locked(ledger.file.parent, PATIENCE):
        request = ledger.request(name)
        if not request.open or not request.records:  # the latter: a file that cannot be read
            return request
        if any(copy.kind == "silos" for copy in ledger.copies(request.dataset)):
            return ledger.end(request, WAITING, reason="Silos answer it: rescind flower run.")
        try:
            return _answered(ledger, request, progress)
        except Refused as refused:
            if ledger.steps(request):
                raise
            return ledger.end(request, REFUSED, code=refused.code, reason=str(refused))


def _answered(ledger: Ledger, request: Request, progress: Progress) -> Request:
    state = ledger.steps(request)
    if "asked" not in state:
        judgement = judged(ledger, request)
        if judgement.outcome in (REPEATED, ALREADY_GONE):
            if judgement.departs:
                _leaves(request)
            return ledger.end(request, judgement.outcome, judgement.receipt)
        ledger.done(request, "asked", {"outcome": judgement.outcome})
        state = ledger.steps(request)
    for step in STEPS:
        if step.__name__ not in state:
            ledger.done(request, step.__name__, step(ledger, request, state, progress))
            state = ledger.steps(request)
    return ledger.end(request, state["asked"]["outcome"], state["signed"]["receipt"])


def judged(ledger: Ledger, request: Request) -> Judgement:
    """Return what a request means for people as they stand: one row of the table each.

    A person is unknown, present, emptied, away or back. Who asks with others asks for all.
    """
    having = holders(ledger, request)
    if request.kind in ("nodes", "edges", "labels"):
        for holder in having:
            holder.event(request)
        if not having:
            raise Refused("unknown-data", f"there is no run of '{request.dataset}' any more.")
        return Judgement(ERASED)
    held = [(holder, holder.held(request)) for holder in having]
    each = []
    for user in request.records:
        has = frozenset[str]().union(*(of.get(user, frozenset()) for _, of in held))
        learnt = any(holder.model and user in of for holder, of in held)
        each.append(judged_one(ledger, request, user, has, learnt))
    doing = [one for one in each if one.outcome == ERASED]
    if not doing:
        return each[0]
    learnt = any(holder.model and holder.has(request) for holder in having)
    return Judgement(ERASED if learnt else ROWS_ONLY)


def judged_one(
    ledger: Ledger, request: Request, user: str, has: frozenset[str], learnt: bool
) -> Judgement:
    """Return what a request means for one person. has: items of theirs    learnt: by a model"""
    listed = Blocklist.of_dataset(request.dataset, ledger.file.parent)
    away, known = listed.has_withdrawn(user), listed.has_asked(user)
    if not (known or has or learnt):
        raise Refused("unknown-person", f"'{request.dataset}' has no user '{user}'.")
    asked = request.records[user]
    if request.kind == "unshare":
        if away:
            raise Refused("has-left", f"'{user}' has left '{request.dataset}'.")
        if not (has if asked is None else has & {*asked}):
            raise Refused("nothing-lent", f"'{user}' lends nothing that the request names.")
    if asked is not None:
        return _judged_items(ledger, request, user, has)
    if request.kind == "leave":
        if away and not (has or learnt):
            return repeated(ledger, request, user)
        return Judgement(ERASED) if has or learnt else Judgement(ALREADY_GONE, departs=True)
    if has:
        return Judgement(ERASED)
    returned = ledger.readmitted(request.dataset, listed.digest_of(user))
    if away or not returned:
        return repeated(ledger, request, user)
    return Judgement(ALREADY_GONE)


def _judged_items(ledger: Ledger, request: Request, user: str, has: frozenset[str]) -> Judgement:
    asked = request.records[user] or ()
    if missing := sorted({*asked} - has):
        listed = Blocklist.of_dataset(request.dataset, ledger.file.parent)
        if len(missing) == len({*asked}) and all(listed.has_erased(user, i) for i in missing):
            return repeated(ledger, request, user)
        raise Refused("not-held", f"'{user}' has no '{missing[0]}' in '{request.dataset}'.")
    return Judgement(ERASED)


def repeated(ledger: Ledger, request: Request, user: str) -> Judgement:
    """Name the receipt of the last answer that deleted something of theirs."""
    earlier = (one.receipt for one in ledger.answers_about(request.dataset, user) if one.receipt)
    return Judgement(REPEATED, next(earlier, ""))


def _leaves(request: Request) -> None:
    for user in request.records:
        Blocklist().with_withdrawn(user).add_to(request.dataset)


def hidden(ledger: Ledger, request: Request, _state: State, _progress: Progress) -> dict[str, Any]:
    """Write the departure. An unshared record departs from loans alone (`Run.unlearn` lists it)."""
    if request.kind in ("leave", "erase"):
        listed = Blocklist()
        for holder in holders(ledger, request):
            for user, items in holder.held(request).items():
                pairs = sorted(named(request, user, items))
                listed = listed.with_erased([user] * len(pairs), pairs)
        for user in request.records if request.kind == "leave" else ():
            listed = listed.with_withdrawn(user)
        listed.add_to(request.dataset)
    return {}


def unlearnt(ledger: Ledger, request: Request, state: State, progress: Progress) -> dict[str, Any]:
    """Let every model forget that has something of the request; note what the receipt needs."""
    made = {}
    for holder in holders(ledger, request):
        before = state.get(f"unlearnt {holder.copy.id}")
        if holder.has(request):
            made[holder.copy.id] = _forgotten(ledger, request, holder, progress)
        elif before is not None:
            holder.finish(before)
            made[holder.copy.id] = before
    return {"of": made}


def _forgotten(
    ledger: Ledger, request: Request, holder: Holder, progress: Progress
) -> dict[str, Any]:
    """Let one holder forget. A model that cannot is deleted, unless somebody tries it out."""
    name = f"unlearnt {holder.copy.id}"
    try:
        known = holder.unlearn(ledger, request, progress)
    except CannotForget as error:
        if request.options.get("method") or request.dataset.startswith("run:"):
            raise
        known = {"deleted": str(error)}
        ledger.done(request, name, known)
        holder.delete()
        ledger.unregister(holder.copy.id)
    if not holder.model:
        ledger.done(request, name, known)
    return known


def purged(ledger: Ledger, request: Request, state: State, _progress: Progress) -> dict[str, Any]:
    """Let every holder delete what else it has."""
    concerned = state["unlearnt"]["of"]
    for holder in holders(ledger, request):
        if holder.copy.id in concerned:
            holder.purge(request)
    if request.kind == "unshare":
        found = {one for facts in concerned.values() for one in facts.get("unshared", ())}
        people = {Blocklist().digest_of(user) for user in request.records}
        ledger.depart(request.dataset, {"unshared": found, "people": people})
    return {}


def checked(ledger: Ledger, request: Request, _state: State, _progress: Progress) -> dict[str, Any]:
    """Read every holder again; raise if one still has something."""
    for holder in holders(ledger, request):
        if holder.has(request):
            raise DataError(
                f"{holder.copy.address} still has records of request {request.id} after it was "
                f"answered, so there is no receipt. Give the same command again."
            )
    return {}


def signed(ledger: Ledger, request: Request, state: State, _progress: Progress) -> dict[str, Any]:
    """Sign the one receipt; killed before it is noted, the same receipt is found again."""
    body = ledger.receipt_of(request) or signed_receipt(ledger, request, state)
    return {"receipt": ledger.keep_receipt(request, body)}


def logged(ledger: Ledger, request: Request, state: State, _progress: Progress) -> dict[str, Any]:
    """Put the receipt into the log, and write the papers that are sent."""
    body, _ = ledger.receipt(state["signed"]["receipt"])
    proof = log_receipt(body)
    ledger.keep_receipt(request, body, proof)
    write_papers(request, body, proof, state)
    return {}


Step = Callable[[Ledger, Request, State, Progress], dict[str, Any]]
STEPS: tuple[Step, ...] = (hidden, unlearnt, purged, checked, signed, logged)
"""After `asked`, which is done by the judgement itself."""


def readmit(ledger: Ledger, dataset: str, user: str) -> None:
    """Let somebody in again who left; what they had before stays away."""
    listed = Blocklist.of_dataset(dataset)
    if not (listed.has_asked(user) or _is_present(ledger, dataset, user)):
        raise Refused("unknown-person", f"'{dataset}' has no user '{user}'.")
    if not ledger.readmit(dataset, listed.digest_of(user)):
        raise Refused("has-not-left", f"'{user}' has not left '{dataset}'.")


def _is_present(ledger: Ledger, dataset: str, user: str) -> bool:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    look = Request("", dataset, "leave", {user: None}, now, now)
    return any(holder.has(look) for holder in holders(ledger, look))


__all__ = ["STEPS", "WAITING", "answer", "judged", "readmit"]
