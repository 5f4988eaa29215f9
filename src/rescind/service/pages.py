"""The pages: HTML that names its files by one digest, and the files, which never change under it.

There is no build step: what lies in `static/` is what is served and what is tested. A page is read
anew at every visit and is small; everything else is kept by the browser until the digest changes.
"""

from __future__ import annotations

import gzip
import hashlib
import html
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from rescind.privacy import keys
from rescind.service import problems
from rescind.service.doors import Doors, TheService

if TYPE_CHECKING:
    from rescind.service.context import Service

router = Doors()
SHARED = ("look.css",)
"""Files of `rescind.reporting` that pages and reports have in common."""
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class File:
    """A static file, and its gzip form if that is smaller."""

    data: bytes
    kind: str
    packed: bytes


@dataclass(frozen=True)
class Static:
    """Everything that pages load, under one digest."""

    files: dict[str, File]
    pages: dict[str, str]
    digest: str

    @property
    def root(self) -> str:
        """Where the files are."""
        return f"/static/{self.digest}"


@lru_cache
def static() -> Static:
    """Read all files, once."""
    found, pages = {}, {}
    shared = files("rescind.reporting")
    known = {name: shared / name for name in SHARED}
    known |= _below(files("rescind.service") / "static")
    for path, source in sorted(known.items()):
        if path.endswith(".html"):
            pages[path] = source.read_text(encoding="utf-8")
            continue
        data = source.read_bytes()
        packed = gzip.compress(data, mtime=0)
        kind = KINDS["." + path.rpartition(".")[2]]
        found[path] = File(data, kind, packed if len(packed) < len(data) else b"")
    whole = hashlib.sha256()
    for path, file in found.items():
        whole.update(f"{path}\n{hashlib.sha256(file.data).hexdigest()}\n".encode())
    return Static(found, pages, whole.hexdigest()[:16])


def _below(folder: Traversable, before: str = "") -> dict[str, Traversable]:
    out: dict[str, Traversable] = {}
    for one in folder.iterdir():
        if one.is_dir():
            out |= _below(one, f"{before}{one.name}/")
        else:
            out[before + one.name] = one
    return out


def wants_page(request: Request) -> bool:
    """Return whether a browser shows what is answered, and no program reads it."""
    return "text/html" in request.headers.get("accept", "")


def page(service: Service, name: str) -> Response:
    """Return a page: its files by digest, and what every page says about this service."""
    said = "".join(f"<p>{html.escape(one)}</p>\n" for one in service.facts()["said"])
    text = static().pages[name].replace("{static}", static().root).replace("{said}", said)
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
        raise problems.not_there()
    headers = {"Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
    if file.packed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, 200, {**headers, "Content-Encoding": "gzip"}, file.kind)
    return Response(file.data, 200, headers, file.kind)
