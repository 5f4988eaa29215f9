"""The operator's routes: counts, times and states, never items, never who; tokens for scripts."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Path
from sqlalchemy import Select, func, select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rescind.ledger import accounts, agency, fulfilment, tables
from rescind.ledger.batch import Keep
from rescind.ledger.jobs import job_row
from rescind.ledger.operators import Quarantine
from rescind.ledger.release_steps import AskRelease
from rescind.service import bodies, problems, recommending, statuses
from rescind.service import releases as making
from rescind.service.answers import moment, reply, told
from rescind.service.callers import new_secret
from rescind.service.context import Service
from rescind.service.doors import Doors, Part, TheCaller, TheOnce, ThePart, TheService
from rescind.service.policy import SCOPES, Role
from rescind.service.problems import Problem

router = Doors()
TokenId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")]
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
        "learning": making.under_way(service.ledger),
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


def _rows(service: Service, part: Part, query: Select[Any], names: str) -> list[dict[str, Any]]:
    """Return some columns of the rows of a part of a list, and of one more."""
    with service.ledger.store.reading() as tx:
        rows = tx.execute(query.offset(part.first).limit(part.size + 1)).all()
    return [{**{n: getattr(row, n) for n in names.split()}, "at": moment(row.at)} for row in rows]


@router.at("GET /v1/operator/requests", bodies.Page)
def requests(service: TheService, part: ThePart, waiting: bodies.OpenOnly = False) -> Response:
    """List requests, the most urgent first; with `open` only those that are not done yet."""
    rows = service.ledger.reading.requests_due(waiting, part.first, part.size + 1)
    return part.reply("requests", [statuses.for_operator(service, row) for row in rows])


@router.at("GET /v1/operator/releases", bodies.Page)
def releases(service: TheService, part: ThePart) -> Response:
    """List releases, the newest first. `asked` is what became of the last one asked for."""
    table = tables.release
    names = "number seq people sum_digest weights_digest audit leaf"
    rows = _rows(service, part, select(table).order_by(table.c.number.desc()), names)
    return part.reply("releases", rows, asked=service.release_now.state())


@router.at("GET /v1/operator/jobs", bodies.Page)
def jobs(service: TheService, part: ThePart) -> Response:
    """List generations and their rounds, the newest first."""
    job, round_ = tables.job, tables.round_.c
    names = "id kind recipe state seq stale detail leaf"
    rows = _rows(service, part, select(job).order_by(job.c.at.desc()), names)
    counted = select(round_.job, func.max(round_.number)).group_by(round_.job)
    with service.ledger.store.reading() as tx:
        rounds = {name: last for name, last in tx.execute(counted)}
    return part.reply("jobs", [{**row, "rounds": rounds.get(row["id"], 0)} for row in rows])


@router.at("GET /v1/operator/jobs/{id}/rounds", bodies.Page)
def rounds(name: bodies.JobId, service: TheService, part: ThePart) -> Response:
    """List the rounds of a generation, the newest first."""
    with service.ledger.store.reading() as tx:
        job_row(tx, name)
    table = tables.round_
    mine = select(table).where(table.c.job == name).order_by(table.c.number.desc())
    names = "number asked answered refused seconds value"
    return part.reply("rounds", _rows(service, part, mine, names))


@router.at("GET /v1/operator/audits", bodies.Page)
def audits(service: TheService, part: ThePart) -> Response:
    """List what audits said, the newest first.

    `records` is how many were judged: 0 where nothing could be, and `detail` says why.
    """
    newest = select(tables.audit).order_by(tables.audit.c.n.desc())
    names = "n release job records verdict detail"
    return part.reply("audits", _rows(service, part, newest, names))


@router.at("GET /v1/operator/storage", bodies.Anything)
def storage(service: TheService) -> Response:
    """Tell how large each file of the state folder is, and what the last scan found."""
    files = [path for path in service.ledger.state.rglob("*") if path.is_file()]
    sizes = {str(path.relative_to(service.ledger.state)): path.stat().st_size for path in files}
    body = {"bytes": sum(sizes.values()), "files": sizes, "keys": len(service.ledger.keys)}
    return reply({**body, "scan": service.ledger.reading.noted(making.SCAN)})


@router.at("POST /v1/operator/requests/{id}/extend", bodies.Anything)
async def extend(
    name: bodies.RequestId, body: bodies.Extend, asked: TheOnce, service: TheService
) -> Response:
    """Give a request more time; its person is told the reason."""
    operation = agency.Extend(name, body.days, body.reason)
    answer = await service.submit(operation, asked)
    if (person := service.ledger.reading.request(name).person) is not None:
        service.changed(person, "request", answer)  # an open page shows it at once
    return told(answer)


@router.at("POST /v1/operator/releases", bodies.Anything, 202)
async def release_now(asked: TheOnce, service: TheService) -> Response:
    """Begin to make a release. Its receipts say how few people it mixed.

    GET /v1/operator/releases tells in `asked` whether it is being made, was made, or why not.
    """
    ask = AskRelease("/v1/operator/releases", service.ledger.releases.check_possible)
    answer = await service.submit(ask, asked)
    if not answer.replayed:
        service.release_now.start()
    return told(answer)


@router.at("POST /v1/operator/jobs", bodies.Anything, 202)
async def start_job(body: bodies.NewJob, asked: TheOnce, service: TheService) -> Response:
    """Start a generation: a recipe on the loans of now, in a process of its own."""
    start, rounds = service.ledger.generations.start, body.rounds or making.ROUNDS
    return told(await run_in_threadpool(start, body.recipe, rounds, asked))


@router.at("POST /v1/operator/serving", bodies.Anything)
async def choose_what_serves(body: bodies.Serving, asked: TheOnce, service: TheService) -> Response:
    """Serve a generation that is ready and audited, beside the release; or the release alone.

    A take-back makes the generation stale at once: from then on the release is served.
    """
    choose = service.ledger.generations.choose
    return told(await run_in_threadpool(choose, body.generation, asked))


@router.at("POST /v1/operator/people/{id}/quarantine", bodies.Anything)
async def quarantine(
    person: PersonId, body: bodies.Quarantine, asked: TheOnce, service: TheService
) -> Response:
    """Take somebody's loans out of the sum until the matter is settled."""
    operation = Quarantine(bytes.fromhex(person), body.reason)
    return told(await service.submit(operation, asked))


@router.at("POST /v1/operator/scan", bodies.Anything)
async def scan(asked: TheOnce, service: TheService) -> Response:
    """Look for records in the clear in every file of the state folder."""
    found = await run_in_threadpool(making.scan, service.ledger)
    found = {**found, "at": moment(service.ledger.clock())}
    operation = Keep({making.SCAN: found}, found)
    return told(await service.submit(operation, asked))


@router.at("POST /v1/operator/agents", bodies.Anything, 201)
async def admit_agent(body: bodies.NewAgent, asked: TheOnce, service: TheService) -> Response:
    """Admit an agent of the Data Rights Protocol, by its key."""
    operation = accounts.AddAgent(body.id, body.name, body.verify_key.lower())
    return told(await service.submit(operation, asked))


@router.at("GET /v1/operator/tokens", bodies.Anything)
def tokens(service: TheService) -> Response:
    """List tokens and invitations that have not ended: what each may do, never the token itself."""
    table = tables.token
    alive = select(table).where(table.c.expires > service.ledger.clock()).order_by(table.c.at)
    with service.ledger.store.reading() as tx:
        rows = tx.execute(alive).all()
    shown = [
        {
            "id": accounts.token_name(bytes(row.digest)),
            "name": row.name,
            "role": row.role,
            "scope": row.scope.split(),
            "made": moment(row.at),
            "expires": moment(row.expires),
        }
        for row in rows
    ]
    return reply({"tokens": shown})


@router.at("DELETE /v1/operator/tokens/{id}", bodies.Anything)
async def revoke_token(name: TokenId, asked: TheOnce, service: TheService) -> Response:
    """End a token or an invitation now."""
    return told(await service.submit(accounts.RevokeToken(name), asked))


@router.at("POST /v1/operator/tokens", bodies.Token, 201)
async def make_token(
    body: bodies.NewToken, asked: TheOnce, service: TheService, caller: TheCaller
) -> Response:
    """Make a token for a script. Its digest is kept; whoever sends the same key again sees it."""
    wrong = sorted(set(body.scope) - caller.scopes)
    if wrong:
        allowed = ", ".join(sorted(caller.scopes))
        raise Problem(422, f"scope: {wrong[0]} is not yours to give.", f"Allowed: {allowed}.")
    if not caller.id:
        raise problems.named("passkey-needed")
    if not caller.confirmed:
        raise problems.named("confirm-first")
    narrow = set(body.scope) <= SCOPES[Role.OFFICER]
    role = Role.OFFICER if narrow else Role.OPERATOR
    text, digest = new_secret()
    until = service.ledger.clock() + timedelta(days=body.days)
    scope = tuple(sorted(set(body.scope)))
    operation = accounts.MakeToken(digest, body.name, role, scope, until, text)
    return told(await service.submit(operation, asked))
