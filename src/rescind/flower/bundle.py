"""The one app bundle that servers and silos run: names of two functions, no code.

Flower runs any bundle (FAB) that it is given. Ours is the same for every run, so both sides know
its digest and refuse all others. What a run does is in its configuration (`run_request.py`).
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache

from rescind.flower.run_request import ASKED

FILES = {
    "pyproject.toml": (
        "[build-system]\n"
        'requires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        "[project]\n"
        'name = "rescind-run"\nversion = "1.0.0"\ndescription = "A recipe over silos"\n'
        'license = {file = "LICENSE"}\ndependencies = ["flwr>=1.41"]\n\n'
        "[tool.flwr.app]\n"
        'publisher = "rescind"\n\n'
        "[tool.flwr.app.components]\n"
        'serverapp = "rescind.flower.apps:server_app"\n'
        'clientapp = "rescind.flower.apps:node_app"\n\n'
        "[tool.flwr.app.config]\n"
        f'{ASKED} = ""\n'
    ),
    "LICENSE": "Apache-2.0\n",
}


@lru_cache(maxsize=1)
def bundle() -> bytes:
    """Return the bundle in Flower's format. Not compressed: zlib differs between machines."""
    lines = [
        f"{name},{hashlib.sha256(text.encode()).hexdigest()},{8 * len(text.encode())}"
        for name, text in FILES.items()
    ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, text in {**FILES, ".info/CONTENT": "\n".join(lines)}.items():
            entry = zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same bytes on every system
            archive.writestr(entry, text)
    return file.getvalue()


def bundle_digest() -> str:
    """Return the SHA-256 of the bundle, under which Flower stores it."""
    return hashlib.sha256(bundle()).hexdigest()


def refusal(content: bytes) -> str | None:
    """Return why a bundle is refused; None if it is ours."""
    found = hashlib.sha256(content).hexdigest()
    if found == bundle_digest():
        return None
    return (
        f"an app bundle with digest {found[:16]} is refused; only rescind's own, "
        f"{bundle_digest()[:16]}, is run. Submit with 'rescind flower run', and use the same "
        f"version of rescind on the server and on every silo."
    )
