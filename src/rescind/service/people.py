"""A person's own routes: lend, take back, look, export."""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rescind.ledger import accounts, agency, lending
from rescind.ledger.batch import Items
from rescind.ledger.contributing import Contribute
from rescind.ledger.contributing import Part as SentPart
from rescind.ledger.errors import NotThere
from rescind.service import (
    bodies,
    plainly,
    problems,
    recommending,
    recovery,
    statuses,
)
from rescind.service.answers import for_spreadsheets, moment, reply, told
from rescind.service.callers import Caller, new_secret
from rescind.service.context import Service
from rescind.service.doors import (
    Doors,
    Part,
    TheCaller,
    TheOnce,
    ThePart,
    TheService,
    once,
    parts_of,
)
from rescind.service.events import OPERATORS, Listening
from rescind.service.plainly import Change
from rescind.service.policy import Role
from rescind.service.problems import Problem

router = Doors()
CODE_DAYS = 7


@router.at("GET /v1/catalogue", bodies.Page, more={304: {"description": "Not changed."}})
async def catalogue(
    request: Request, service: TheService, part: Annotated[Part, parts_of(5_000)]
) -> Response:
    """List the items that people may lend."""
    items = service.ledger.catalogue
    tag = f'"{items.digest[7:23]}-{part.first}-{part.size}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    last = min(part.last, len(items))
    rows = [{"id": items.ids[n], "title": items.titles[n]} for n in range(part.first, last)]
    body = {"items": rows, "next": str(last) if last < len(items) else None, "total": len(items)}
    return reply(body, headers=headers)


@router.at("GET /v1/me", bodies.Anything)
def me(service: TheService, caller: TheCaller) -> Response:
    """Tell counts and dates of your account, and how this service treats changes.

    `name` keeps apart what one browser holds of several people; it finds nobody here.
    """
    found = service.ledger.reading.me(caller.id)
    found["created"] = moment(found["created"])
    found["confirmed"] = caller.confirmed
    found["name"] = hashlib.sha256(b"browser" + caller.id).hexdigest()[:16]
    return reply({**found, "service": service.facts()})


@router.at("GET /v1/me/loans", bodies.Page)
def loans(
    service: TheService, caller: TheCaller, part: Annotated[Part, parts_of(1_000)]
) -> Response:
    """List what you lend. Send its ETag as If-Match with a change to notice another tab."""
    version, mine = service.ledger.reading.versioned_loans(caller.id)
    shown = named(service, mine[part.first : part.last])
    body = {"items": shown, "next": str(part.last) if len(mine) > part.last else None}
    return reply({**body, "total": len(mine)}, headers={"ETag": f'"{version}"'})


def named(service: Service, items: Items) -> list[dict[str, str]]:
    names = service.ledger.catalogue
    return [{"id": names.ids[n], "title": names.titles[n]} for n in items.tolist()]


@router.at("GET /v1/me/export", bodies.Anything, more={200: {"content": {"text/csv": {}}}})
def export(
    service: TheService,
    caller: TheCaller,
    form: Annotated[Literal["json", "csv"], Query()] = "json",
) -> Response:
    """Hand over everything that is kept about you."""
    return exported(service, caller.id, form)


def exported(service: Service, person: bytes, form: str = "json") -> Response:
    found = service.ledger.reading.export(person)
    name = {"Content-Disposition": f'attachment; filename="rescind.{form}"'}
    if form == "csv":
        out = io.StringIO()
        table = csv.DictWriter(out, ("id", "title"))
        table.writeheader()
        table.writerows(map(for_spreadsheets, found.items))
        return Response(out.getvalue(), headers=name, media_type="text/csv; charset=utf-8")
    history = [
        {"seq": one.seq, "at": moment(one.at), "kind": one.kind, "n": one.n, "leaf": one.leaf}
        for one in found.history
    ]
    body = {
        "account": {**found.account, "created": moment(found.account["created"])},
        "loans": found.items,
        "contribution": found.kept,
        "requests": [statuses.for_person(service, row) for row in found.requests],
        "history": history,
    }
    return reply(body, headers=name)


async def _lend(request: Request, service: Service, caller: Caller, asked: Change) -> Response:
    places = service.ledger.catalogue.indices_of(asked.items or ())
    operation = lending.Lend(caller.id, tuple(places.tolist()), _version(asked.if_match))
    answer = await service.submit(operation, await once(request, asked.key))
    service.changed(caller.id, "loans", answer)
    return told(answer, _tag(answer.body))


async def _lend_plainly(request: Request, service: Service, caller: Caller) -> Response | None:
    asked = await plainly.lending(request)
    return None if asked is None else await _lend(request, service, caller, asked)


@router.at(
    "POST /v1/me/loans",
    bodies.Acknowledgement,
    201,
    more={200: {"description": "As it was."}},
    plainly=_lend_plainly,
)
async def lend(
    request: Request,
    body: bodies.Lend,
    key: bodies.IdempotencyKey,
    service: TheService,
    caller: TheCaller,
    if_match: bodies.IfMatch = None,
) -> Response:
    """Lend items, in addition to those lent already."""
    return await _lend(request, service, caller, Change(key, body.items, if_match))


async def _take(request: Request, service: Service, caller: Caller, asked: Change) -> Response:
    if (asked.items is None or asked.kind == "leave") and not caller.confirmed:
        raise problems.named("confirm-first")
    given = None if asked.items is None else service.ledger.catalogue.indices_of(asked.items)
    places = None if given is None else tuple(given.tolist())
    secret = bytes.fromhex(asked.receipt_key) if asked.receipt_key else None
    version = _version(asked.if_match)
    operation = lending.TakeBack(caller.id, asked.kind, places, secret, version)
    answer = await service.submit(operation, await once(request, asked.key))
    if places is not None:  # a recorded answer names no items
        answer = replace(answer, items=places)
    return await _taken_back(service, caller, answer)


async def _take_plainly(request: Request, service: Service, caller: Caller) -> Response | None:
    asked = await plainly.taking_back(request)
    return None if asked is None else await _take(request, service, caller, asked)


@router.at(
    "POST /v1/me/requests",
    bodies.Status,
    202,
    more={200: {"description": "Done at once."}},
    plainly=_take_plainly,
)
async def take_back(
    request: Request,
    body: bodies.TakeBack,
    key: bodies.IdempotencyKey,
    service: TheService,
    caller: TheCaller,
    if_match: bodies.IfMatch = None,
) -> Response:
    """Take items back: unreadable and out of the sum with the answer."""
    if body.items is None and body.kind != "leave":  # a forgotten field is not the largest wish
        raise problems.named("items-missing")
    items = body.items if isinstance(body.items, list) else None
    asked = Change(key, items, if_match, body.kind, body.receipt_key)
    return await _take(request, service, caller, asked)


async def _taken_back(service: Service, caller: Caller, answer: Any) -> Response:
    if answer.body.get("kind") == "leave":
        service.callers.drop(person=caller.id)
    service.probing.forget(caller.id, left=answer.body.get("kind") == "leave")
    service.changed(caller.id, "request", answer)
    if answer.body.get("kind") in lending.KINDS:
        releases, at_once = service.ledger.releases, None
        if not answer.replayed:
            at_once = releases.at_once(answer.body["acknowledgement"]["seq"])
        if at_once is not None:
            await service.submit(at_once)
        if at_once is None and not answer.replayed:  # nothing to wait for
            answer = statuses.completed(service, answer)
        else:
            answer = await run_in_threadpool(statuses.completed, service, answer)
    return told(answer, _tag(answer.body))


def _version(tag: str | None) -> int | None:
    if tag is None or tag == "*":
        return None
    text = tag.removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise Problem(412, "If-Match is not a version of your loans.", "Read the loans again.")
    return int(text)


def _tag(body: Any) -> dict[str, str]:
    return {"ETag": f'"{body["version"]}"'} if "version" in body else {}


@router.at("GET /v1/me/requests", bodies.Page)
def requests(service: TheService, caller: TheCaller, part: ThePart) -> Response:
    """List your requests, the newest first."""
    rows = service.ledger.reading.requests(caller.id)
    shown = [statuses.for_person(service, row) for row in rows[part.first : part.last + 1]]
    return part.reply("requests", shown, total=len(rows))


def _own(service: Service, caller: Caller, name: str, waiting: bool = False) -> Any:
    """Return a request of the caller.

    waiting: or one that waits for the word of whoever got its address, which nobody can guess
    """
    try:
        row = service.ledger.reading.request(name)
    except NotThere:
        raise problems.named("not-found") from None
    mine = row.person is not None and bytes(row.person) == caller.id
    if not mine and not (waiting and row.reason == agency.NEED_USER_VERIFICATION):
        raise problems.named("not-found")
    return row


@router.at("GET /v1/me/requests/{id}", bodies.Status)
def one_request(name: bodies.RequestId, service: TheService, caller: TheCaller) -> Response:
    """Tell where a request stands. One that an agent sent and that waits for your word, too."""
    return reply(statuses.for_person(service, _own(service, caller, name, waiting=True)))


@router.at("GET /v1/me/requests/{id}/receipt", bodies.Anything)
def receipt(name: bodies.RequestId, service: TheService, caller: TheCaller) -> Response:
    """Hand over the receipt, byte for byte as it was signed."""
    return statuses.receipt(service, _own(service, caller, name))


@router.at("GET /v1/me/requests/{id}/proof", media="text/plain")
async def proof(name: bodies.RequestId, service: TheService, caller: TheCaller) -> Response:
    """Hand over the proof that the log holds the receipt (tlog-proof).

    It waits some seconds for them; the header Rescind-Cosigned says how many signed.
    """
    row = await run_in_threadpool(_own, service, caller, name)
    return await statuses.proof(service, row)


@router.at(
    "POST /v1/me/requests/{id}/confirm", bodies.Status, 202, more={200: {"description": "Done."}}
)
async def give_word(
    name: bodies.RequestId, asked: TheOnce, service: TheService, caller: TheCaller
) -> Response:
    """Confirm what an agent asked for you. It is carried out at once."""
    if not caller.confirmed:
        raise problems.named("confirm-first")
    answer = await service.submit(agency.GiveWord(caller.id, name), asked)
    return await _taken_back(service, caller, answer)


@router.at("POST /v1/me/codes", bodies.Token, 201)
async def agent_code(asked: TheOnce, service: TheService, caller: TheCaller) -> Response:
    """Make a code for an agent: with it, a request for you needs no further word."""
    if not caller.confirmed:
        raise problems.named("confirm-first")
    text, _ = new_secret()
    until = service.ledger.clock() + timedelta(days=CODE_DAYS)
    operation = accounts.MakeAgentCode(caller.id, text.encode(), until)
    return told(await service.submit(operation, asked))


@router.at("POST /v1/me/recovery-codes", bodies.RecoveryCodes, 201)
async def new_recovery_codes(asked: TheOnce, service: TheService, caller: TheCaller) -> Response:
    """Make ten new recovery codes. The earlier ones are void from then on."""
    if not caller.confirmed:
        raise problems.named("confirm-first")
    texts, codes = await run_in_threadpool(recovery.new_codes)
    operation = accounts.NewCodes(caller.id, codes, tuple(texts))
    return told(await service.submit(operation, asked))


async def _list_plainly(request: Request, service: Service, caller: Caller) -> Response | None:
    k = plainly.list_length(request)
    return None if k is None else recommending.answer(service, caller.id, k)


@router.at("GET /v1/me/recommendations", bodies.Anything, plainly=_list_plainly)
async def recommendations(
    service: TheService,
    caller: TheCaller,
    k: Annotated[int, Query(ge=1, le=bodies.MOST_LIST)] = plainly.USUAL,
) -> Response:
    """Rank items you may like, with the loans that are the reason. No scores."""
    return recommending.answer(service, caller.id, k)


@router.at("GET /v1/release", bodies.Anything)
async def release(service: TheService) -> Response:
    """Tell what is served, how old it is, and when the next release is due."""
    return reply(recommending.release_facts(service))


@router.at("GET /v1/release/{digest}", media="application/octet-stream")
def release_file(digest: str, service: TheService) -> Response:
    """Hand over the release itself, to make lists on your own device."""
    return recommending.release_file(service, digest)


@router.at("GET /v1/events", media="text/event-stream")
async def events(service: TheService, caller: TheCaller) -> Response:
    """Stream changes of state: your requests; for operators requests, releases and rounds."""
    channel = caller.id if caller.role is Role.PERSON else OPERATORS
    return Listening(service.events, channel, caller.id or caller.session)


# ------------------------------------------------------------------ what a browser keeps

# This service is one server, so it reads the records of a difference while it adds them up, and
# the page says so. It keeps them sealed to subtract them again, and uses them for nothing else.


@router.at("GET /v1/me/contribution", bodies.KeptPart)
def kept_sent_part(service: TheService, caller: TheCaller) -> Response:
    """List what your browser keeps and has sent to the sum, and which browser did."""
    part = service.ledger.reading.kept_part(caller.id)
    ids = service.ledger.catalogue.ids
    items = [ids[n] for n in part.items.tolist()]
    return reply({"items": items, "device": part.device.hex() or None})


@router.at(
    "POST /v1/me/contribution",
    bodies.Acknowledgement,
    201,
    more={200: {"description": "As it was."}},
)
async def contribute(
    body: bodies.Difference, asked: TheOnce, service: TheService, caller: TheCaller
) -> Response:
    """Replace what your browser keeps and has sent to the sum."""
    minus, plus = (_sent_part(service, one) for one in (body.minus, body.plus))
    operation = Contribute(caller.id, bytes.fromhex(body.device), minus, plus)
    answer = await service.submit(operation, asked)
    service.changed(caller.id, "loans", answer)
    return told(answer)


def _sent_part(service: Service, given: bodies.Part) -> SentPart:
    place = service.ledger.catalogue.index_of
    return SentPart(tuple(place(one) for one in given.items), given.weight)
