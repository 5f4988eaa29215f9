"""Find a method that takes part: a row, an installed package, or one Python file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from rescind.errors import ConfigError, suggest
from rescind.life.adapters import PEERS
from rescind.life.entry import Entry, Setting
from rescind.life.nodes_rows import NODE_ROWS
from rescind.life.rows import ROUNDS, ROWS, Row
from rescind.methods._own_file import missing_module, run_text

GROUP = "rescind.methods"
"""The group of entry points in which an installed package names its methods."""


@dataclass(frozen=True)
class Found:
    """A method, and the digest of its code."""

    name: str
    make: Callable[[Setting, int], Entry]
    code: str
    file: Path | None = None
    spare: Callable[[Setting, int], Entry] | None = None
    ours: bool = False
    """A row of this package, whose code may change while its lines stay true."""


def rows_of(task: str) -> dict[str, Row]:
    """Return the rows of this package for a task, by name."""
    return NODE_ROWS if task == "nodes" else ROWS | PEERS


def find(name: str, task: str = "ranking") -> Found:
    """Return the method of this name or file."""
    if name.endswith(".py"):
        path = Path(name)
        return Found(path.stem, build_of(_chosen(_module(path), name)), file_digest(path), path)
    if row := rows_of(task).get(name):
        return Found(name, row.build, own_code(), spare=row.spare, ours=True)
    for point in entry_points(group=GROUP):
        if point.name == name:
            made = point.load()
            return Found(name, build_of(made), file_digest(_file_of(made)))
    known = [*rows_of(task), *(point.name for point in entry_points(group=GROUP))]
    raise ConfigError(
        f"there is no method '{name}': {suggest(name, known)} Others enter by a file, such as: "
        f"from rescind.methods import FedAvg as ENTRY"
    )


def build_of(what: Any) -> Callable[[Setting, int], Entry]:
    """Return how to make an entry of a class, a method of this package, or a model with `fit`."""
    from rescind.core.method import Method
    from rescind.life.adapters import Refit
    from rescind.life.federated import Exact

    if inspect.isclass(what) and issubclass(what, Entry):
        return what
    made = getattr(what, "func", what)  # partial(MyMethod, rate=0.1) is a method, too
    is_method = inspect.isclass(made) and issubclass(made, Method)
    learner = what() if is_method else what
    if isinstance(learner, Method):
        return lambda setting, seed: Exact(setting, seed, learner, learner.rounds_or(ROUNDS))
    if callable(what):  # a class, or a function that returns a model with fit
        return lambda setting, seed: Refit(setting, seed, what)
    raise ConfigError(
        f"{what!r} cannot take part: it is no Entry, Method or model with fit (docs/life.md)."
    )


def _file_of(what: Any) -> Path:
    what = getattr(what, "func", what)
    written = inspect.isclass(what) or inspect.isfunction(what)
    return Path(inspect.getfile(what if written else type(what)))


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}. Give a Python file with one class in it.")
    name = f"rescind_life_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        run_text(path, path.read_bytes(), module)
    except Exception as error:
        why = f"{type(error).__name__}: {error}{missing_module(error, path) or '.'}"
        raise ConfigError(f"{path} cannot be read: {why}") from error
    return module


def _chosen(module: ModuleType, path: str) -> Any:
    """Return what takes part: `ENTRY` if the file has it, else its only class that could."""
    if hasattr(module, "ENTRY"):
        return module.ENTRY
    mine = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]
    able = [c for c in mine if hasattr(c, "fit") or hasattr(c, "arrive") or hasattr(c, "unlearn")]
    if len(able) != 1:
        names = ", ".join(c.__name__ for c in able) or "none"
        raise ConfigError(
            f"{path} must have one class that takes part; found {names}. Choose: ENTRY = TheClass."
        )
    return able[0]


def file_digest(path: Path) -> str:
    """Return the digest of a file."""
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@lru_cache(maxsize=1)
def own_code() -> str:
    """Return a digest of this package's Python files."""
    home, state = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        state.update(f"{path.relative_to(home)}\n".encode())
        state.update(path.read_bytes())
    return f"sha256:{state.hexdigest()}"
