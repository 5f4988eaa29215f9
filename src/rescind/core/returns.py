"""What each function of a method must return, held to by the classes of other authors.

A forgotten `return` would fail far away, in code that its author has never seen. So the functions
of a class from outside rescind are wrapped as the class is made; those of rescind stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import getattr_static, isfunction, signature
from typing import Any

import torch

from rescind.core.in_place import Unchanged
from rescind.errors import BoundaryError


@dataclass(frozen=True)
class Answer:
    """What a function returns: in words, as a test, and how to write it."""

    words: str
    fits: Callable[[Any], bool]
    write: str
    wrong: Callable[[Any, Sequence[Any]], str] | None = None
    """What is wrong with an answer of the right kind, given the arguments (self first)."""


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


_NOBODY = torch.zeros(0, dtype=torch.int64)


# -- sizes, by the arguments ----------------------------------------------------------------------


def _not_of(made: Any, wanted: Sequence[int], of: str) -> str:
    return "" if made.shape == (*wanted,) else f"{list(made.shape)}; expected {list(wanted)}, {of}"


def _wrong_tables(state: Any, method: Any, world: Any, before: Any = None) -> str:
    """Say which table by item of the method's model is missing, or has rows for other items."""
    items, public = world.sizes.items, state.public
    learns = hasattr(method, "client_loss")  # from the model, so that its tables must be there
    for name in method.model.tables:
        if name not in public:
            if learns if before is None else name in before.public:
                there = ", ".join(map(repr, public)) or "nothing"
                return f"{there}; expected '{name}', too, a table that {_model(method)} reads"
        elif public[name].shape[:1] != (items,):
            shape = list(public[name].shape)
            return f"'{name}' as {shape}; expected [{items}, ...], a row for each item"
        elif learns and before is not None and name in before.public:
            shape, wanted = list(public[name].shape), [items, *before.public[name].shape[1:]]
            if shape != wanted:
                return f"'{name}' as {shape}; expected {wanted}, as before"
            other = _other_kind(name, public[name], before.public[name], "as before")
            if other and _reads(method, "client_init"):
                return other
    return ""


def _unlike_model(state: Any, method: Any, world: Any, clock: Any) -> str:
    """Say which first value has another width or kind than the model's own.

    Compiled code would read past the end of the model's private rows.
    """
    if not _reads(method, "client_init") or not method.model.private(_NOBODY, clock):
        return ""
    first = method.model.public(replace(world.sizes, items=1), clock)
    return _unlike(state.public, first, method.model.tables, _model(method))


def _reads(method: Any, beside: str) -> bool:
    """Return whether functions of rescind read what a method returns, and models say what fits.

    beside: the function that makes the other half, which could be of another width as well
    """
    cls, model = type(method), type(method.model)
    if not hasattr(method, "client_loss"):
        return False
    known = ours(model.public) and ours(model.private) and ours(getattr(cls, beside))
    learns = ours(cls.client_loss) and ours(cls.client_train)
    return known and (ours(cls.client_scores) or learns)


def _unlike(made: Any, wanted: Any, by_row: Sequence[str], model: str) -> str:
    """Say what differs from a model's values. by_row: names with a row for each item or client"""
    for name, like in wanted.items():
        if name not in made:
            continue
        free = made[name].shape[:1] if name in by_row else ()
        if wrong := _not_of(made[name], [*free, *like.shape[len(free) :]], f"as {model} makes it"):
            return f"'{name}' as {wrong}"
        if wrong := _other_kind(name, made[name], like, f"as {model} makes it"):
            return wrong
    return ""


def _other_kind(name: str, made: Any, like: Any, why: str) -> str:
    if made.dtype == like.dtype:
        return ""
    has, wanted = (str(one.dtype).removeprefix("torch.") for one in (made, like))
    write = ".float()" if wanted == "float32" else f".to({like.dtype})"
    return f"'{name}' as {has}; expected {wanted}, {why}. Write {write} behind it."


def _wrong_round(state: Any, before: Any) -> str:
    """Say that a round would not count: the next one would draw the same numbers again."""
    if state.round == before.round + 1:
        return ""
    if state.round == before.round + 2:
        return (
            f"a state after round {state.round}; expected one after round {before.round + 1}: "
            f"next was called twice, also by super().server_step. Take the values of what that "
            f"returned, made, and call next on the state that was given: return "
            f'state.next({{**made.public, "item": table}}, made.own).'
        )
    return f"a state after round {state.round}; expected one after round {before.round + 1}"


def _lost(state: Any, before: Any) -> str:
    """Say which public value is left out: clients of the next round would look for it."""
    lost = [name for name in before.public if name not in state.public]
    there = ", ".join(map(repr, state.public)) or "nothing"
    return f"{there}; expected '{lost[0]}', too, which was public before" if lost else ""


def _model(method: Any) -> str:
    return type(method.model).__name__


def _wrong_rows(private: Any, method: Any, ids: Any, clock: Any) -> str:
    for name, rows in private.values.items():
        if rows.shape[:1] != ids.shape:
            return f"'{name}' as {list(rows.shape)}; expected [{len(ids)}, ...], a row for each id"
    read = method.model.private(ids[:0], clock) if hasattr(method, "client_loss") else ()
    if missing := [name for name in read if name not in private.values]:
        there = ", ".join(map(repr, private.values)) or "nothing"
        return f"{there}; expected '{missing[0]}', too, which {_model(method)} reads"
    if read and _reads(method, "server_init"):
        return _unlike(private.values, read, tuple(read), _model(method))
    return ""


def _wrong_loss(loss: Any, cohort: Any) -> str:
    """Say that a loss mixes clients, as a mean of all would, or that nothing learns from it."""
    if not loss.requires_grad:
        return (
            "a loss that no trained value has a part in; expected one that is computed from "
            "work.rows and work.own, without detach()"
        )
    return _not_of(loss, [len(cohort)], "one number per client, so that clients do not mix")


def _wrong_ids(ids: Any, clients: int) -> str:
    """Say why these ids are no sample: -1, or an id that comes twice, would be taken in silence."""
    if str(ids.dtype) != "torch.int64" or ids.dim() != 1:
        return f"{list(ids.shape)} of {ids.dtype}; expected ids [k] of torch.int64"
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < clients:
        return f"ids from {int(ids.min())} to {int(ids.max())}; expected 0 to {clients - 1}"
    if bool((ids[1:] <= ids[:-1]).any()):
        return "ids out of order, or one of them twice; expected them sorted, each once"
    return ""


_STATE = ("a ServerState of Tensors by name", _state)
_PRIVATE = ("a Private of Tensors by name", _private)
_TENSOR = is_a("Tensor")
ANSWERS = {
    "server_init": Answer(
        *_STATE, 'ServerState({"item": table})',
        lambda made, given: _wrong_tables(made, *given[:2]) or _unlike_model(made, *given[:3]),
    ),
    "server_sample": Answer(
        "a Tensor of ids [k]", _TENSOR, "ids.unique(), for example",
        lambda made, given: _wrong_ids(made, given[2].sizes.clients),
    ),
    "server_mail": Answer("Mail or None", is_a("Mail", "NoneType"), "Mail(...)"),
    "server_step": Answer(
        *_STATE, 'state.next({"item": table})',
        lambda made, given: _wrong_round(made, given[1]) or _lost(made, given[1])
        or _wrong_tables(made, given[0], given[3], given[1]),
    ),
    "server_turn": Answer(
        *_STATE, "super().server_turn(state, world, clock)",
        lambda made, given: _wrong_tables(made, given[0], given[2], given[1]),
    ),
    "client_init": Answer(
        *_PRIVATE, 'Private({"user": rows}), or Private({}) for none',
        lambda made, given: _wrong_rows(made, *given[:3]),
    ),
    "client_weight": Answer(
        "a Tensor [C]", _TENSOR, "a number per client, as floats",
        lambda made, given: _not_of(made, [len(given[1])], "a number per client"),
    ),
    "client_steps": Answer("a tuple of Step", _steps, "(Step(...),)"),
    "client_plan": Answer("Plan", is_a("Plan"), "Plan(...)"),
    "client_loss": Answer(
        "a Tensor [C]", _TENSOR, "jagged.segment_sum(values, owner, len(cohort)), for example",
        lambda made, given: _wrong_loss(made, given[5]),
    ),
    "client_train": Answer(
        "(Update, Private)", lambda made: _pair(made, "Update"), "Update(...), private"
    ),
    "client_sum": Answer("(Sum, Private)", lambda made: _pair(made, "Sum"), "Sum(...), private"),
    "client_answer": Answer(
        "a Tensor [n]", _TENSOR, "one number per record",
        lambda made, given: _not_of(made, given[4].shape, "a number per record"),
    ),
    "client_log": Answer("Rows by name", _rows_by_name, '{"item": rows}, or {} for nothing'),
    "client_turn": Answer(*_PRIVATE, "private, or private.with_(name=values)"),
    "client_scores": Answer("a Tensor [C, I]", _TENSOR, "a row per client and a column per item"),
    "forget": Answer("Federation", is_a("Federation"), "the federation after the request"),
}  # fmt: skip
"""By function, as the table of docs/methods.md lists them."""


def hold_to_answers(cls: type) -> None:
    """Let each function of a new class that is not of rescind refuse another kind of answer."""
    for name, answer in ANSWERS.items():
        function = getattr_static(cls, name, None)
        if isfunction(function) and not ours(function) and not hasattr(function, "held_to"):
            setattr(cls, name, _held(f"{cls.__name__}.{name}", function, answer))


def ours(part: Any) -> bool:
    """Return whether a class or function is defined in rescind."""
    return str(part.__module__).partition(".")[0] == "rescind"


def _held(name: str, function: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    written = signature(function)

    @wraps(function)
    def asked(*given: Any, **named: Any) -> Any:
        bound = written.bind(*given, **named)
        _, *rest = bound.arguments.items()  # self
        before = Unchanged(dict(rest), copy=".server_" in name)
        made = function(*given, **named)
        before.check(name)
        if not answer.fits(made):
            wrong = f"{_told(made)}; expected {answer.words}"
        else:
            wrong = answer.wrong(made, bound.args) if answer.wrong else ""
        if wrong:
            told = "" if wrong.endswith(".") else f". Change that function: return {answer.write}."
            raise BoundaryError(f"{name} returned {wrong}{told}")
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
