"""The operator's routes: counts, times and states; never items, never who."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Path
from sqlalchemy import Select, func, select
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rescind.ledger import accounts, agency, fulfilment, tables
from rescind.ledger.asked_release import AskRelease
from rescind.ledger.jobs import job_row
from rescind.ledger.noted import Scanned, last_scan
from rescind.ledger.quarantine import Quarantine
from rescind.service import bodies, learning, recommending, statuses
from rescind.service.answers import moment, reply, told
from rescind.service.context import Service
from rescind.service.doors import Doors, TheCaller, TheService, once, place

router = Doors()
PersonId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")]


@router.at("GET /v1/operator/overview", bodies.Anything)
def overview(service: TheService, caller: TheCaller) -> Response:
    """Tell on one screen: is it healthy, what is due, what is learning; and what you may do."""
    now, waiting = service.ledger.clock(), service.ledger.reading.open_requests()
    soon = [row for row in waiting if row.expected_by - now <= timedelta(days=7)]
    body = {
        "may": sorted(caller.scopes),
        "ready": service.readiness(),
        "counts": service.ledger.reading.overview(),
        "requests": {
            "open": len(waiting),
            "oldest": moment(min((row.received_at for row in waiting), default=None)),
            "due_in_7_days": len(soon),
            "alarms": [alarm for row in waiting if (alarm := _alarm(row, now))],
        },
        "release": recommending.release_facts(service),
        "learning": learning.under_way(service),
        "log": {
            "leaves": len(service.ledger.tree),
            "witnesses": len(service.log.witnesses.names),
            "cosigned": len(service.log.witnesses.covering(len(service.ledger.tree) - 1).signed),
        },
        "listeners": service.events.listeners,
    }
    return reply(body)


def _alarm(row: Any, now: Any) -> dict[str, Any] | None:
    """Return an alarm at half and at four fifths of the time that a request has."""
    used = fulfilment.used(row, now)
    if used < fulfilment.HALF:
        return None
    return {"request_id": row.id, "used": round(used, 2), "urgent": used >= fulfilment.URGENT}


def _page(service: Service, table: Any, order: Any, cursor: str | None, size: int) -> Any:
    first = place(cursor)
    chosen = table if isinstance(table, Select) else select(table)
    query = chosen.order_by(order).offset(first).limit(size + 1)
    with service.ledger.store.reading() as tx:
        rows = tx.execute(query).all()
    return rows[:size], str(first + size) if len(rows) > size else None


@router.at("GET /v1/operator/requests", bodies.Page)
def requests(
    service: TheService,
    cursor: bodies.Cursor = None,
    size: bodies.PageSize = 100,
    waiting: bodies.OpenOnly = False,
) -> Response:
    """List requests, the most urgent first; with `open` only those that are not done yet."""
    first = place(cursor)
    rows = service.ledger.reading.requests_due(waiting, first, size + 1)
    shown = [statuses.for_operator(service, row) for row in rows[:size]]
    return reply({"requests": shown, "next": str(first + size) if len(rows) > size else None})


@router.at("GET /v1/operator/releases", bodies.Page)
def releases(
    service: TheService, cursor: bodies.Cursor = None, size: bodies.PageSize = 100
) -> Response:
    """List releases, the newest first. `asked` is what became of the last one asked for."""
    table = tables.release
    rows, more = _page(service, table, table.c.number.desc(), cursor, size)
    names = ("number", "seq", "people", "sum_digest", "weights_digest", "audit", "leaf")
    shown = [_row(row, names) for row in rows]
    return reply({"releases": shown, "next": more, "asked": service.release_now.state()})


@router.at("GET /v1/operator/jobs", bodies.Page)
def jobs(
    service: TheService, cursor: bodies.Cursor = None, size: bodies.PageSize = 100
) -> Response:
    """List generations and their rounds, the newest first."""
    table = tables.job
    rows, more = _page(service, table, table.c.at.desc(), cursor, size)
    names = ("id", "kind", "recipe", "state", "seq", "stale", "detail", "leaf")
    counted = select(tables.round_.c.job, func.count(), func.max(tables.round_.c.number)).group_by(
        tables.round_.c.job
    )
    with service.ledger.store.reading() as tx:
        rounds = {job: last for job, _, last in tx.execute(counted)}
    shown = [{**_row(row, names), "rounds": rounds.get(row.id, 0)} for row in rows]
    return reply({"jobs": shown, "next": more})


@router.at("GET /v1/operator/jobs/{id}/rounds", bodies.Page)
def rounds(
    name: bodies.JobId,
    service: TheService,
    cursor: bodies.Cursor = None,
    size: bodies.PageSize = 100,
) -> Response:
    """List the rounds of a generation, the newest first."""
    with service.ledger.store.reading() as tx:
        job_row(tx, name)
    table = tables.round_
    shown = select(table).where(table.c.job == name)
    rows, more = _page(service, shown, table.c.number.desc(), cursor, size)
    names = ("number", "asked", "answered", "refused", "seconds", "value")
    return reply({"rounds": [_row(row, names) for row in rows], "next": more})


@router.at("GET /v1/operator/audits", bodies.Page)
def audits(
    service: TheService, cursor: bodies.Cursor = None, size: bodies.PageSize = 100
) -> Response:
    """List what audits said, the newest first.

    `records` is how many were judged: 0 where nothing could be, and `detail` says why.
    """
    table = tables.audit
    rows, more = _page(service, table, table.c.n.desc(), cursor, size)
    names = ("n", "release", "job", "records", "verdict", "detail")
    return reply({"audits": [_row(row, names) for row in rows], "next": more})


def _row(row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in names}, "at": moment(row.at)}


@router.at("GET /v1/operator/storage", bodies.Anything)
def storage(service: TheService) -> Response:
    """Tell how large each file of the state folder is, and what the last scan found."""
    files = [path for path in service.ledger.state.rglob("*") if path.is_file()]
    sizes = {str(path.relative_to(service.ledger.state)): path.stat().st_size for path in files}
    body = {"bytes": sum(sizes.values()), "files": sizes, "keys": len(service.ledger.keys)}
    return reply({**body, "scan": last_scan(service.ledger.reading)})


@router.at("POST /v1/operator/requests/{id}/extend", bodies.Anything)
async def extend(
    request: Request,
    name: bodies.RequestId,
    body: bodies.Extend,
    key: bodies.IdempotencyKey,
    service: TheService,
) -> Response:
    """Give a request more time; its person is told the reason."""
    operation = agency.Extend(name, body.days, body.reason)
    answer = await service.submit(operation, await once(request, key))
    if (person := service.ledger.reading.request(name).person) is not None:
        service.changed(person, "request", answer)  # an open page shows it at once
    return told(answer)


@router.at("POST /v1/operator/releases", bodies.Anything, 202)
async def release_now(
    request: Request, key: bodies.IdempotencyKey, service: TheService
) -> Response:
    """Begin to make a release. Its receipts say how few people it mixed.

    GET /v1/operator/releases tells in `asked` whether it is being made, was made, or why not.
    """
    possible = service.ledger.releases.check_possible
    ask = AskRelease("/v1/operator/releases", possible)
    answer = await service.submit(ask, await once(request, key))
    if not answer.replayed:
        service.release_now.start()
    return told(answer)


@router.at("POST /v1/operator/jobs", bodies.Anything, 202)
async def start_job(
    request: Request, body: bodies.NewJob, key: bodies.IdempotencyKey, service: TheService
) -> Response:
    """Start a generation: a recipe on the loans of now, in a process of its own."""
    learning.check_recipe(body.recipe)
    rounds, asked = body.rounds or learning.ROUNDS, await once(request, key)
    return told(
        await run_in_threadpool(service.ledger.generations.start, body.recipe, rounds, asked)
    )


@router.at("POST /v1/operator/serving", bodies.Anything)
async def choose_what_serves(
    request: Request, body: bodies.Serving, key: bodies.IdempotencyKey, service: TheService
) -> Response:
    """Serve a generation that is ready and audited, beside the release; or the release alone.

    A take-back makes the generation stale at once: from then on the release is served.
    """
    asked = await once(request, key)
    choose = service.ledger.generations.choose
    return told(await run_in_threadpool(choose, body.generation, asked))


@router.at("POST /v1/operator/people/{id}/quarantine", bodies.Anything)
async def quarantine(
    request: Request,
    person: PersonId,
    body: bodies.Quarantine,
    key: bodies.IdempotencyKey,
    service: TheService,
) -> Response:
    """Take somebody's loans out of the sum until the matter is settled."""
    operation = Quarantine(bytes.fromhex(person), body.reason)
    return told(await service.submit(operation, await once(request, key)))


@router.at("POST /v1/operator/scan", bodies.Anything)
async def scan(request: Request, key: bodies.IdempotencyKey, service: TheService) -> Response:
    """Look for records in the clear in every file of the state folder."""
    found = await run_in_threadpool(learning.scan, service)
    found = {**found, "at": moment(service.ledger.clock())}
    return told(await service.submit(Scanned(found), await once(request, key)))


@router.at("POST /v1/operator/agents", bodies.Anything, 201)
async def admit_agent(
    request: Request, body: bodies.NewAgent, key: bodies.IdempotencyKey, service: TheService
) -> Response:
    """Admit an agent of the Data Rights Protocol, by its key."""
    operation = accounts.AddAgent(body.id, body.name, body.verify_key.lower())
    return told(await service.submit(operation, await once(request, key)))
