"""The pages, the files that they load, and what a link opens without an account: the routes."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rescind.ledger import agency
from rescind.privacy import keys
from rescind.service import bodies, people, problems, statuses
from rescind.service.answers import reply
from rescind.service.doors import Doors, TheService
from rescind.service.static_files import filled, static, wants_page

if TYPE_CHECKING:
    from rescind.service.context import Service

router = Doors()
FOR_EVER = "public, max-age=31536000, immutable"


def page(service: Service, name: str) -> Response:
    text = filled(name, service.facts()["said"])
    return Response(text, headers={"Vary": "Accept"}, media_type="text/html")


@router.at("GET /", media="text/html")
async def persons_page(service: TheService) -> Response:
    """Show the person's page."""
    return page(service, "person.html")


@router.at("GET /operator", media="text/html")
async def operators_page(service: TheService) -> Response:
    """Show the operator's page. It holds nothing itself: everything on it is read after sign-in."""
    return page(service, "operator.html")


@router.at("GET /check.html", media="text/html")
async def checker(service: TheService) -> Response:
    """Hand over one file that checks receipts offline, with the keys that this service states."""
    stated = public_keys(service)
    parts = {
        "look": static().files["look.css"].data.decode(),
        "check": static().files["check.js"].data.decode().replace("\nexport ", "\n"),
        "glue": static().files["offline/glue.js"].data.decode(),
        **{name: html.escape(key) for name, key in stated.items()},
    }
    text = static().pages["offline/check.html"]
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part, 1)
    headers = {"Content-Disposition": 'attachment; filename="check.html"'}
    return Response(text, headers=headers, media_type="text/html")


def public_keys(service: Service) -> dict[str, str]:
    """Return the keys to pin: the one that signs receipts, and the one that signs the log."""
    return {"receipts": keys.public_text(service.ledger.signer), "log": str(service.log.key)}


@router.at("GET /static/{digest}/{path:path}", media="application/octet-stream", shown=False)
async def static_file(digest: str, path: str, request: Request) -> Response:
    """Hand over a file of the pages."""
    file = static().files.get(path)
    if file is None or digest != static().digest:
        raise problems.named("not-found")
    headers = {"Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
    if file.packed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, 200, {**headers, "Content-Encoding": "gzip"}, file.kind)
    return Response(file.data, 200, headers, file.kind)


# ------------------------------------------------------------------ the link, without an account


@router.at("GET /r/{link}", bodies.Status, more={200: {"content": {"text/html": {}}}})
def by_link(link: str, request: Request, service: TheService) -> Response:
    """Tell where a request stands to whoever holds its link, for 60 days; a browser gets a page."""
    if wants_page(request):
        return page(service, "link.html")
    return reply(statuses.for_person(service, statuses.linked(service, link)))


@router.at("GET /r/{link}/receipt", bodies.Anything)
def receipt_by_link(link: str, service: TheService) -> Response:
    """Hand over the receipt."""
    return statuses.receipt(service, statuses.linked(service, link))


@router.at("GET /r/{link}/proof", media="text/plain")
async def proof_by_link(link: str, service: TheService) -> Response:
    """Hand over the proof."""
    return await statuses.proof(service, await run_in_threadpool(statuses.linked, service, link))


@router.at("GET /r/{link}/export", bodies.Anything)
def export_by_link(link: str, service: TheService) -> Response:
    """Hand over everything, to whoever holds the link of an access request."""
    row = statuses.linked(service, link)
    if row.kind != agency.ACCESS or row.person is None:
        raise problems.named("not-found")
    return people.exported(service, bytes(row.person))
