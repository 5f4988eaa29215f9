"""The pages, and the files that they load: the routes."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from rescind.privacy import keys
from rescind.service import problems
from rescind.service.doors import Doors, TheService
from rescind.service.static_files import filled, static

if TYPE_CHECKING:
    from rescind.service.context import Service

router = Doors()
FOR_EVER = "public, max-age=31536000, immutable"


def page(service: Service, name: str) -> Response:
    """Return a page: its files by digest, and what every page says about this service."""
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
