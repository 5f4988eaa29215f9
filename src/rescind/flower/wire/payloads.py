"""Parts of messages: events and steps for a silo, mail for its clients, and sums in replies."""

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
from rescind.flower.wire.messages import SENDER, Letter, unpack_sum
from rescind.flower.wire.steps import Step
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.packing import Facts, drawer, under

OTHERS = "speaks for others"
LeftOut = tuple[tuple[int, Event], ...]
"""(silo, event), oldest first: records to leave out when devices restart."""


def sums_of(reply: Letter) -> dict[str, Sum]:
    """Return the sums of a reply by role. Raises `DataError` if there are none."""
    try:
        return {
            role: unpack_sum(facts, drawer(f"sum{facts['place']}", reply.tensors))
            for role, facts in dict(reply.facts["sums"]).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"a reply contains no sums. {SENDER}") from None


def checked_sums(
    method: Method, public: Params, ids: Tensor, reply: Letter, check_all: bool, limit: float
) -> dict[str, Sum] | str:
    """Return the sums of a reply by role, or the reason for refusing them (gate.py).

    ids: the clients that were asked for
    check_all: check every total, because the method has its own server step
    """
    try:
        sums = sums_of(reply)
    except DataError:
        return "cannot be read"
    for total in sums.values():
        also = tuple(total.totals) if check_all else ()
        gated = gate_sum(total, public, limit, also)
        if gated is not total:
            return next(iter(gated.refused))
        if len(total.who) and not bool(torch.isin(total.who, ids).all()):
            return OTHERS
        if total.parts and not method.individual:
            return "single updates"
        for senders, update in total.parts:
            _, kept, flaws = gate(update, limit, public, None, also)
            if not bool(kept.all()):
                return next(iter(flaws))
            if not bool(torch.isin(senders, ids).all()):
                return OTHERS
    return sums


def of_silo(events: LeftOut, silo: int) -> list[Event]:
    """Return the events of one silo."""
    return [event for at, event in events if at == silo]


def mail_for(mail: Mail, ids: Tensor) -> dict[str, Tensor]:
    """Return the mail of these clients only."""
    mine = torch.isin(mail.ids, ids)
    return {"ids": mail.ids[mine], **{name: value[mine] for name, value in mail.values.items()}}


def packed_steps(name: str, steps: tuple[Step, ...], silo: int) -> tuple[Facts, dict[str, Tensor]]:
    """Convert the steps that one silo has not acknowledged to facts and tensors under a name."""
    mine = [step for step in steps if step.silo == silo]
    tensors, facts = pack_events(name, [step.event for step in mine])
    for number, step in enumerate(mine):
        tensors |= under(f"{name}{number}public", step.public)
    return {**facts, f"{name}_after": [[step.held, step.private] for step in mine]}, tensors


def unpacked_steps(name: str, facts: Facts, tensors: Params, silo: int) -> tuple[Step, ...]:
    """Read what `packed_steps` packed."""
    events = unpack_events(name, tensors, facts)
    pairs = enumerate(zip(events, facts.get(f"{name}_after", ()), strict=True))
    return tuple(
        Step(silo, event, held, private, drawer(f"{name}{number}public", tensors))
        for number, (event, (held, private)) in pairs
    )
