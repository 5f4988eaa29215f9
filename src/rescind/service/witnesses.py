"""Witnesses of the log: who they are, what they signed, and the door by which they bring it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rescind.errors import DataError
from rescind.ledger import tables
from rescind.ledger.cosigned import facts_of
from rescind.proof.notes import WITNESS, Key
from rescind.service import bodies
from rescind.service.answers import moment, reply, told
from rescind.service.doors import Doors, TheOnce, ThePart, TheService

router = Doors()
WitnessId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{8}$")]
NOTE = {
    "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.at("GET /v1/operator/witnesses", bodies.Page)
def witnesses(service: TheService, part: ThePart) -> Response:
    """List witnesses and what each signed last, and the newest checkpoint that has cosignatures."""
    table, point = tables.witness, tables.checkpoint
    chosen = select(table).order_by(table.c.name).offset(part.first).limit(part.size + 1)
    with service.ledger.store.reading() as tx:
        rows = tx.execute(chosen).all()
        newest = tx.execute(select(point).order_by(point.c.size.desc()).limit(1)).first()
    seen = service.log.witnesses
    shown = [{**facts_of(row, seen), "at": moment(row.at)} for row in rows]
    last = None
    if newest is not None:
        by = [name for name in seen.names if (seen.signed_by(name) or 0) >= newest.size]
        last = {"size": newest.size, "at": moment(newest.at), "by": by, "of": len(seen.names)}
    leaves = len(service.ledger.tree)
    return part.reply("witnesses", shown, checkpoint=last, leaves=leaves)


@router.at(
    "POST /v1/operator/witnesses", bodies.Anything, 201, more={200: {"description": "As it was."}}
)
async def admit(body: bodies.NewWitness, asked: TheOnce, service: TheService) -> Response:
    """Let a witness cosign the log. Without an address it comes by itself (rescind witness)."""
    found = Key.parse(body.key, WITNESS)
    return told(await run_in_threadpool(service.log.witnesses.admit, found, body.url, asked))


@router.at("DELETE /v1/operator/witnesses/{id}", bodies.Anything)
async def dismiss(witness: WitnessId, asked: TheOnce, service: TheService) -> Response:
    """Ask a witness no more. What it signed is kept."""
    return told(await run_in_threadpool(service.log.witnesses.dismiss, witness, asked))


@router.at("POST /log/cosignatures", bodies.Anything, extra=NOTE)
async def bring(request: Request, service: TheService) -> Response:
    """Take a checkpoint of this log that a known witness cosigned. The signature says who it is."""
    note = await _note(request)
    return reply({"signed": await run_in_threadpool(service.log.witnesses.keep, note)})


@router.at("POST /log/rebuilt", bodies.Anything, extra=NOTE)
async def bring_rebuilt(request: Request, service: TheService) -> Response:
    """Take what a known witness signed that rebuilt the release of the last roster."""
    note = await _note(request)
    return reply({"signed": await run_in_threadpool(service.log.witnesses.keep_rebuilt, note)})


async def _note(request: Request) -> str:
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError:
        raise DataError("the body is not text. Send a signed note (C2SP).") from None
