"""The pages: HTML that names its files by one digest, and the files, which never change under it.

There is no build step: what lies in `static/` is what is served and what is tested. A page is read
anew at every visit and is small; everything else is kept by the browser until the digest changes.
"""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request

from rescind import reporting

SHARED = Path(reporting.__file__).with_name("look.css")
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}


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
        return f"/static/{self.digest}"


@lru_cache
def static() -> Static:
    found, pages, root = {}, {}, Path(__file__).with_name("static")
    known = {one.relative_to(root).as_posix(): one for one in root.rglob("*") if one.is_file()}
    for path, source in sorted({**known, SHARED.name: SHARED}.items()):
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


def wants_page(request: Request) -> bool:
    """Return whether a browser shows what is answered, and no program reads it."""
    return "text/html" in request.headers.get("accept", "")


def filled(name: str, said: Iterable[str], **parts: str) -> str:
    """Return a page with the address of its files, what it says of this service, and its parts."""
    told = "".join(f"<p>{html.escape(one)}</p>\n" for one in said)
    text = static().pages[name].replace("{static}", static().root).replace("{said}", told)
    for part, value in parts.items():
        text = text.replace(f"{{{part}}}", html.escape(value))
    return text
