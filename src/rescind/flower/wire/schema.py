"""What a valid request and a valid reply look like: names, kinds, shapes and ranges.

Both sides check every letter before they use it. Each `*_flaw` function returns what is wrong in a
few words, or None. Sums of training have their own checks (`payloads.checked_sums`), because they
depend on the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rescind.core.state import REFERENCE
from rescind.core.tasks import Metric
from rescind.core.tasks.metrics import Owners, Ranking
from rescind.core.tasks.nodes import BINS, Classes
from rescind.core.update import Sum
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.payloads import BEFORE, NUMBERS
from rescind.flower.wire.steps import PRIVATE, moment_of, opened
from rescind.proof.sum_hash import LENGTH
from rescind.storage.events import unpack_events
from rescind.storage.packing import drawer

LARGEST = 10_000_000
"""The largest number of clients, items or nodes that a letter may state."""
LONGEST = 10_000
"""The largest length of a text."""
MOMENT_BITS = 62
FLAGS = ("available", "keeps", "member")
Rule = Callable[[Any], bool]


def whole(largest: int, least: int = 0) -> Rule:
    """Return a rule for whole numbers in a range."""
    return lambda v: type(v) is int and least <= v <= largest


def text(value: Any) -> bool:
    """Return whether a value is a text of reasonable length."""
    return isinstance(value, str) and len(value) <= LONGEST


def table(value: Any) -> bool:
    """Return whether a value is a table with a name, such as a method or a metric."""
    return isinstance(value, dict) and text(value.get("name"))


def lists(rule: Rule, length: int | None = None) -> Rule:
    """Return a rule for lists whose entries follow a rule."""
    return lambda v: (
        isinstance(v, list) and (length is None or len(v) == length) and all(map(rule, v))
    )


def optional(rule: Rule) -> Rule:
    """Return a rule for facts that may be missing."""
    return lambda v: v is None or rule(v)


def role(value: Any) -> bool:
    """Return whether a value is [client, its role]."""
    return isinstance(value, list) and len(value) == 2 and size(value[0]) and text(value[1])


def fraction(value: Any) -> bool:
    """Return whether a value is a number from 0 to 1."""
    return type(value) in (int, float) and 0 <= value <= 1


def compared(value: Any) -> bool:
    """Return whether a value tells a silo's table from those of others."""
    return isinstance(value, dict) and not _facts_flaw(value, TABLE)


def letters(value: Any) -> bool:
    """Return whether a value is the facts of letters that a silo missed: only to open and keep."""
    return isinstance(value, list) and all(
        isinstance(one, dict) and one.get("verb") in MISSABLE for one in value
    )


MISSABLE = ("open", "keep")
size, moment = whole(LARGEST), whole(2**MOMENT_BITS - 1)
moments, events = lists(moment), optional(lists(lambda v: isinstance(v, dict)))
EVERY = {
    "verb": text, "run": text, "seed": whole(2**63 - 1, -(2**63)), "round": whole(2**31),
    "epoch": whole(2**31),
}  # fmt: skip
NAMED = {"kind": text, "user": text, "items": lists(text)}
"""One person's request, by original ids."""
VAULT = {
    "method": table, "held": moment, "private": moment, "owed": events,
    "owed_after": optional(lists(lists(moment, 2))), BEFORE: optional(letters),
}  # fmt: skip
REQUESTS: dict[str, dict[str, Rule]] = {
    "meet": {},
    "hold": {},
    "mask": {},
    "next": {"block": size},
    "find": {**NAMED, "held": optional(moments)},
    "purge": {**NAMED, "at": size},
    "open": {
        "method": table, "held": moment, "clients": size, "items": size, "never": events,
        "owed": events, "owed_after": VAULT["owed_after"], BEFORE: optional(letters),
    },
    "lend": {**VAULT, "ratio": lists(size, 3), "part": fraction, "clients": size},
    "apply": VAULT,
    "train": {
        **VAULT, "roles": lists(role), "keep": optional(moments), "keep_held": optional(moments),
    },
    "measure": {**VAULT, "metric": table},
    "query": {**VAULT, "ask": text},
    "lines": {**VAULT, "origin": text, "number": size},
    "keep": {
        **VAULT, "keep_held": moments, "keep_private": optional(moments), "never": events,
    },
}  # fmt: skip
"""Facts of a request, by verb; those of `EVERY` come on top."""
TABLE: dict[str, Rule] = {
    "own": lambda v: isinstance(v, bool), "users": size, "user_ids": text,
    "items": size, "item_ids": text,
}  # fmt: skip
FOUND = {
    "number": whole(LARGEST, -1), "rank": whole(2), "outcome": text, "code": text,
    "missing": whole(LARGEST, -1), "rows": size, "things": size,
    "own": lambda v: isinstance(v, bool),
}  # fmt: skip
STATE = {
    "held": moment, "private": moment, "clients": size, "items": size, "task": text, "block": size,
    "validated": size, "features": size, "classes": size, "heaviest": optional(size),
    "table": optional(compared),
}  # fmt: skip


def request_flaw(request: Letter) -> str | None:
    """Return what is wrong with a request; None: nothing."""
    verb = str(request.facts.get("verb"))
    if verb not in REQUESTS:
        return f"unknown verb '{verb[:40]}'. Use one of {', '.join(REQUESTS)}"
    if flaw := _facts_flaw(request.facts, {**EVERY, **REQUESTS[verb]}):
        return flaw
    for name, value in drawer("public", request.tensors).items():
        reference = name.startswith(REFERENCE)  # NaN where there is none
        if value.is_floating_point() and not reference and not bool(torch.isfinite(value).all()):
            return f"the model's '{name}' is not finite"
    columns: tuple[str, ...] = ("ids",) if verb in ("train", "measure") else ()
    if verb == "query":
        columns = tuple(f"records|{name}" for name in ("client", "item", "time"))
    if any(not _is_column(request.tensors.get(name)) for name in columns):
        return f"{', '.join(columns)} must be columns of whole numbers"
    if len({len(request.tensors[name]) for name in columns}) > 1:
        return "columns have different lengths"
    if verb == "train" and len(torch.unique(request.tensors["ids"])) < len(request.tensors["ids"]):
        return "a client is asked for twice"
    return None


def reply_flaw(request: Letter, reply: Letter, silo: int | None, silos: int) -> str | None:
    """Return what is wrong with a reply; None: nothing. silo: None if it is not known yet"""
    facts, verb = reply.facts, str(request.facts["verb"])
    number = facts.get("silo")
    if type(number) is not int or not isinstance(facts.get("silos"), int):
        return "it does not say from which silo it is"
    if silo is not None and (number, facts["silos"]) != (silo, silos):
        return "it is from another silo"
    if "error" in facts:
        return None if text(facts["error"]) and isinstance(facts.get("why"), str) else "no reason"
    if verb in ("meet", "mask"):
        return None
    if verb == "next":
        return _block_flaw(reply, number, silos)
    if verb == "find":
        return _found_flaw(request, reply)
    if verb == "purge":
        return _facts_flaw(facts, {"left": size, "rows": size, "things": size})
    return _state_flaw(request, reply, number, silos) or _payload_flaw(
        request, reply, number, silos
    )


def _state_flaw(request: Letter, reply: Letter, number: int, silos: int) -> str | None:
    facts, verb = reply.facts, str(request.facts["verb"])
    if flaw := _facts_flaw(facts, STATE):
        return flaw
    for name in FLAGS:
        if flaw := _ids_flaw(reply.tensors.get(f"said|{name}"), facts["clients"], number, silos):
            return f"{name}: {flaw}"
    if not _subset(reply, "available", "member") or not _subset(reply, "keeps", "member"):
        return "it announces clients that are not members"
    if facts["validated"] > facts["clients"]:
        return "more validated clients than clients"
    if "clients" in request.facts and verb == "open":
        wanted = request.facts["clients"], request.facts["items"]
        if (facts["clients"], facts["items"]) != wanted:
            return "it has another number of clients or items than the server"
    if (facts["held"], facts["private"]) != moments_after(request, facts):
        return "it is about another saved state"
    return None


def moments_after(request: Letter, facts: Mapping[str, Any]) -> tuple[int, int]:
    """Return the moments (holdings, private) to which a request leads. facts: of its reply"""
    asked, verb = request.facts, request.facts["verb"]
    if verb == "hold":  # the silo loads its data
        return facts["held"], facts["private"]
    if verb == "open":
        left_out = unpack_events("never", request.tensors, asked)
        held = opened(asked["held"], left_out, asked["clients"], asked["items"])
        return held, moment_of(request.digest, PRIVATE)
    trained = moment_of(request.digest, PRIVATE)
    return asked["held"], trained if verb == "train" else asked["private"]


def _payload_flaw(request: Letter, reply: Letter, silo: int, silos: int) -> str | None:
    verb = str(request.facts["verb"])
    if verb == "lend":
        columns = drawer("loan", reply.tensors)
        if {*columns} != {"client", "item", "time"} or not all(map(_is_column, columns.values())):
            return "loans must be columns of whole numbers"
        if len({len(column) for column in columns.values()}) > 1:
            return "loans have different lengths"
        items, clients = reply.facts["items"], reply.facts["clients"]
        if flaw := _ids_flaw(columns["client"], clients, silo, silos, repeated=True):
            return f"loans: {flaw}"
        return None if _within(columns["item"], items) else "it lends items that do not exist"
    if verb == "lines":
        lines, small = reply.tensors.get("lines"), reply.tensors.get("small")
        good = _numbers(lines, (-1, LENGTH)) and _numbers(small, (3, LENGTH))
        said = text(reply.facts.get("signature")) and text(reply.facts.get("time"))
        return None if good and said else "no signed lines"
    if verb == "query":
        answer, asked = reply.tensors.get("answer"), request.tensors["records|client"]
        if answer is None or answer.shape != asked.shape or not answer.is_floating_point():
            return "one number for each question was asked for"
        return "an answer is not a number" if bool(torch.isnan(answer).any()) else None
    return None


def _block_flaw(reply: Letter, silo: int, silos: int) -> str | None:
    if type(reply.facts.get("there")) is not bool:
        return "it does not say whether there is a block"
    if not reply.facts["there"]:
        return None
    if flaw := _facts_flaw(reply.facts, {"clients": size, "items": size}):
        return flaw
    return _ids_flaw(reply.tensors.get("trains"), reply.facts["clients"], silo, silos)


def _found_flaw(request: Letter, reply: Letter) -> str | None:
    count = len(request.facts["items"])
    of_items = {"numbers": lists(FOUND["number"], count), "learnt": lists(whole(1), count)}
    return _facts_flaw(reply.facts, {**FOUND, **of_items})


def metric_flaw(total: Sum, metric: Metric, items: int, most: float) -> str | None:
    """Return what is wrong with the totals of a metric; None: nothing.

    most: the largest possible count: of the clients asked, or of their nodes
    """
    names = {"HR", "NDCG", "Recall", "Precision", "MRR"}
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(metric, Ranking):
        shapes = {f"{name}@{k}": () for name in names for k in metric.k}
        shapes |= {f"shown@{k}": (items,) for k in metric.k} | {"owners": (items,), "clients": ()}
    elif isinstance(metric, Owners):
        shapes = {"owners": (items,)}
    elif isinstance(metric, Classes):
        two = {"ones": (BINS,), "zeros": (BINS,)} if len(total.totals) > 1 else {}
        shapes = {"right": (), **two}
    if {*total.totals} != {*shapes} or total.touched or total.parts or len(total.who):
        return "other totals than asked"
    for name, value in total.totals.items():
        if tuple(value.shape) != shapes[name] or value.dtype not in NUMBERS:
            return f"'{name}' has the wrong shape or kind"
        if not bool(((value >= 0) & (value <= most)).all()):  # also refuses NaN
            return f"'{name}' is not from 0 to {most}"
    if not 0 <= total.clients <= most or total.weight != total.clients:
        return "it counts more clients than asked"
    return None


def _facts_flaw(facts: Mapping[str, Any], rules: Mapping[str, Rule]) -> str | None:
    for name, rule in rules.items():
        if not rule(facts.get(name)):
            return f"'{name}' is {str(facts.get(name))[:40]!r}"
    return None


def _is_column(value: Tensor | None) -> bool:
    return value is not None and value.dim() == 1 and value.dtype == torch.int64


def _numbers(value: Tensor | None, shape: tuple[int, int]) -> bool:
    """Return whether a value is a table of whole numbers. shape: rows (-1: any), columns"""
    if value is None or value.dim() != 2 or value.dtype != torch.int64:
        return False
    return value.shape[1] == shape[1] and shape[0] in (-1, value.shape[0])


def _within(value: Tensor, end: int) -> bool:
    return not len(value) or (int(value.min()) >= 0 and int(value.max()) < end)


def _ids_flaw(
    ids: Tensor | None, clients: int, silo: int, silos: int, repeated: bool = False
) -> str | None:
    if ids is None or not _is_column(ids):
        return "no column of client numbers"
    if not _within(ids, clients) or not bool((ids % silos == silo).all()):
        return "clients of other silos. Check its --silo"
    return None if repeated or len(torch.unique(ids)) == len(ids) else "a client twice"


def _subset(reply: Letter, name: str, of: str) -> bool:
    there = torch.isin(reply.tensors[f"said|{name}"], reply.tensors[f"said|{of}"])
    return bool(there.all())
