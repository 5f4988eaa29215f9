"""What each function of a method must return, held to by the classes of other authors.

A forgotten `return` would fail far away, in code that its author has never seen. So the functions
of a class from outside rescind are wrapped as the class is made; those of rescind stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import getattr_static, isfunction
from typing import Any

from rescind.errors import BoundaryError


@dataclass(frozen=True)
class Answer:
    """What a function returns: in words, as a test, and how to write it."""

    words: str
    fits: Callable[[Any], bool]
    write: str


def is_a(*kinds: str) -> Callable[[Any], bool]:
    """Return a test for instances of classes with these names, which import this file."""
    return lambda made: any(cls.__name__ in kinds for cls in type(made).__mro__)


def _tensors(values: Any) -> bool:
    """Return whether these are tensors by name. Only a dict is read: a table may be large."""
    if isinstance(values, dict):
        return all(map(is_a("Tensor"), values.values()))
    return isinstance(values, Mapping)


def _state(made: Any) -> bool:
    return is_a("ServerState")(made) and _tensors(made.public)


def _private(made: Any) -> bool:
    return is_a("Private")(made) and _tensors(made.values)


def _pair(made: Any, kind: str) -> bool:
    two = isinstance(made, tuple | list) and len(made) == 2
    return two and is_a(kind)(made[0]) and _private(made[1])


def _rows_by_name(made: Any) -> bool:
    return isinstance(made, Mapping) and all(map(is_a("Rows"), made.values()))


def _steps(made: Any) -> bool:
    return isinstance(made, tuple | list) and bool(made) and all(map(is_a("Step"), made))


_STATE = ("a ServerState of Tensors by name", _state)
_PRIVATE = ("a Private of Tensors by name", _private)
_TENSOR = is_a("Tensor")
ANSWERS = {
    "server_init": Answer(*_STATE, 'ServerState({"item": table})'),
    "server_sample": Answer("a Tensor of ids [k]", _TENSOR, "ids"),
    "server_mail": Answer("Mail or None", is_a("Mail", "NoneType"), "Mail(...)"),
    "server_step": Answer(*_STATE, 'state.next({"item": table})'),
    "server_turn": Answer(*_STATE, "super().server_turn(state, world, clock)"),
    "client_init": Answer(*_PRIVATE, 'Private({"user": rows}), or Private({}) for none'),
    "client_weight": Answer("a Tensor [C]", _TENSOR, "a number per client, as floats"),
    "client_steps": Answer("a tuple of Step", _steps, "(Step(...),)"),
    "client_plan": Answer("Plan", is_a("Plan"), "Plan(...)"),
    "client_loss": Answer("a Tensor [C]", _TENSOR, "one number per client"),
    "client_train": Answer(
        "(Update, Private)", lambda made: _pair(made, "Update"), "Update(...), private"
    ),
    "client_sum": Answer("(Sum, Private)", lambda made: _pair(made, "Sum"), "Sum(...), private"),
    "client_answer": Answer("a Tensor [n]", _TENSOR, "one number per record"),
    "client_log": Answer("Rows by name", _rows_by_name, '{"item": rows}, or {} for nothing'),
    "client_turn": Answer(*_PRIVATE, "private, or private.with_(name=values)"),
    "client_scores": Answer("a Tensor [C, I]", _TENSOR, "a row per client and a column per item"),
    "forget": Answer("Federation", is_a("Federation"), "the federation after the request"),
}
"""By function, as the table of docs/methods.md lists them."""


def hold_to_answers(cls: type) -> None:
    """Let each function of a new class that is not of rescind refuse another kind of answer."""
    for name, answer in ANSWERS.items():
        function = getattr_static(cls, name, None)
        if isfunction(function) and not _ours(function) and not hasattr(function, "held_to"):
            setattr(cls, name, _held(f"{cls.__name__}.{name}", function, answer))


def _ours(function: Callable[..., Any]) -> bool:
    return function.__module__.partition(".")[0] == "rescind"


def _held(name: str, function: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    @wraps(function)
    def asked(*given: Any, **named: Any) -> Any:
        made = function(*given, **named)
        if not answer.fits(made):
            raise BoundaryError(
                f"{name} returned {_told(made)}; expected {answer.words}. "
                f"Change that function: return {answer.write}."
            )
        return made

    asked.held_to = answer  # type: ignore[attr-defined]
    return asked


def _told(made: Any) -> str:
    """Return the kind of an answer in words, with the kinds of its parts."""
    if made is None:
        return "None"
    if isinstance(made, tuple):
        return f"({', '.join(map(_told, made))})"
    if isinstance(made, dict):
        return f"{{{', '.join(f'{name!r}: {_told(value)}' for name, value in made.items())}}}"
    if is_a("ServerState")(made):
        return f"ServerState({_told(made.public)})"
    if is_a("Private")(made) and not _private(made):
        return f"Private({_told(made.values)})"
    return "a numpy array" if is_a("ndarray")(made) else type(made).__name__
