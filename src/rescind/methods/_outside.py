"""Methods outside this package: in a user's own file, or in another installed package.

A class is found by its name in these places, in this order:

1. modules of this process that define a method: a script, a notebook, a file that was loaded here
2. installed packages: the entry point group `rescind.methods`, `Anchored = "my_package:Anchored"`
3. files that this user has run before (`--method FILE.py`). Their paths are in `methods.txt` in the
   folder of keys, so that `rescind recommend RUN` knows a method without naming its file again. Of
   two files with a class of one name, neither is taken

A saved run has the name of its method and the digest of its file, never code: nothing that came
with a run is executed. It is opened with the file of that digest alone (`made_by`), because two
files can have classes of one name, and a file can be edited.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_origin

from rescind.core.settings import classes_in, in_package
from rescind.errors import ConfigError, suggest
from rescind.privacy import keys

if TYPE_CHECKING:
    from rescind.core.method import Unlearner

log = logging.getLogger(__name__)

GROUP = "rescind.methods"
LEARNS, FORGETS = "server_sample", "unlearn"
"""Attributes of learners, and of everything that can forget."""
PACKAGE = "rescind.methods"
REMEMBERED = "methods.txt"
_LOADED: dict[Path, str] = {}
"""Files that were loaded, and the names of their modules; the one that was named last is last."""
_CODE: dict[str, str] = {}
"""By module, the file and digest of what was run: a file may be edited while its code is used."""
OWN = "rescind_own_"
"""Modules of files that were run here begin with it."""


def class_name(text: str, marker: str = LEARNS, near: Path | None = None) -> str:
    """Return the name of a class, given as a name, as FILE.py or as FILE.py:Class.

    A file is loaded, and remembered for later commands of this user. If a name is that of a class
    in a file that was remembered, it is told which file this is.

    near: a folder in which a file is looked for first, such as the one of a recipe
    """
    path, _, chosen = text.partition(":")
    if not path.endswith(".py"):
        if not _known_otherwise(text, marker) and (file := _remembered_with(text)) is not None:
            load_file(file)  # goes last, so that it counts, whatever was loaded for other cells
            _tell_file(text, file)
        return text
    if near is not None and (near / path).is_file():
        path = str(near / path)
    module = load_file(Path(path))
    found = classes_in(module.__name__, marker)
    kind = "learner" if marker == LEARNS else "unlearner"
    if not found:
        raise ConfigError(f"{path} defines no {kind}. {_why_none(module)}")
    if chosen and chosen not in found:
        raise ConfigError(f"{path} has no {kind} '{chosen}'; {suggest(chosen, found)}")
    if not chosen and len(found) > 1:
        each = ", ".join(f"{path}:{name}" for name in found)
        raise ConfigError(f"{path} defines {len(found)} methods. Name one of them: {each}.")
    remember(Path(path))
    return chosen or next(iter(found))


def load_file(path: Path) -> ModuleType:
    """Run a Python file and return its module; run it again only if its text has changed."""
    path = path.expanduser().resolve()
    known = _LOADED.get(path)
    if known is None or (known in _CODE and path.is_file() and _CODE[known] != _code(path)):
        if not path.is_file():
            raise ConfigError(f"there is no file {path}. Give the file that defines your method.")
        module = _there(path) or _run(path)
        _check(path, module)
        known = module.__name__
    _LOADED.pop(path, None)  # goes last: of two classes of one name, the one named last counts
    _LOADED[path] = known
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
    _CODE[module.__name__] = _code(path, text)
    exec(compile(text, str(path), "exec"), vars(module))


def _code(path: Path, text: bytes | None = None) -> str:
    """Return the name of a file and its digest, as results and receipts state them."""
    text = path.read_bytes() if text is None else text
    return f"{path.name} sha256:{sha256(text).hexdigest()[:12]}"


def _cause(error: Exception, path: Path) -> str:
    """Return what went wrong and in which line of the file."""
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

    If none of them is, but a method of such a file was at work, it is about what that returned. ""
    without one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) in _LOADED]
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
    modules = {module: path.name for path, module in _LOADED.items()}
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


def _why_none(module: ModuleType) -> str:
    for name, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and inspect.isabstract(cls):
            lacks = sorted(getattr(cls, "__abstractmethods__", ()))
            wrote = [one for one, value in vars(cls).items() if inspect.isfunction(value)]
            near = {one: get_close_matches(one, wrote, 1, 0.8) for one in lacks}
            spelt = [f" Did you mean it by {found[0]}?" for found in near.values() if found]
            return f"{name} lacks {', '.join(lacks)}.{''.join(spelt)}"
    return "Write a frozen dataclass whose base is one of rescind.core's (docs/methods.md)."


def remember(path: Path) -> None:
    """Note a file, so that later commands find its methods by name."""
    place, path = keys.folder() / REMEMBERED, path.expanduser().resolve()
    if path in _remembered():
        return
    keys.private_folder()
    with open(place, "a", encoding="utf-8") as file:  # one short line: written at once
        file.write(f"{path}\n")


def _remembered() -> list[Path]:
    """Return the files that this user has run, the newest first."""
    try:
        lines = (keys.folder() / REMEMBERED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [Path(line) for line in reversed(lines) if line]


def _remembered_with(name: str) -> Path | None:
    """Return the file that this user has run and that has a class of this name, None if none has.

    Files of one text are the same code; of several others nobody knows which is meant.
    """
    files = {
        path.read_bytes(): path
        for path in reversed(_remembered())  # the newest counts
        if path.is_file() and _mentions(path, name)
    }
    found = [*files.values()]
    if len(found) > 1:
        raise ConfigError(
            f"{len(found)} files that you have run have a class '{name}': "
            f'{", ".join(map(str, found))}. Name the file: name = "{found[-1].name}" in a recipe '
            f"beside it, or --method {found[-1]}"
        )
    return found[0] if found else None


def _known_otherwise(name: str, marker: str) -> bool:
    """Return whether rescind, an installed package or this script has a class of this name."""
    if in_package(PACKAGE, marker, name) is not None:
        return True
    files = {*_LOADED.values()}
    here = (
        one for module in _in_process() if module not in files for one in classes_in(module, marker)
    )
    return name.lower() in {one.lower() for one in (*here, *map(_promised, _installed()))}


@cache
def _tell_file(name: str, path: Path) -> None:
    """Say it once, not for every cell of a recipe."""
    log.warning("%s: the class of %s, which you have run before", name, path)


class Outside:
    """Finds classes that are in no package of rescind."""

    def find(self, marker: str, name: str) -> type | None:
        """Return the class of this name, ignoring case, or None."""
        for module in self._modules(name):
            for given, cls in classes_in(module, marker).items():
                if given.lower() == name.lower():
                    return cls
        return None

    def names(self, marker: str) -> list[str]:
        """Return the names of classes that are known without running a file."""
        found = [name for module in _in_process() for name in classes_in(module, marker)]
        files = (path for path in _remembered() if path.is_file())
        return [*found, *map(_promised, _installed()), *(n for file in files for n in _in(file))]

    def _modules(self, name: str) -> Iterator[str]:
        """Yield modules that may have a class of this name, loading as few as possible."""
        yield from _in_process()
        for point in _installed():
            if _promised(point).lower() == name.lower():
                yield _loaded(point).__name__
        if (path := _remembered_with(name)) is not None:
            yield load_file(path).__name__


def made_by(marker: str, name: str, made: str, run: str) -> type:
    """Return the class of this name from the file that made a run; refuse any other code.

    A package that was installed may be upgraded, as rescind itself: its class is taken as it is.

    made: the file and its digest, as `code_of` returned them    run: its folder, for the refusal
    """
    wanted = made.rpartition(" ")[2]
    others: list[str] = []
    for cls in (classes_in(module, marker).get(name) for module in _in_process()):
        if cls is not None and code_of(cls).endswith(wanted):
            return cls
        if cls is not None:
            at = file_of(cls)
            others.append(f"{at.parent}/{code_of(cls)}" if at else f"{name}, which has no file")
    for point in _installed():
        if _promised(point) == name:
            return classes_in(_loaded(point).__name__, marker)[name]
    for path in _remembered():
        if not path.is_file() or not _mentions(path, name):
            continue
        if _code(path).endswith(wanted):
            return classes_in(load_file(path).__name__, marker)[name]
        others.append(f"{path.parent}/{_code(path)}")
    raise ConfigError(_other_code(name, made, run, list(dict.fromkeys(others))))


def _other_code(name: str, made: str, run: str, others: list[str]) -> str:
    """Return what made a run, what is there instead, and how to go on."""
    file = made.rpartition(" ")[0]
    gone = [str(path) for path in _remembered() if path.name == file and not path.is_file()]
    where = f", which is no longer at {gone[0]}" if gone else ""
    if not gone and not others:
        where = ", which you have not run on this machine"
    back = (
        f"Put {file} back as it was, or show it once where it is now: "
        f"rescind doctor --method FOLDER/{file}."
    )
    if not others:
        return f"{run} was made by {made}{where}. {back}"
    mine = [other for other in others if f"/{file} " in other]
    others = (mine or others)[:1]  # its own file, not all that ever had a class of this name
    return (
        f"{run} was made by {made}{where}. What is there now is other code: {others[0]}. "
        f"{back} Or train again with the new code: rescind run. If you know that the change is "
        f"harmless, load the run in Python: rescind.load_federation({run!r}, method={name})."
    )


def code_of(cls: type) -> str:
    """Return the file of a class outside rescind, and the digest of its text; "" if it has none."""
    if known := _CODE.get(cls.__module__):
        return known
    path = file_of(cls)
    return "" if path is None else _code(path)


def _in_process() -> list[str]:
    """Return the modules that define a method outside rescind, the newest first."""
    known = dict.fromkeys(reversed(_LOADED.values()))
    from rescind.core.method import Unlearner  # here: who looks for a name needs no torch

    later = [cls.__module__ for cls in _below(Unlearner)]
    others = [name for name in reversed(later) if not name.startswith(("rescind.", "rescind_own"))]
    return [name for name in dict.fromkeys([*known, *others]) if name in sys.modules]


def _below(cls: type) -> Iterator[type]:
    below: type
    for below in type.__subclasses__(cls):
        yield below
        yield from _below(below)


@lru_cache(maxsize=1)
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _promised(point: EntryPoint) -> str:
    return point.attr or point.name


def _loaded(point: EntryPoint) -> ModuleType:
    try:
        module = importlib.import_module(point.module)
    except Exception as error:
        package = point.dist.name if point.dist else point.value
        raise ConfigError(
            f"the method '{_promised(point)}' of the package {package} cannot be loaded: "
            f"{type(error).__name__}: {error}. Mend or remove that package."
        ) from error
    cls = getattr(module, _promised(point), None)
    # A package may define the class in another of its modules than the one it names.
    return sys.modules[cls.__module__] if isinstance(cls, type) else module


def _mentions(path: Path, name: str) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(rf"^class {re.escape(name)}\b", text, re.MULTILINE | re.IGNORECASE) is not None


def _in(path: Path) -> list[str]:
    """Return the names of classes in the text of a file that are made of other classes."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return re.findall(r"^class ([A-Za-z]\w*)\(", text, re.MULTILINE)


def files_of(method: Unlearner) -> tuple[Path, ...]:
    """Return the files that a worker process must load: the method's, and those loaded here."""
    mine = file_of(type(method))
    return tuple(dict.fromkeys([*_LOADED, *([mine] if mine else [])]))


def file_of(cls: type) -> Path | None:
    """Return the file of a class outside rescind, None for those of rescind."""
    if cls.__module__.startswith("rescind."):
        return None
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and Path(file).is_file() else None
