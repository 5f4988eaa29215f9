"""Fetch the libraries of the pages: `make vendor`. What is committed is what is served and tested.

Each file is taken from its package on the npm registry, unchanged but for `CHANGES`, and its digest
is written into `vendor.json`. A package whose digest differs from the one written there is refused,
unless its version is another one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import rescind
from rescind.errors import DataError

FOLDER = Path(rescind.__file__).parent / "service" / "static" / "vendor"
LIST, LICENCES = "vendor.json", "LICENSES.txt"
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org")
CHANGES = {
    'from"preact"': 'from"./preact.mjs"',  # browsers know files, not names of packages
    "//# sourceMappingURL=preact.mjs.map\n": "",
    "//# sourceMappingURL=hooks.mjs.map\n": "",
}


@dataclass(frozen=True)
class Package:
    """A package, and which of its files are served under which name."""

    name: str
    version: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "preact", "11.2.0", {"preact.mjs": "dist/preact.mjs", "hooks.mjs": "hooks/dist/hooks.mjs"}
    ),
    Package("htm", "3.1.1", {"htm.mjs": "dist/htm.mjs"}),
    Package("idb", "8.0.4", {"idb.mjs": "build/index.js"}),
    Package(
        "uplot", "1.6.32", {"uplot.mjs": "dist/uPlot.esm.js", "uplot.css": "dist/uPlot.min.css"}
    ),
)


def main(folder: Path = FOLDER) -> None:
    """Fetch everything and write it."""
    path = folder / LIST
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    told: dict[str, dict[str, object]] = {}
    licences = []
    for package in PACKAGES:
        data = _fetched(package)
        digest = hashlib.sha256(data).hexdigest()
        before = known.get(package.name, {})
        if before.get("version") == package.version and before["package_sha256"] != digest:
            raise DataError(
                f"{package.name} {package.version}: its digest {digest} is not that of vendor.json."
            )
        inside = _opened(data)
        stated = json.loads(inside["package.json"])
        licences.append(f"{package.name} {package.version}\n\n{inside['LICENSE'].decode()}")
        told[package.name] = {
            "version": package.version,
            "licence": stated["license"],
            "package_sha256": digest,
            "files": {
                name: {"from": source, "sha256": _written(folder / name, inside[source])}
                for name, source in package.files.items()
            },
        }
        print(f"{package.name} {package.version}: {', '.join(package.files)}")
    (folder / LICENCES).write_text(f"\n{'-' * 72}\n\n".join(licences), encoding="utf-8")
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _fetched(package: Package) -> bytes:
    address = f"{REGISTRY.rstrip('/')}/{package.name}/-/{package.name}-{package.version}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            found: bytes = answer.read()
    except OSError as error:
        raise DataError(f"cannot fetch {package.name} {package.version}: {error}.") from None
    return found


def _opened(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file}


def _written(path: Path, data: bytes) -> str:
    """Write a file as the pages use it; return its digest."""
    text = data.decode()
    for old, new in CHANGES.items():
        text = text.replace(old, new)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
