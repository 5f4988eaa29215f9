"""`rescind doctor`: show what is installed, what is missing, and which data is available."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option

from rescind.cli.options import Json
from rescind.errors import how_to_install

ARRAYS = ("torch", "numpy", "scipy", "numba", "pyarrow", "safetensors")
NEEDED = (*ARRAYS, "typer", "rich", "matplotlib", "cryptography")
SPEED = "numba"
"""Optional: without it everything runs, but more slowly."""
_OF_EXTRA = re.compile(r"([\w.-]+).*;\s*extra == \"([\w-]+)\"")
"""A line of a package's metadata about what an extra needs: a package, and the extra."""


BY_ANOTHER = {"simulation": ("ray",)}
"""Packages that an extra is there for, and that another package's extra brings."""
OPEN = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Zlib|CC0|HPND|"
    r"Public Domain|Unlicense|BSL|Boost)\b",
    re.IGNORECASE,
)
"""Licences under which rescind may be passed on together with a package."""
CLOSED = re.compile(r"\b([AL]?GPL|SSPL|BUSL|Commons Clause|Proprietary)", re.IGNORECASE)
"""Licences that would bind whoever passes rescind on."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def command(
    as_json: Json = False,
    licences: Annotated[
        bool, Option("--licences", help="List the licences of all needed packages.")
    ] = False,
    method: Annotated[
        str | None,
        Option(
            metavar="FILE.py",
            help="Load a method of your own and remember where it is, so that its runs open.",
        ),
    ] = None,
) -> None:
    """Show what is installed and what is missing. Exit code 1 if a required package is missing.

    With --licences: exit code 1 if a needed package has no open licence.

    Examples: rescind doctor; rescind doctor --licences; rescind doctor --method anchored.py
    """
    if method is not None:
        _show(method)
        return
    if licences:
        raise typer.Exit(_licences(as_json))
    facts = examine()
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print(facts)
    raise typer.Exit(1 if facts["missing"] else 0)


def _show(file: str) -> None:
    """Load the file of a method, say what it is, and remember it."""
    from rescind.core.settings import find
    from rescind.errors import ConfigError
    from rescind.methods._outside import class_name
    from rescind.methods._own_file import FORGETS, code_of
    from rescind.storage.kinds import UNLEARNERS

    if not file.partition(":")[0].endswith(".py"):
        raise ConfigError(f"{file} is not the name of a Python file. Give FILE.py.")
    name = class_name(file, FORGETS)
    code = code_of(find(*UNLEARNERS, name))
    typer.echo(f"{name}, {code}: it can be loaded. Runs that this file made open with it.")


def _licences(as_json: bool) -> int:
    found = licences()
    others = [one.package for one in found if not one.allowed]
    if as_json:
        typer.echo(json.dumps([{**one._asdict(), "allowed": one.allowed} for one in found]))
    else:
        for one in found:
            typer.echo(f"  {one.package:20} {one.version:14} {one.licence or 'NOT STATED'}")
        said = f"Not open: {', '.join(others)}." if others else "All are open."
        typer.echo(f"{len(found)} packages, directly or not. {said} rescind itself: Apache-2.0")
    return 1 if others else 0


def examine() -> dict[str, Any]:
    """Collect facts about packages, hardware and data."""
    import platform

    from rescind import __version__
    from rescind.core.home import home
    from rescind.data.obtain import cache_folder, data_folder

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    packages = {name: version(name) for name in NEEDED}
    extras: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires("rescind") or ():
        if found := _OF_EXTRA.match(line):
            extras.setdefault(found[2], {})[found[1]] = version(found[1])
    for extra, names in BY_ANOTHER.items():
        extras.setdefault(extra, {}).update({name: version(name) for name in names})
    place = data_folder()
    return {
        "rescind": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "missing": [n for n, found in packages.items() if found is None and n != SPEED],
        "extras": extras,
        "hardware": _hardware() if packages["torch"] else {},
        "RESCIND_DATA": None if place is None else str(place),
        "cache": str(cache_folder()),
        "home": str(home()) if home().is_dir() else None,
        "datasets": _datasets(),
    }


def _hardware() -> dict[str, Any]:
    import os

    import torch

    cuda = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": cuda}


def _datasets() -> dict[str, str | None]:
    """Return the local place of each dataset; None if it is not on this machine."""
    from rescind.data import names
    from rescind.data.obtain import where

    def source(name: str) -> str | None:
        places = {s: where(name, s) for s in ("RESCIND_DATA", "cache", "imported")}
        return next((s for s, place in places.items() if place and Path(place).is_dir()), None)

    return {n: "generated" if n == "synthetic" else source(n) for n in names()}


def _print(facts: dict[str, Any]) -> None:
    typer.echo(f"rescind {facts['rescind']}, Python {facts['python']}")
    for name, version in facts["packages"].items():
        typer.echo(f"  {'ok     ' if version else 'MISSING'} {name} {version or ''}")
    for extra, names in facts["extras"].items():
        lacking = [name for name, version in names.items() if version is None]
        hint = f" (missing {', '.join(lacking)})"
        state = "-      " if lacking else "ok     "
        typer.echo(f"  {state} extra [{extra}]{hint if lacking else ''}")
    typer.echo(f"  to add an extra: {how_to_install('EXTRA')}")
    if hardware := facts["hardware"]:
        typer.echo(f"  hardware: {hardware['cores']} cores, GPU {hardware['gpu'] or 'none'}")
    typer.echo(f"  home: {facts['home'] or 'none yet (--home, RESCIND_HOME)'}")
    typer.echo(f"  data: RESCIND_DATA={facts['RESCIND_DATA'] or 'not set'}, cache {facts['cache']}")
    for name, source in facts["datasets"].items():
        typer.echo(f"    {name}: {source or f'not available (rescind data get {name})'}")
    if facts["missing"]:
        typer.echo(f"Missing: {', '.join(facts['missing'])}. Next: install rescind again.")
    else:
        typer.echo("All required packages are installed. Next: rescind demo")


class Licence(NamedTuple):
    """The licence of an installed package."""

    package: str
    version: str
    licence: str

    @property
    def allowed(self) -> bool:
        """Return whether it is a known open licence and no other."""
        return bool(OPEN.search(self.licence)) and not CLOSED.search(self.licence)


def licences(root: str = "rescind") -> list[Licence]:
    """Return the licence of every package that `root` needs, directly or not, by name."""
    found: dict[str, Licence] = {}
    waiting = _needs(root)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:  # needed on another system only
            continue
        found[name] = Licence(name, about["Version"], _stated(about))
        waiting += _needs(name)
    return [found[name] for name in sorted(found)]


def _needs(package: str) -> list[str]:
    """Return the names of the packages that one needs, without its extras."""
    stated = metadata.requires(package) or []
    plain = [text for text in stated if "extra ==" not in text.partition(";")[2]]
    names = [match.group() for text in plain if (match := _NAME.match(text))]
    return [re.sub(r"[-_.]+", "-", name).lower() for name in names]


def _stated(about: metadata.PackageMetadata) -> str:
    """Return the licence that a package states: an expression, a classifier, or a short text."""
    classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    names = " AND ".join(c.rpartition(" :: ")[2] for c in classifiers)
    given = about.get_all("License-Expression") or about.get_all("License") or [""]
    text = str(given[0]).strip()
    is_name = 0 < len(text) <= 300 and "\n" not in text and text != "UNKNOWN"
    return text if is_name else names
