"""Every module that the package imports is a stated dependency, also one imported lazily."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
STATED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BRINGS = packages_distributions()
MAY_USE = {
    "rescind/cli": ("flower", "service"),  # only in the commands that need them
    "rescind/data": ("graph",),
    "rescind/flower": ("flower",),
    "rescind/ledger": ("service",),
    "rescind/night": ("service",),  # only where rows or requests come from a database
    "rescind/service": ("service",),
}
"""Extras that a package may use; every package may use what is installed without one."""
IF_THERE = {"pandas", "polars", "triton"}
"""Frames of the caller, and what torch brings on a GPU: used only where they are."""


def imported(source: str) -> set[str]:
    """Return the modules of others that a source imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module))
    names = {name.partition(".")[0] for name in found}
    return names - set(sys.stdlib_module_names) - {"rescind", "rescind_papers"} - IF_THERE


def unstated(source: str, package: str) -> set[str]:
    """Return what a source of a package imports that nothing stated installs."""
    extras = STATED["optional-dependencies"]
    stated = [*STATED["dependencies"], *(w for e in MAY_USE.get(package, ()) for w in extras[e])]
    installed = {plain(re.split(r"[^\w.-]", words)[0]) for words in stated}
    return {
        name
        for name in imported(source)
        if not installed & {plain(one) for one in BRINGS.get(name, [name])}
    }


def plain(name: str) -> str:
    """Return the name of a distribution as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_imported_module_is_stated() -> None:
    sources = {path.relative_to(SOURCES): path.read_text("utf-8") for path in SOURCES.rglob("*.py")}
    assert len(sources) > 500
    missing = {path: unstated(text, "/".join(path.parts[:2])) for path, text in sources.items()}
    assert not {path: names for path, names in missing.items() if names}


def test_control_what_another_package_happens_to_bring_is_found() -> None:
    lazily = "def command():\n    import click, numpy\n    from starlette.types import Scope\n"
    assert unstated(lazily, "rescind/cli") == {"click"}
    assert unstated(lazily, "rescind/core") == {"click", "starlette"}
