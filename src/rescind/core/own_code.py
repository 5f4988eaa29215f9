"""Checks of what a method's functions return, with words for its author.

Shapes are checked for every method. What costs time is asked only of methods outside this package:
no test here has seen them.
"""

from __future__ import annotations

import inspect
import random  # noqa: TID251 - to see whether others draw from it
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from rescind.core.cohort import Cohort
from rescind.core.params import Params
from rescind.core.returns import ANSWERS, Unchanged, ours
from rescind.core.update import Rows, Sum, Update
from rescind.errors import BoundaryError, ConfigError

P = ParamSpec("P")
T = TypeVar("T")
ROUNDING = 1e-3
"""Of the largest value: two sums on a GPU differ by less, because it adds in any order."""

_KNOWN = {"rescind", "torch", "numpy", *sys.stdlib_module_names}
_STANDARD = sysconfig.get_path("stdlib")
_MADE = 1 << 9
"""Of the flags of a type: Python code made it."""
_ASKED = {"checked_sum": "client_train"}
"""What an author has written of a function that is asked with checks."""


def outside(method: object) -> bool:
    """Return whether a method, or its model, is defined outside rescind."""
    parts = (method, getattr(method, "model", method))
    return any(not ours(type(part)) for part in parts)


def foreign(*parts: object) -> list[type | FunctionType]:
    """Return the classes and functions of others that parts are made of or configured with."""
    found: list[type | FunctionType] = []
    todo, seen = [*parts], dict[int, object]()
    while todo:
        part = todo.pop()
        if id(part) in seen or isinstance(part, ModuleType):
            continue
        seen[id(part)] = part  # also holds it: another object may not get its identity
        written = part if isinstance(part, type | FunctionType) else type(part)
        classes = written.__mro__ if isinstance(written, type) else (written,)
        found += [one for one in classes if not (_known(one) or one in found)]
        if not isinstance(part, type):
            todo += _within(part)
    return found


def strangers(callbacks: Iterable[Any]) -> list[type | FunctionType]:
    """Return what others wrote among callbacks: they get a round's tensors, and may change them."""
    called = [each.__func__ if isinstance(each, MethodType) else each for each in callbacks]
    called = [*called, *(each.func for each in called if isinstance(each, partial))]
    written = [each if isinstance(each, type | FunctionType) else type(each) for each in called]
    return [each for each in written if not _known(each)]


def _within(part: Any) -> list[Any]:
    """Return the objects that an object holds."""
    if isinstance(part, partial):
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(part, MethodType):
        return [part.__func__, part.__self__]
    held = [*getattr(part, "__dict__", {}).values()]
    if isinstance(part, Mapping):
        return [*held, *part.values()]
    return [*held, *part] if isinstance(part, tuple | list | set | frozenset) else held


def _known(part: type | FunctionType) -> bool:
    """Return whether rescind or what it stands on has this. Anybody can write a `__module__`."""
    if isinstance(part, type) and part.__module__ == "builtins":
        return not part.__flags__ & _MADE
    module = sys.modules.get(part.__module__)
    name = part.__module__.partition(".")[0]
    if module is None or name not in _KNOWN:
        return False
    file = getattr(module, "__file__", None) or _STANDARD  # compiled in: it has no file
    if name in sys.stdlib_module_names and not file.startswith(_STANDARD):
        return False  # a script's own turtle.py comes before that of Python
    if isinstance(part, FunctionType) and part.__globals__ is vars(module):
        return True  # also within another function
    try:
        return attrgetter(part.__qualname__)(module) is part
    except AttributeError:
        return False


def check_written(cls: type) -> None:
    """Refuse a class from outside in which something that its author wrote would not count.

    A setting without a type keeps the value of the class above, or nobody can set it, and a
    misspelt function is never called: the run would be of another method than its author believes.
    """
    for part in cls.__mro__:
        if ours(part):
            continue
        above = part.__mro__[1:]
        settings = {f.name for base in above if is_dataclass(base) for f in fields(base)}
        typed = inspect.get_annotations(part)
        known = {n for base in above for n, one in vars(base).items() if inspect.isfunction(one)}
        for name, value in vars(part).items():
            if inspect.isfunction(value):
                _check_spelling(part, name, {one for one in known if one[0] != "_"})
                _check_arguments(part, name, value)
            elif name in settings and name not in typed and not isinstance(value, property):
                raise ConfigError(
                    f"{part.__name__} sets {name} without a type, so it would not count. Write "
                    f"{name}: {type(value).__name__} = ... in the class."
                )
            elif name not in typed and _new_value(name, value, above):
                raise ConfigError(
                    f"{part.__name__} sets {name} without a type, so nobody could set it. For a "
                    f"setting write {name}: {type(value).__name__} = ... in the class, for a "
                    f"constant {name}: ClassVar = ..., or a name in capitals."
                )


def _new_value(name: str, value: Any, above: tuple[type, ...]) -> bool:
    """Return whether an attribute is a plain value with a name that no class above knows."""
    if name[0] == "_" or name != name.lower() or callable(value) or hasattr(value, "__get__"):
        return False
    return not any(hasattr(base, name) for base in above)


def _check_spelling(cls: type, name: str, known: set[str]) -> None:
    near = [] if name[0] == "_" or name in known else get_close_matches(name, known, 1, 0.85)
    if near:
        raise ConfigError(f"{cls.__name__}.{name} is never called: did you mean '{near[0]}'?")


def _check_arguments(cls: type, name: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called as that of the class above is."""
    above = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), None)
    if name not in ANSWERS or not inspect.isfunction(above):
        return
    wanted, written = inspect.signature(above).parameters, inspect.signature(function)
    try:
        written.bind(*wanted)
    except TypeError:
        raise ConfigError(
            f"{cls.__name__}.{name} takes ({', '.join(written.parameters)}), but is called with "
            f"({', '.join(wanted)})."
        ) from None


# -- random numbers -------------------------------------------------------------------------------


def repeatable(method: object, function: Callable[P, T], twice: bool) -> Callable[P, T]:
    """Return a function of a method that refuses, if it is from outside, draws that are not ours.

    It calls the function a second time if a generator of this process has moved meanwhile, and
    refuses a second answer that differs. So a layer of torch.nn that gets other values is no error.

    twice: call it a second time in any case; this finds generators that nobody else can see
    """
    if not outside(method):
        return function
    if getattr(method, "additive", False) and getattr(method, "noise", 0):
        twice = False  # privacy noise comes from the operating system, and has to differ
    written = inspect.signature(function)
    name = _ASKED.get(function.__name__, function.__name__)

    def asked(*given: P.args, **named: P.kwargs) -> T:
        before, given_to = _generators(), written.bind(*given, **named)
        unchanged = Unchanged(given_to.arguments, copy=False)
        first = function(*given, **named)
        unchanged.check(f"{type(method).__name__}.{name}")  # in code of a model, too
        if (twice or _generators() != before) and not alike(first, function(*given, **named)):
            raise ConfigError(
                f"two calls of {type(method).__name__}.{name} with the same arguments differ, so "
                f"forgetting would not be exact. Draw from the clock (clock.uniform), and keep "
                f"nothing between calls."
            )
        return first

    return asked


def _generators() -> tuple[Any, ...]:
    """Return the states of the generators that this process shares."""
    _, key, place, *kept = np.random.get_state(legacy=True)  # noqa: TID251 - as above
    shared = torch.get_rng_state().numpy().tobytes()
    return shared, np.asarray(key).tobytes(), place, kept, random.getstate()


def alike(one: Any, two: Any) -> bool:
    """Return whether two answers of a function are the same, bit for bit on a CPU."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return _same_values(one, two)
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(alike(one[name], two[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(alike, one, two))
    if is_dataclass(one):
        return all(alike(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))
    return not isinstance(one, int | str) or one == two


def _same_values(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if torch.equal(one, two):
        return True
    if one.device.type == "cpu":
        return bool(((one == two) | (one.isnan() & two.isnan())).all())
    near = ROUNDING * float(one.abs().max())
    return torch.allclose(one.double(), two.double(), rtol=0, atol=near, equal_nan=True)


# -- shapes ---------------------------------------------------------------------------------------


def check_update(update: Update, method: object, cohort: Cohort) -> None:
    """Refuse parts of an update that do not fit each other; they would fail far from here."""
    name = f"{type(method).__name__}.client_train"
    if update.clients != len(cohort):
        raise BoundaryError(
            f"{name}: an update of {update.clients} clients; expected {len(cohort)}."
        )
    for entry, rows in update.entries.items():
        told = f"what {name} returned as '{entry}'"
        if isinstance(rows, Rows):
            _check_lengths(rows, told)
            if outside(method):
                _check_range(rows.owner, update.clients, f"{told} has an owner", "clients")
                _check_range(rows.index, rows.size, f"{told} has an index", "rows of the table")
        elif rows.shape[:1] != (update.clients,):
            raise BoundaryError(f"{told} is {list(rows.shape)}; expected [{update.clients}, ...].")


def _check_lengths(rows: Rows, told: str) -> None:
    shapes = [list(part.shape) for part in (rows.owner, rows.index, rows.value)]
    if shapes[0] == shapes[1] == shapes[2][:1]:
        return
    raise BoundaryError(f"{told} has owner, index and value of {shapes}; expected one length.")


def _check_range(numbers: Tensor, size: int, told: str, what: str) -> None:
    if not len(numbers):
        return
    least, most = (int(end) for end in torch.aminmax(numbers))
    if least < 0 or most >= size:
        wrong = least if least < 0 else most
        raise BoundaryError(
            f"{told} {wrong}; expected 0 to {size - 1}, as there are {size} {what}."
        )


def check_totals(summed: Sum, method: object, public: Params) -> None:
    """Refuse totals of another shape than the public parameters of their names."""
    for name, total in summed.totals.items():
        if name in public and total.shape != public[name].shape:
            raise BoundaryError(
                f"what {type(method).__name__}.client_train returned as '{name}' adds up to "
                f"{list(total.shape)}; expected {list(public[name].shape)}, as the public one."
            )
