"""What each function of a method must return, held to by the classes of other authors.

A forgotten `return` would fail far away, in code that its author has never seen. So the functions
of a class from outside rescind are wrapped as the class is made; those of rescind stay as they are.

They also leave their arguments as they are. A federation is a value: restore points, the best round
and a model that is trained again share tensors with the state that a function gets. One that is
changed in place would be changed there, too, and forgetting would not be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import getattr_static, isfunction, signature
from typing import Any

import torch
from torch import Tensor

from rescind.errors import BoundaryError


@dataclass(frozen=True)
class Answer:
    """What a function returns: in words, and as a test."""

    words: str
    fits: Callable[[Any], bool]
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


def _missing(made: Any, wanted: Iterable[str]) -> str:
    """Say which value by name is not there: clients would look for it."""
    there = ", ".join(map(repr, made)) or "nothing"
    return next((f"{there}; expected '{name}', too" for name in wanted if name not in made), "")


def _wrong_tables(state: Any, method: Any, world: Any, before: Any = None) -> str:
    """Say which table by item of the method's model is missing, or differs from the one before."""
    tables, public = method.model.tables, state.public
    learns = hasattr(method, "client_loss")  # from the model, so that its tables must be there
    known = before.public if before is not None else tables if learns else ()
    if wrong := _missing(public, [name for name in tables if name in known]):
        return wrong
    for name in tables:
        if name in public and public[name].shape[:1] != (world.sizes.items,):
            shape = list(public[name].shape)
            return f"'{name}' as {shape}; expected [{world.sizes.items}, ...], a row for each item"
    if before is None or not learns:
        return ""
    old = {name: before.public[name] for name in tables if name in before.public}
    return _unlike(public, old, tables, "as before", _reads(method, "client_init"))


def _unlike_model(state: Any, method: Any, world: Any, clock: Any) -> str:
    """Say which first value has another width or kind than the model's own.

    Compiled code would read past the end of the model's private rows.
    """
    if not _reads(method, "client_init") or not method.model.private(_NOBODY, clock):
        return ""
    first = method.model.public(replace(world.sizes, items=1), clock)
    return _unlike(state.public, first, method.model.tables, _as_made(method))


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


def _unlike(made: Any, wanted: Any, by_row: Sequence[str], why: str, kinds: bool = True) -> str:
    """Say what differs in shape or kind. by_row: names with a row for each item or client"""
    for name, like in wanted.items():
        if name not in made:
            continue
        free = made[name].shape[:1] if name in by_row else ()
        if wrong := _not_of(made[name], [*free, *like.shape[len(free) :]], why):
            return f"'{name}' as {wrong}"
        if kinds and made[name].dtype != like.dtype:
            has, needs = (str(one.dtype).removeprefix("torch.") for one in (made[name], like))
            return f"'{name}' as {has}; expected {needs}, {why}"
    return ""


def _as_made(method: Any) -> str:
    return f"as {type(method.model).__name__} makes it"


def _wrong_step(state: Any, method: Any, before: Any, world: Any) -> str:
    if state.round != before.round + 1:  # the next round would draw the same numbers again
        return (
            f"a state after round {state.round}; expected one after round {before.round + 1}: call "
            f"next once, on the state that was given"
        )
    return _missing(state.public, before.public) or _wrong_tables(state, method, world, before)


def _wrong_rows(private: Any, method: Any, ids: Any, clock: Any) -> str:
    for name, rows in private.values.items():
        if rows.shape[:1] != ids.shape:
            return f"'{name}' as {list(rows.shape)}; expected [{len(ids)}, ...], a row for each id"
    read = method.model.private(ids[:0], clock) if hasattr(method, "client_loss") else {}
    if wrong := _missing(private.values, read):
        return wrong
    if read and _reads(method, "server_init"):
        return _unlike(private.values, read, tuple(read), _as_made(method))
    return ""


def _wrong_loss(loss: Any, cohort: Any) -> str:
    """Say that a loss mixes clients, as a mean of all would, or that nothing learns from it."""
    if not loss.requires_grad:
        return "a loss that no trained value has a part in; expected one without detach()"
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
        *_STATE,
        lambda made, given: _wrong_tables(made, *given[:2]) or _unlike_model(made, *given[:3]),
    ),
    "server_sample": Answer(
        "a Tensor of ids [k]", _TENSOR,
        lambda made, given: _wrong_ids(made, given[2].sizes.clients),
    ),
    "server_mail": Answer("Mail or None", is_a("Mail", "NoneType")),
    "server_step": Answer(
        *_STATE, lambda made, given: _wrong_step(made, given[0], given[1], given[3])
    ),
    "server_turn": Answer(
        *_STATE, lambda made, given: _wrong_tables(made, given[0], given[2], given[1])
    ),
    "client_init": Answer(*_PRIVATE, lambda made, given: _wrong_rows(made, *given[:3])),
    "client_weight": Answer(
        "a Tensor [C]", _TENSOR,
        lambda made, given: _not_of(made, [len(given[1])], "a number per client"),
    ),
    "client_steps": Answer("a tuple of Step", _steps),
    "client_plan": Answer("Plan", is_a("Plan")),
    "client_loss": Answer(
        "a Tensor [C]", _TENSOR, lambda made, given: _wrong_loss(made, given[5])
    ),
    "client_train": Answer("(Update, Private)", lambda made: _pair(made, "Update")),
    "client_sum": Answer("(Sum, Private)", lambda made: _pair(made, "Sum")),
    "client_answer": Answer(
        "a Tensor [n]", _TENSOR,
        lambda made, given: _not_of(made, given[4].shape, "a number per record"),
    ),
    "client_log": Answer("Rows by name", _rows_by_name),
    "client_turn": Answer(*_PRIVATE),
    "client_scores": Answer("a Tensor [C, I]", _TENSOR),
    "forget": Answer("Federation", is_a("Federation")),
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
            raise BoundaryError(f"{name} returned {wrong}. Change that function.")
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


# -- arguments stay as they are -------------------------------------------------------------------

COPIED = 64 << 20
"""Bytes of a tensor up to which it is compared by its values. Of all others, and where a copy would
cost too much, torch counts the changes; it does not see those through numpy or `.data`."""


class Unchanged:
    """The tensors in the arguments of one call, as they are before it."""

    def __init__(self, given: Mapping[str, Any], copy: bool) -> None:
        """given: arguments by name    copy: also compare values"""
        found = {id(tensor): (place, tensor) for place, tensor in _tensors_in(given)}
        self.before = [
            (place, tensor, changes_of(tensor), _copy(tensor, copy))
            for place, tensor in found.values()
        ]

    def check(self, name: str) -> None:
        """Refuse a function, given by name, that has changed one of them."""
        for place, tensor, version, values in self.before:
            changed = values is not None and not _same(tensor, values)
            if changed or changes_of(tensor) != version:
                raise BoundaryError(
                    f"{name} changed its argument {place} in place, which restore points share. "
                    f"Write new = old + step, not old += step, or work on old.clone()."
                )


def changes_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 of one of inference mode: nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def _copy(tensor: Tensor, asked: bool) -> Tensor | None:
    wanted = asked or tensor.is_inference()
    return tensor.detach().clone() if wanted and tensor.nbytes <= COPIED else None


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _tensors_in(given: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield what arguments hold, with the words by which their author reaches it."""
    todo: list[tuple[str, Any]] = [*given.items()]
    seen = set[int]()
    while todo:
        place, value = todo.pop()
        if isinstance(value, Tensor):
            yield place, value
        elif id(value) in seen:
            continue
        elif isinstance(value, dict):  # other mappings may be read from a disk
            todo += [(f"{place}[{name!r}]", one) for name, one in value.items()]
        elif isinstance(value, tuple | list):
            todo += [(f"{place}[{n}]", one) for n, one in enumerate(value)]
        elif is_dataclass(value):
            known = [f.name for f in fields(value) if hasattr(value, f.name)]
            todo += [(f"{place}.{name}", getattr(value, name)) for name in known]
        seen.add(id(value))
