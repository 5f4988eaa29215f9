"""Frozen dataclasses as configuration: find them by name, write them as tables, read them back.

A table has the fields of a class. An unknown key or a value of the wrong type is an error.
"""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import pkgutil
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, Protocol, Union, cast, get_args, get_origin, get_type_hints

from rescind.errors import ConfigError, suggest

NONE = "none"
"""None in a table, because TOML has no null."""
Kind = tuple[str, str]
"""A package of classes, and an attribute that those of this kind have."""
Find = Callable[[str, str, str], type]
"""Finds a class: package, attribute, name."""
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


class Finder(Protocol):
    """Finds classes that are in no package of rescind, such as a user's own method."""

    def find(self, marker: str, name: str) -> type | None: ...

    def names(self, marker: str) -> Iterable[str]: ...


_FINDERS: list[Finder] = []


def look_also(finder: Finder) -> None:
    """Ask this finder, too, when a package has no class of a name."""
    _FINDERS.append(finder)


def look_again() -> None:
    """Look for classes anew: a package has got more modules."""
    classes.cache_clear()
    _modules.cache_clear()


@lru_cache(maxsize=32)
def classes(package: str, marker: str, private: bool = False) -> dict[str, type]:
    """Return the concrete dataclasses of a package that have the attribute `marker`.

    private: those whose names begin with _ instead
    """
    found: dict[str, type] = {}
    for module in _modules(package):
        found |= classes_in(module, marker, private)
    return dict(sorted(found.items()))


def classes_in(module: str, marker: str, private: bool = False) -> dict[str, type]:
    """Return the concrete dataclasses that a module defines and that have this attribute."""
    found = {}
    for name, value in inspect.getmembers(importlib.import_module(module), inspect.isclass):
        if value.__module__ != module or inspect.isabstract(value):
            continue
        if is_dataclass(value) and hasattr(value, marker) and name.startswith("_") == private:
            found[name] = cast(type, value)
    return found


@lru_cache(maxsize=8)
def _modules(package: str) -> dict[str, frozenset[str] | None]:
    """Return the modules of a package, and the lower-case names of the classes in their text.

    None instead of names: there is no text to read.
    """
    found: dict[str, frozenset[str] | None] = {}
    home = importlib.import_module(package)
    for info in pkgutil.walk_packages(home.__path__, f"{package}."):
        if "._" in info.name:  # helpers of methods, without public classes
            continue
        spec = find_spec(info.name)
        read = getattr(spec.loader if spec else None, "get_source", None)
        text = None if read is None else read(info.name)
        found[info.name] = None if text is None else frozenset(_CLASS.findall(text.lower()))
    return found


def sought(package: str, marker: str, name: str) -> type | None:
    """Return the class of this name, ignoring case, or None: of the package, or of a finder."""
    cls = in_package(package, marker, name)
    others = (finder.find(marker, name) for finder in _FINDERS) if cls is None else ()
    return cls or next((other for other in others if other is not None), None)


def in_package(package: str, marker: str, name: str) -> type | None:
    """Return the class of this name, ignoring case, or None. Imports only modules that define it.

    Importing all methods takes a third of the time of a short command.
    """
    wanted = name.lower()
    for module, names in _modules(package).items():
        if names is None or wanted in names:
            for given, cls in classes_in(module, marker, name.startswith("_")).items():
                if given.lower() == wanted:
                    return cls
    return None


def find(package: str, marker: str, name: str) -> type:
    """Return the class of this name, ignoring case, or raise with a suggestion."""
    cls = sought(package, marker, name)
    if cls is not None:
        return cls
    kind = package.rsplit(".", 1)[-1].rstrip("s")
    known = [*classes(package, marker, private=name.startswith("_"))]
    known += [one for finder in _FINDERS for one in finder.names(marker)]
    raise ConfigError(f"there is no {kind} '{name}': {suggest(name, known)}")


def to_table(value: Any) -> dict[str, Any]:
    """Return a dataclass as a table for TOML: its class as "name", then every field."""
    given = {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.init}
    return {"name": type(value).__name__, **given}


def chosen(value: Any) -> dict[str, Any]:
    """Return a table as `to_table` does, but only of the fields that differ from their defaults."""
    table: dict[str, Any] = {"name": type(value).__name__}
    for old, new in getattr(value, "renamed", {}).items():
        if not getattr(value, new):
            table[old] = False
    for field in fields(value):
        if not field.init:
            continue
        mine, made = getattr(value, field.name), field.default_factory
        if mine != (field.default if made is MISSING else made()):
            nested = is_dataclass(mine) and not isinstance(mine, type)
            table[field.name] = chosen(mine) if nested else plain(mine)
    return table


@lru_cache(maxsize=512)
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def fields_of(cls: type) -> dict[str, Any]:
    """Return the names and annotated types of a dataclass's fields."""
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def refuse_unknown(cls: type, given: Iterable[str]) -> None:
    """Refuse settings that a class does not have, and name those that it has."""
    known = [field.name for field in fields(cls) if field.init]
    for name in given:
        if name not in known:
            raise ConfigError(f"{cls.__name__} has no setting '{name}'; {suggest(name, known)}")


def plain(value: Any) -> Any:
    """Return a value as it stands in a table."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_table(value)
    if value is None:
        return NONE
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


def from_table(
    cls: type, table: Mapping[str, Any], nested: Mapping[str, Kind], look: Find = find
) -> Any:
    """Build `cls` from a table; `preset` names a class method to call with the fields.

    nested: field name -> kind of the classes that are allowed in this field    look: finds them
    """
    name = str(table.get("name", cls.__name__))
    if name.lower() != cls.__name__.lower():
        raise ConfigError(f"a table for {cls.__name__} has the name '{name}'. Change the name.")
    given = {key: value for key, value in table.items() if key not in ("name", "preset")}
    hints = _hints(cls)
    known = {field.name: field for field in fields(cls) if field.init}
    values = {}
    for key, raw in given.items():
        if key not in known:
            raise ConfigError(f"{cls.__name__} has no field '{key}'; {suggest(key, known)}")
        values[key] = (
            _nested(cls, key, raw, nested, look)
            if key in nested
            else checked(raw, hints[key], f"{cls.__name__}.{key}")
        )
    preset = table.get("preset")
    presets = getattr(cls, "presets", ())
    if preset is not None and preset not in presets:
        raise ConfigError(f"{cls.__name__} has no preset '{preset}'; {suggest(preset, presets)}")
    build = cls if preset is None else getattr(cls, preset)
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [n for n in needed if n not in values and preset is None]
    if missing:
        raise ConfigError(f"{cls.__name__} needs {', '.join(missing)}. Add it to the table.")
    return build(**values)


def _nested(cls: type, key: str, raw: Any, nested: Mapping[str, Kind], look: Find) -> Any:
    package, marker = nested[key]
    if is_dataclass(raw):
        return raw
    table = {"name": raw} if isinstance(raw, str) else raw
    if isinstance(table, Mapping) and "name" not in table:  # changes the default model
        default = next(field.default for field in fields(cls) if field.name == key)
        if is_dataclass(default):
            table = {**to_table(default), **table}
    if not isinstance(table, Mapping) or "name" not in table:
        names = ", ".join(classes(package, marker))
        raise ConfigError(f"{cls.__name__}.{key} must name one of {names}; got {raw!r}.")
    return from_table(look(package, marker, str(table["name"])), table, nested, look)


def checked(value: Any, hint: Any, where: str) -> Any:
    """Return the value as the annotated type, or raise with what is allowed."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(None) in inside and value in (None, NONE):
            return None
        others = [h for h in inside if h is not type(None)]
        for other in others:
            try:
                return checked(value, other, where)
            except ConfigError:
                if len(others) == 1:
                    raise
        raise ConfigError(f"{where} must be {_allowed(others)}; got {value!r}.")
    if origin is Literal:
        if value not in inside:
            raise ConfigError(f"{where} must be {_allowed([hint])}; got {value!r}.")
        return value
    if origin is tuple:
        return _entries(value, inside, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Any:
        return value
    if not isinstance(hint, type):
        raise ConfigError(f"{where} has a type that cannot be read from a table: {hint}.")
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ConfigError(f"{where} must be {_allowed([hint])}; got {value!r}.")
    return value


def check_positive(where: str, value: float) -> None:
    """Raise unless a number is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{where} must be a finite number above 0, got {value}.")


def whole(where: str, value: Any) -> int:
    """Return a whole number of at least 0, of any library's type; raise for all else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"{where} must be a whole number of at least 0, got {value!r}.")
    return number


_PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
"""The types of settings in words that recipes are read with."""


def _allowed(kinds: Sequence[Any]) -> str:
    words = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            words.append(f"one of {', '.join(map(repr, get_args(kind)))}")
        else:
            plain = _PLAIN.get(kind, f"of type {getattr(kind, '__name__', kind)}")
            words.append("a list" if get_origin(kind) is tuple else plain)
    return ", or ".join(words)


def _entries(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """Return a list as a tuple: of `tuple[int, ...]`, or of one type per entry."""
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} must be a list; got {value!r}.")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ConfigError(f"{where} must have {len(kinds)} entries; got {value!r}.")
    return tuple(checked(v, kind, where) for v, kind in zip(value, kinds, strict=True))
