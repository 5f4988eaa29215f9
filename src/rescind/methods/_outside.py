"""Methods outside this package: in a user's own file, or in another installed package.

A class is found by its name in modules of this process that define a method, then in installed
packages (entry point group `rescind.methods`), then in files that this user has run before (their
paths are in `methods.txt` in the keys of the home).

A saved run has the name of its method and the digest of its file, never code: nothing that came
with a run is executed. It is opened with the file of that digest alone (`made_by`), because two
files can have classes of one name, and a file can be edited.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from rescind.core.settings import classes_in, in_package
from rescind.errors import ConfigError, suggest
from rescind.methods._own_file import (
    LEARNS,
    LOADED,
    PACKAGE,
    code_in,
    code_of,
    file_of,
    load_file,
    why_none,
)
from rescind.privacy import keys

log = logging.getLogger(__name__)

GROUP = "rescind.methods"
REMEMBERED = "methods.txt"


def class_name(text: str, marker: str = LEARNS, near: Path | None = None) -> str:
    """Return the name of a class, given as a name, as FILE.py or as FILE.py:Class.

    A file is loaded, and remembered for later commands of this user.

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
        raise ConfigError(f"{path} defines no {kind}. {why_none(module)}")
    if chosen and chosen not in found:
        raise ConfigError(f"{path} has no {kind} '{chosen}'; {suggest(chosen, found)}")
    if not chosen and len(found) > 1:
        each = ", ".join(f"{path}:{name}" for name in found)
        raise ConfigError(f"{path} defines {len(found)} methods. Name one of them: {each}.")
    remember(Path(path))
    return chosen or next(iter(found))


def remember(path: Path) -> None:
    """Note a file, so that later commands find its methods by name."""
    place, path = keys.folder() / REMEMBERED, path.expanduser().resolve()
    if path in _remembered():
        return
    keys.private_folder()
    with open(place, "a", encoding="utf-8") as file:  # one short line: written at once
        file.write(f"{path}\n")


def _remembered() -> list[Path]:
    try:
        lines = (keys.folder() / REMEMBERED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [Path(line) for line in reversed(lines) if line]


def _remembered_with(name: str) -> Path | None:
    """Return the file that this user has run and that has a class of this name, or None."""
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
    files = {*LOADED.values()}
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
        if code_in(path).endswith(wanted):
            return classes_in(load_file(path).__name__, marker)[name]
        others.append(f"{path.parent}/{code_in(path)}")
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


def _in_process() -> list[str]:
    """Return the modules that define a method outside rescind, the newest first."""
    known = dict.fromkeys(reversed(LOADED.values()))
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
