"""Methods and models as they are described in a file: their settings, without their code.

A table of results needs the settings of each cell and nothing that computes, so it can be shown
without torch. `methods/settings.json` is written by `python -m rescind_papers.stubs`. A class made
here has the fields, defaults and presets of the real one. It does not check whether a value is in
its range; that is done when the cell is run.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache, reduce
from importlib.resources import files
from operator import or_
from typing import Any, Literal, Union, get_args, get_origin

from rescind.core.settings import checked, chosen, classes, fields_of, from_table, plain
from rescind.errors import ConfigError, RescindError
from rescind.storage.kinds import METHODS, MODELS, UNLEARNERS

FILE = ("methods", "settings.json")
"""Where the description lies in the package."""
KINDS = {"learner": METHODS, "unlearner": UNLEARNERS, "model": MODELS}
FACTS = ("seedless", "control", "task", "renamed")
"""What tables and digests read of a class beside its fields."""
MODEL = "model"
"""The type of a field that holds a model."""
_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "none": type(None)}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def find(package: str, marker: str, name: str) -> type:
    """Return a class with the settings of the one of this name; raise if it is not described."""
    known = _described()
    real = {one.lower(): one for one in known}.get(name.lower())
    kinds = {KINDS[kind] for kind in known[real]["kinds"]} if real else set()
    if real is None or (package, marker) not in kinds:
        raise ConfigError(f"no class '{name}' is described.")
    return _class(real)


def spelt(name: str) -> str | None:
    """Return a method's name as its class has it, given in any case; None if not described."""
    methods = [one for one, said in _described().items() if said["kinds"] != [MODEL]]
    return {one.lower(): one for one in methods}.get(name.lower())


def knows(name: str) -> bool:
    """Return whether a method of this name is described, ignoring case."""
    return spelt(name) is not None


@cache
def _described() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("rescind").joinpath(*FILE).read_text("utf-8"))
    return found


@cache
def _class(name: str) -> type:
    said = _described()[name]
    space = {**said["facts"], "presets": tuple(said["presets"]), "__module__": __name__}
    space |= {KINDS[kind][1]: None for kind in said["kinds"]}
    space |= {preset: _maker(given) for preset, given in said["presets"].items()}
    made = [(one, *_field(one, about)) for one, about in said["fields"].items()]
    return make_dataclass(name, made, namespace=space, frozen=True, kw_only=True)


def _maker(said: Mapping[str, Any]) -> Any:
    """Return the class method of a preset: its settings, changed by those that are given."""

    def make(cls: type, /, **others: Any) -> Any:
        given = said["with"].get(type(others.get(MODEL)).__name__, said["alone"])
        if given is None:
            raise ConfigError("this preset is not described.")
        table = {**given, **{name: plain(value) for name, value in others.items()}}
        return from_table(cls, table, {MODEL: MODELS}, find)

    return classmethod(make)


def _field(name: str, about: Mapping[str, Any]) -> tuple[Any, Any]:
    hint = _read(about["type"])
    if "default" not in about:
        return hint, field()
    value = about["default"]
    if about["type"] == MODEL:
        return hint, field(default=from_table(find(*MODELS, value["name"]), value, {}, find))
    return hint, field(default=checked(value, hint, name))


def _read(said: Any) -> Any:
    if isinstance(said, str):
        return Any if said == MODEL else _TYPES[said]
    ((how, parts),) = said.items()
    if how == "one of":
        return Literal[tuple(parts)]
    inside = tuple(_read(part) for part in parts)
    if how == "any of":
        return reduce(or_, inside)
    return types.GenericAlias(tuple, (*inside, ...) if how == "list" else inside)


# -- writing the description ----------------------------------------------------------------------


def describe(cls: type) -> dict[str, Any]:
    """Return what the file says of a class."""
    hints = fields_of(cls)
    kinds = [name for name, (at, marker) in KINDS.items() if _is(cls, at, marker)]
    fixed = {f.name for f in fields(cls) if not f.init and f.default is not MISSING}
    facts = {name: getattr(cls, name) for name in (*FACTS, *sorted(fixed)) if hasattr(cls, name)}
    said: dict[str, Any] = {
        "kinds": kinds,
        "facts": {name: v for name, v in facts.items() if not isinstance(v, property)},
        "fields": {f.name: _said(f, hints[f.name]) for f in fields(cls) if f.init},
    }
    presets = getattr(cls, "presets", ())
    return said | {"presets": {name: _given(getattr(cls, name)) for name in presets}}


def _is(cls: type, package: str, marker: str) -> bool:
    return cls.__module__.startswith(f"{package}.") and hasattr(cls, marker)


def _given(preset: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings that a preset changes: alone, and with a model where they differ."""
    alone = _made(preset)
    said = {model: _made(preset, **{MODEL: cls()}) for model, cls in classes(*MODELS).items()}
    same = None if alone is None else alone | {MODEL: None}
    other = {m: t for m, t in said.items() if t is not None and t | {MODEL: None} != same}
    return {"alone": alone, "with": other}


def _made(preset: Callable[..., Any], **given: Any) -> dict[str, Any] | None:
    try:
        return _changed(preset(**given))
    except (RescindError, TypeError, AttributeError):  # a preset without a model, or this one
        return None


def _changed(made: Any) -> dict[str, Any]:
    names = chosen(made).keys() & fields_of(type(made)).keys()
    return {name: plain(getattr(made, name)) for name in sorted(names)}


def _said(one: Field[Any], hint: Any) -> dict[str, Any]:
    value = one.default if one.default_factory is MISSING else one.default_factory()
    kind = _written(hint)
    return {"type": kind} if value is MISSING else {"type": kind, "default": plain(value)}


def _written(hint: Any) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"one of": list(inside)}
    if origin in (Union, types.UnionType):
        return {"any of": [_written(part) for part in inside]}
    if origin is tuple:
        if len(inside) == 2 and inside[1] is Ellipsis:
            return {"list": [_written(inside[0])]}
        return {"entries": [_written(part) for part in inside]}
    return _NAMES.get(hint, MODEL)
