"""Files that users write their own methods in: running one, and what is known of its code."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from dataclasses import is_dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_origin

from rescind.core.settings import classes_in, in_package
from rescind.errors import ConfigError

if TYPE_CHECKING:
    from rescind.core.method import Unlearner

LEARNS, FORGETS = "server_sample", "unlearn"
"""Attributes of learners, and of everything that can forget."""
PACKAGE = "rescind.methods"
LOADED: dict[Path, str] = {}
"""Files that were loaded, and the names of their modules; the one that was named last is last."""
_CODE: dict[str, str] = {}
"""By module, the file and digest of what was run: a file may be edited while its code is used."""
_CUT = 12 - 64
"""Leaves 12 of the 64 digits of a digest."""
OWN = "rescind_own_"
"""Modules of files that were run here begin with it."""


def load_file(path: Path) -> ModuleType:
    """Run a Python file and return its module; run it again only if its text has changed."""
    path = path.expanduser().resolve()
    known = LOADED.get(path)
    if known is None or (known in _CODE and path.is_file() and _CODE[known] != _source(path)):
        if not path.is_file():
            raise ConfigError(f"there is no file {path}. Give the file that defines your method.")
        module = _there(path) or _run(path)
        _check(path, module)
        known = module.__name__
    LOADED.pop(path, None)  # goes last: of two classes of one name, the one named last counts
    LOADED[path] = known
    return sys.modules[known]


def _there(path: Path) -> ModuleType | None:
    """Return the module of this file if the process imported it, as a script and its workers do."""
    for name, module in list(sys.modules.items()):
        if name.startswith(OWN):
            continue
        file = getattr(module, "__file__", None)
        if file and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def _run(path: Path) -> ModuleType:
    # The name depends on path and text alone, so that a worker finds what was sent to it, and
    # objects of an earlier text do not become those of the new one.
    text = path.read_bytes()
    name = f"{OWN}{path.stem}_{sha256(str(path).encode() + text).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file. Give the file that defines your method.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses read their types there
    try:
        run_text(path, text, module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {_cause(error, path)}") from error
    return module


def run_text(path: Path, text: bytes, module: ModuleType) -> None:
    """Run the text of a file in a module, and note its digest.

    Python's own loader may run compiled code of an earlier text: it compares sizes and seconds.
    """
    _CODE[module.__name__] = _source(path, text)
    exec(compile(text, str(path), "exec"), vars(module))


def code_in(path: Path) -> str:
    """Return the name of a file and the begin of its digest, as results and receipts state it."""
    return _source(path)[:_CUT]


def _source(path: Path, text: bytes | None = None) -> str:
    text = path.read_bytes() if text is None else text
    return f"{path.name} sha256:{sha256(text).hexdigest()}"


def _cause(error: Exception, path: Path) -> str:
    inside = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    line = error.lineno if isinstance(error, SyntaxError) else inside[-1].lineno if inside else None
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"line {line}: {type(error).__name__}: {words}{missing_module(error, path)}"


def missing_module(error: Exception, path: Path) -> str:
    """Return what to do about a module that is not there; "" for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    name = error.name.partition(".")[0]
    beside = [at.name for at in (path.with_name(f"{name}.py"), path.with_name(name)) if at.exists()]
    if not beside:
        return f". Install '{name}' where rescind is installed."
    return (
        f". A method is one file, and what lies beside it is not found: put what it needs of "
        f"{beside[0]} into {path.name}, or install '{name}' as a package."
    )


def in_own_file(error: Exception) -> str:
    """Return the lines of a traceback that are in files loaded here, and what happened at last.

    "" if no such file, and no method of one, was at work.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) in LOADED]
    files = _at_work(error)
    if not own and not files:
        return ""
    shown = own if frames[-1] in own else [*own, frames[-1]]
    said = "".join([*traceback.format_list(shown), *traceback.format_exception_only(error)])
    if own:
        return said.rstrip()
    return (
        f"{said}This is no line of {', '.join(files)}, but most likely about a value from there: "
        f"a table or a number per client that has another name, width or kind than is expected."
    )


def _at_work(error: Exception) -> list[str]:
    """Return the names of files loaded here whose methods are named in the frames of an error."""
    modules = {module: path.name for path, module in LOADED.items()}
    found = dict[str, None]()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("self", "method", "m"):
            if file := modules.get(type(frame.f_locals.get(name)).__module__):
                found[file] = None
    return list(found)


def _check(path: Path, module: ModuleType) -> None:
    """Refuse classes that could not be told apart later, or whose settings would not count."""
    from rescind.core.own_code import check_written  # loads torch, as the classes did

    for name, cls in classes_in(module.__name__, FORGETS).items():
        check_name(cls)
        try:
            check_written(cls)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if is_dataclass(cls) and "__dataclass_fields__" not in vars(cls):
            ours = [n for n, hint in inspect.get_annotations(cls).items() if not _fixed(hint)]
            if ours:
                raise ConfigError(
                    f"{path}: {name} has the settings {', '.join(ours)}, but is no dataclass, so "
                    f"they would not count. Write @dataclass(frozen=True, kw_only=True) above it."
                )


def _fixed(hint: Any) -> bool:
    return "ClassVar" in hint if isinstance(hint, str) else get_origin(hint) is ClassVar


def check_name(cls: type) -> None:
    """Refuse a class from elsewhere with the name of a method here: a saved run has names only."""
    mine = in_package(PACKAGE, FORGETS, cls.__name__)
    if mine is not None and not cls.__module__.startswith("rescind."):
        raise ConfigError(
            f"your class is called {cls.__name__}, as a method of rescind is. A saved run would "
            f"load that one. Give your class another name."
        )


def why_none(module: ModuleType) -> str:
    for name, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and inspect.isabstract(cls):
            lacks = sorted(getattr(cls, "__abstractmethods__", ()))
            wrote = [one for one, value in vars(cls).items() if inspect.isfunction(value)]
            near = {one: get_close_matches(one, wrote, 1, 0.8) for one in lacks}
            spelt = [f" Did you mean it by {found[0]}?" for found in near.values() if found]
            return f"{name} lacks {', '.join(lacks)}.{''.join(spelt)}"
    return "Write a frozen dataclass whose base is one of rescind.core's (docs/methods.md)."


def code_of(cls: type) -> str:
    """Return the file of a class outside rescind, and the begin of its digest; "" without one."""
    return source_of(cls)[:_CUT]


def source_of(part: type | FunctionType) -> str:
    """Return the same with the whole digest: an author can make two texts that begin alike."""
    if known := _CODE.get(part.__module__):
        return known
    path = file_of(part)
    return "" if path is None else _source(path)


def files_of(method: Unlearner) -> tuple[Path, ...]:
    """Return the files that a worker process must load: the method's, and those loaded here."""
    mine = file_of(type(method))
    return tuple(dict.fromkeys([*LOADED, *([mine] if mine else [])]))


def file_of(cls: type | FunctionType) -> Path | None:
    """Return the file of a class or function outside rescind, None for those of rescind."""
    if cls.__module__.startswith("rescind."):
        return None
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and Path(file).is_file() else None
