"""How a request is told: the status object of the Data Rights Protocol, its receipt and proof."""

from __future__ import annotations

import asyncio
import hashlib
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rescind.ledger import agency
from rescind.ledger.batch import Answer
from rescind.ledger.cosigned import Covering
from rescind.ledger.reading import OPEN
from rescind.service import problems
from rescind.service.answers import moment
from rescind.service.problems import Problem

if TYPE_CHECKING:
    from rescind.service.context import Service

LOOK_SECONDS = 0.2
STEPS = ("hidden", "erased", "summed", "served", "issued")
WRITING = "What is served is made without it. Its receipt is being written: look again in a moment."
NO_RECEIPT = (
    "No receipt can be issued any more: its key is gone. It was destroyed when the receipt was "
    "issued, and after that this service went back to a backup; or all its keys were lost."
)
_DETAILS = {
    agency.OPEN: "It has arrived and will be looked at now.",
    agency.FULFILLED: "Done: what is served is made without it.",
    agency.REVOKED: "It was taken back before anything was done.",
    agency.DENIED: "Nobody confirmed it in time, so nothing was done.",
    agency.EXPIRED: "It ended before anything was done.",
}


def details(service: Service, row: Any) -> str:
    """Return one or two sentences: what was done, and what comes next and when."""
    if row.reason == agency.NEED_USER_VERIFICATION:
        return "It waits for the person's own confirmation with a passkey, for 14 days."
    if row.kind == agency.ACCESS and row.status == agency.FULFILLED:
        return "The link leads to everything that is lent."
    more = f" {NO_RECEIPT}" if receipt_impossible(row) else ""
    if row.status != agency.IN_PROGRESS:
        return _DETAILS[row.status] + more
    if being_written(service, row):
        return WRITING if not more else _DETAILS[agency.FULFILLED] + more
    text = f"Unreadable here and out of the sum. {next_release(service)}{more}"
    return f"{text} It takes longer: {why}" if (why := delay(service, row)) else text


def delay(service: Service, row: Any) -> str | None:
    """Return the reason that the operator gave for needing more time, while it is needed."""
    if row.reason == agency.NEED_USER_VERIFICATION or row.status != agency.IN_PROGRESS:
        return None
    return None if being_written(service, row) else row.reason


def next_release(service: Service) -> str:
    if service.ledger.releases.noising.spent:
        return "No release comes any more: the privacy budget of this service is spent."
    due = service.ledger.releases.due()
    waits = due.earliest is not None and service.ledger.clock() < due.earliest
    more = "it comes" if waits else "it is being made"
    if due.people_left:
        more = f"{due.people_left} more people"
    more += f", at the earliest {moment(due.earliest)}" * waits
    latest = f", at the latest {moment(due.at)}" if due.at else ""
    return f"Served without it from the next release on: {more}{latest}."


def status_of(service: Service, row: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "request_id": row.id,
        "status": row.status,
        "received_at": moment(row.received_at),
        "expected_by": moment(row.expected_by),
        "processing_details": details(service, row),
    }
    if row.status == agency.DENIED or row.reason == agency.NEED_USER_VERIFICATION:
        body["reason"] = row.reason
    return body


def for_agent(service: Service, row: Any) -> dict[str, Any]:
    """Return what its agent is told: where the person confirms, and where results are."""
    body, origin = status_of(service, row), service.settings.origin
    if row.reason == agency.NEED_USER_VERIFICATION:
        body["user_verification_url"] = f"{origin}/#confirm={row.id}"
        body["expires_at"] = moment(row.received_at + agency.PATIENCE)
    if row.kind == agency.ACCESS and row.status == agency.FULFILLED and row.link:
        token, _ = agency.access_link(service.ledger.keyed, row.id)
        body["results_url"] = f"{origin}/r/{as_text(token)}/export"
        body["expires_at"] = moment(row.link_until)
    return body


def for_person(service: Service, row: Any) -> dict[str, Any]:
    """Return everything about a request but its records."""
    return {
        **status_of(service, row),
        "kind": row.kind,
        "n": row.n,
        "level": row.level,
        **_served(service, row),
        "leaf": row.leaf,
        "delay": delay(service, row),
        "receipt": row.receipt is not None,
    }


def _served(service: Service, row: Any) -> dict[str, Any]:
    """Return the steps that are done and the release without it, also while its receipt is made."""
    if being_written(service, row) and (now := service.ledger.releases.current) is not None:
        return {"steps": {**_steps(row), "served": moment(now.at)}, "release": now.number}
    return {"steps": _steps(row), "release": row.release}


def being_written(service: Service, row: Any) -> bool:
    """Return whether a request is in what is served, and only its receipt is missing."""
    return row.status == agency.IN_PROGRESS and service.ledger.releases.fulfils(row.seq)


def receipt_impossible(row: Any) -> bool:
    """Return whether a request is done, or will be, without a receipt: the key of it is gone."""
    if row.status == agency.FULFILLED:
        return row.receipt is None and row.kind != agency.ACCESS
    return row.receipt_key is not None and row.receipt_slot is None  # a start saw that it is gone


def _steps(row: Any) -> dict[str, str]:
    steps = {name: moment(getattr(row, f"{name}_at")) for name in STEPS}
    return {name: at for name, at in steps.items() if at}


def completed(service: Service, answer: Answer) -> Answer:
    """Add what comes next to a take-back's answer; 200 if nothing does (instant form).

    The ledger recorded the answer before anything was erased. Sent again, it says how far the
    request is by now.
    """
    if answer.replayed or service.ledger.options.instant:
        row = service.ledger.reading.request(answer.body["request_id"])
    else:
        row = _answered(answer)
    done = row.status == agency.FULFILLED
    body = {**answer.body, **status_of(service, row), "level": row.level, "steps": _steps(row)}
    if "acknowledgement" in body:
        more: dict[str, Any] = {"checkpoint": service.log.read_checkpoint()}
        if answer.items is not None:
            more["items"] = service.ledger.catalogue.names_of(answer.items)
        body["acknowledgement"] = {**body["acknowledgement"], **more}
    return replace(answer, status=200 if done else answer.status, body=body)


def _answered(answer: Answer) -> Any:
    """Return a request as its answer states it: no query needed."""
    body = answer.body
    steps = {name: body["steps"].get(name) for name in STEPS}
    return SimpleNamespace(
        **{f"{name}_at": at and datetime.fromisoformat(at) for name, at in steps.items()},
        id=body["request_id"],
        seq=None,  # no release has it yet
        status=body["status"],
        reason=None,
        receipt=None,
        receipt_key=None,  # it is there, but nobody needs it here
        kind=body["kind"],
        level=body["level"],
        received_at=datetime.fromisoformat(body["received_at"]),
        expected_by=datetime.fromisoformat(body["expected_by"]),
    )


def for_operator(service: Service, row: Any) -> dict[str, Any]:
    """Return counts and times: what an operator sees of a request. No level before the erasure."""
    return {
        "request_id": row.id,
        "kind": row.kind,
        "n": row.n,
        "status": row.status,
        "reason": row.reason,
        "level": row.level if row.erased_at else None,
        "received_at": moment(row.received_at),
        "expected_by": moment(row.expected_by),
        "by_agent": row.agent is not None,
        "release": _served(service, row)["release"],
    }


def as_text(token: bytes) -> str:
    return urlsafe_b64encode(token).decode().rstrip("=")


def linked(service: Service, text: str) -> Any:
    """Return the request that a link leads to, or say that there is nothing."""
    try:
        token = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise problems.named("not-found") from None
    row = service.ledger.reading.linked_request(hashlib.sha256(token).digest())
    if row.link_until is None or row.link_until < service.ledger.clock():
        raise problems.named("not-found")
    return row


def receipt(service: Service, row: Any) -> Response:
    if row.receipt is None:
        raise _not_there(service, row)
    return Response(bytes(row.receipt), media_type="application/json")


async def proof(service: Service, row: Any) -> Response:
    """Return the proof that the log holds the receipt, and say how many witnesses signed it."""
    if row.receipt is None or row.receipt_leaf is None:
        raise _not_there(service, row)
    under = await covering(service, row.receipt_leaf)
    headers = {"Rescind-Cosigned": f"{len(under.signed)} of {under.of}"}
    text = await run_in_threadpool(service.log.proof, row.receipt_leaf, under)
    return Response(text, headers=headers, media_type="text/plain; charset=utf-8")


def _not_there(service: Service, row: Any) -> Problem:
    """Say why there is no receipt: it comes, it cannot come, or none belongs to the request."""
    if receipt_impossible(row):
        ask = "Use the receipt that was issued before, or ask the operator for it."
        return Problem(404, f"This request is {row.status}. {NO_RECEIPT}", ask, kind="no-receipt")
    look = "Read its status: it says what was done, and what comes when."
    if row.status not in OPEN:
        text = f"This request is {row.status}: no receipt belongs to it."
        return Problem(404, text, look, kind="no-receipt")
    if being_written(service, row):
        return Problem(404, "Its receipt is being written.", "Ask in a moment.", kind="not-yet")
    text = f"This request is {row.status}: its receipt is not issued yet."
    return Problem(404, text, look, kind="not-yet")


async def covering(service: Service, leaf: int) -> Covering:
    """Return a checkpoint over a leaf; wait some seconds for all witnesses to sign it."""
    known, end = service.log.witnesses, time.monotonic() + service.ledger.options.cosign_wait
    while True:
        found = known.covering(leaf)
        if found.complete or time.monotonic() >= end or service.ending:
            return found
        await asyncio.to_thread(known.ask)
        await asyncio.sleep(LOOK_SECONDS)
