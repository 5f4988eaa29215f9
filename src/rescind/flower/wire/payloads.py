"""What letters to silos are made of: events still owed, mail, and the sums that come back."""

from __future__ import annotations

import torch
from torch import Tensor

from rescind.core.cohort import Mail
from rescind.core.gate import gate, gate_sum
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Event
from rescind.core.update import Sum
from rescind.errors import DataError
from rescind.flower.wire.messages import Letter, unpack_sum
from rescind.flower.wire.steps import Step
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.packing import Facts, drawer, under

OTHERS = "speaks for others"
Nevers = tuple[tuple[int, Event], ...]
"""(silo, event), oldest first: what never was."""


def sums_of(reply: Letter) -> dict[str, Sum]:
    """The sums of a reply, by role; a `DataError` if it holds none."""
    try:
        told = dict(reply.facts["sums"])
        return {
            role: unpack_sum(one, drawer(f"sum{one['place']}", reply.tensors))
            for role, one in told.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError("a reply holds no sums; its sender is broken.") from None


def accepted(
    method: Method, public: Params, asked: Tensor, reply: Letter, own: bool, limit: float
) -> dict[str, Sum] | str:
    """The sums of a reply by role, or why they are refused (gate.py).

    own: the method's server looks at every total itself, so none may be unsound
    """
    try:
        sums = sums_of(reply)
    except DataError:
        return "cannot be read"
    found: dict[str, Sum] = {}
    for role, total in sums.items():
        also = tuple(total.totals) if own else ()
        one = gate_sum(total, public, limit, also)
        if one is not total:
            return next(iter(one.refused))
        if len(total.who) and not bool(torch.isin(total.who, asked).all()):
            return OTHERS
        if total.parts and not method.individual:
            return "single updates"
        for ids, update in total.parts:
            _, kept, flaws = gate(update, limit, public, None, also)
            if not bool(kept.all()):
                return next(iter(flaws))
            if not bool(torch.isin(ids, asked).all()):
                return OTHERS
        found[role] = total
    return found


def of_silo(events: Nevers, silo: int) -> list[Event]:
    """The events that concern one silo."""
    return [event for at, event in events if at == silo]


def letters_for(mail: Mail, ids: Tensor) -> dict[str, Tensor]:
    """The letters of a silo's own clients, and no others."""
    mine = torch.isin(mail.ids, ids)
    return {"ids": mail.ids[mine], **{name: value[mine] for name, value in mail.values.items()}}


def packed_steps(name: str, steps: tuple[Step, ...], silo: int) -> tuple[Facts, dict[str, Tensor]]:
    """What one silo has not acknowledged, as facts and tensors under a name."""
    mine = [step for step in steps if step.silo == silo]
    tensors, facts = pack_events(name, [step.event for step in mine])
    for number, step in enumerate(mine):
        tensors |= under(f"{name}{number}public", step.public)
    return {**facts, f"{name}_after": [[step.held, step.private] for step in mine]}, tensors


def unpacked_steps(name: str, facts: Facts, tensors: Params, silo: int) -> tuple[Step, ...]:
    """What `packed_steps` packed."""
    events = unpack_events(name, tensors, facts)
    follows = enumerate(zip(events, facts.get(f"{name}_after", ()), strict=True))
    return tuple(
        Step(silo, event, held, private, drawer(f"{name}{number}public", tensors))
        for number, (event, (held, private)) in follows
    )
