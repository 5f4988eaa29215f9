"""Private names of Flower: all in one module, and a clear message when one of them moves."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from rescind.errors import ConfigError
from rescind.flower.wire import flwr_private

pytestmark = pytest.mark.flower

ROOT = Path(__file__).parents[2]
WRAPPER = Path(flwr_private.__file__)
PUBLIC = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.common",
    "flwr.server",
    "flwr.server.workflow",
    "flwr.serverapp",
    "flwr.simulation",
}
"""Modules of Flower's documented API; only names in their `__all__` are public."""


def private_imports(source: str) -> list[str]:
    """Return the imports of a source that are not Flower's public API."""
    found: list[str] = []
    if "flwr" not in source:  # most files: parsing them all takes seconds
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("flwr.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            module = str(node.module)
            public = import_module(module).__all__ if module in PUBLIC else ()
            found += [f"{module}.{a.name}" for a in node.names if a.name not in public]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            found += [name for name in map(ast.unparse, node.args) if "flwr" in name]
    return found


def test_flwr_has_every_private_name_that_rescind_uses() -> None:
    assert flwr_private.missing() == [], "\n".join(flwr_private.missing())


@pytest.mark.parametrize("name", flwr_private.PRIVATE)
def test_a_name_that_has_moved_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the name, one sentence says what, in which release, and what to do."""
    module, attribute = flwr_private.PRIVATE[name]
    monkeypatch.delattr(import_module(module), attribute)
    (sentence,) = flwr_private.missing()
    assert f"flwr {version('flwr')} has no '{attribute}' in {module}" in sentence
    assert f"pip install 'flwr{flwr_private.ALLOWED}'" in sentence
    assert "flwr_private.py" in sentence
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        getattr(flwr_private, name)


def test_a_module_that_has_moved_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.common.serde", None)
    of_module = [module for module, _ in flwr_private.PRIVATE.values() if module.endswith("serde")]
    assert len(flwr_private.missing()) == len(of_module) > 1
    with pytest.raises(ConfigError, match=r"in flwr\.common\.serde"):
        from rescind.flower.wire.flwr_private import recorddict_to_proto  # noqa: F401


def test_a_setting_that_has_moved_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute = flwr_private.PRIVATE["SQLITE_PRAGMAS"]
    monkeypatch.delattr(import_module(module), attribute)
    with pytest.raises(ConfigError, match=attribute):
        flwr_private.set_sqlite_pragmas([])
    assert not hasattr(import_module(module), attribute)


def test_only_one_module_uses_private_names() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path != WRAPPER]
    found = {str(p.relative_to(ROOT)): private_imports(p.read_text("utf-8")) for p in sources}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import flwr\nfrom flwr.app import Message", []),
        ("from flwr.app import message", ["flwr.app.message"]),
        ("def f():\n    from flwr.common.serde import x", ["flwr.common.serde.x"]),
        ("import flwr.supercore.sql_mixin as s", ["flwr.supercore.sql_mixin"]),
        ("from flwr import supercore", ["flwr.supercore"]),
        ("importlib.import_module('flwr.proto')", ["'flwr.proto'"]),
    ],
)
def test_an_import_of_a_private_name_is_found(source: str, private: list[str]) -> None:
    assert private_imports(source) == private


def test_pyproject_allows_the_same_releases() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    assert f"flwr{flwr_private.ALLOWED}" in extras["flower"]
    assert extras["simulation"] == [f"flwr[simulation]{flwr_private.ALLOWED}"]
