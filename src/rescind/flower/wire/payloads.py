"""Parts of messages: events and steps for a silo, mail for its clients, and sums in replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rescind.core.cohort import Mail
from rescind.core.gate import KIND, SHAPE, TWICE, WEIGHT, gate, gate_sum
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Event
from rescind.core.update import Sum
from rescind.errors import DataError
from rescind.flower.wire.messages import SENDER, Letter, pack_sum, unpack_sum
from rescind.flower.wire.steps import Step
from rescind.storage.events import pack_events, unpack_events
from rescind.storage.packing import Facts, drawer, under

BEFORE = "before"
"""Key of letters that a silo missed and answers first."""
OTHERS = "speaks for others"
NUMBERS = (torch.float32, torch.float64, torch.int64, torch.int32)
LIMIT = 1e6
"""Largest norm per client, as in one process (`InProcess.limit`)."""
MOST_BYTES = 2**50
"""More than any device sends or gets in a round."""
LeftOut = tuple[tuple[int, Event], ...]
"""(silo, event), oldest first: records to leave out when devices restart."""


def with_sums(reply: Letter, sums: Mapping[str, Sum]) -> Letter:
    """Return a reply with sums by role added."""
    facts, tensors = dict(reply.facts), dict(reply.tensors)
    facts["sums"] = {}
    for number, (role, total) in enumerate(sums.items()):
        sum_facts, packed = pack_sum(total)
        facts["sums"][role] = {**sum_facts, "place": number}
        tensors |= under(f"sum{number}", packed)
    return Letter(facts, tensors)


def sums_of(reply: Letter) -> dict[str, Sum]:
    """Return the sums of a reply by role. Raises `DataError` if there are none."""
    try:
        return {
            role: unpack_sum(facts, drawer(f"sum{facts['place']}", reply.tensors))
            for role, facts in dict(reply.facts["sums"]).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"a reply contains no sums. {SENDER}") from None


@dataclass(frozen=True)
class Bounds:
    """What the server asked a silo for in a round: its reply may state no more."""

    method: Method
    public: Params
    ids: Tensor
    """The clients that were asked for."""
    roles: Collection[str]
    heaviest: float = 1
    """The largest weight of a client."""


def checked_sums(reply: Letter, asked: Bounds) -> dict[str, Sum] | str:
    """Return the sums of a reply by role, or the reason for refusing them."""
    try:
        sums = sums_of(reply)
        return _sums_flaw(sums, asked) or sums
    except Exception:  # a sum that no check foresaw must not end the server
        return "cannot be read"


def _sums_flaw(sums: Mapping[str, Sum], asked: Bounds) -> str | None:
    if not sums.keys() <= {*asked.roles, "train"}:
        return OTHERS
    for total in sums.values():
        if flaw := _sum_flaw(total, asked) or _parts_flaw(total, asked):
            return flaw
    everyone = torch.cat([total.who for total in sums.values()]) if sums else asked.ids[:0]
    return TWICE if len(torch.unique(everyone)) < len(everyone) else None


def _sum_flaw(total: Sum, asked: Bounds) -> str | None:
    """Return the reason for refusing a sum; None: it states no more than was asked for."""
    for tensors in (total.totals, total.touched):
        for name, value in tensors.items():
            like = asked.public.get(name, value)  # another kind would change the model's
            if value.dtype not in NUMBERS or value.dtype != like.dtype:
                return KIND
    gated = gate_sum(total, asked.public, LIMIT * asked.method.unit, _also(total, asked))
    if gated is not total:
        return next(iter(gated.refused))
    if total.who.dtype != torch.int64 or len(total.who) != total.clients:
        return SHAPE
    if not bool(torch.isin(total.who, asked.ids).all()):
        return OTHERS
    if total.weight > asked.heaviest * total.clients * (1 + 1e-6):
        return WEIGHT
    counts = (*total.refused.values(), len(total.refused))
    fits = min(counts) >= 0 and max(counts) <= len(asked.ids)
    fits &= all(0 <= sent <= MOST_BYTES for sent in (total.up, total.down))
    return None if fits else WEIGHT


def _parts_flaw(total: Sum, asked: Bounds) -> str | None:
    if total.parts and not asked.method.individual:
        return "single updates"
    for senders, update in total.parts:
        _, kept, flaws = gate(
            update, LIMIT * asked.method.unit, asked.public, None, _also(total, asked)
        )
        if not bool(kept.all()):
            return next(iter(flaws))
        if len(senders) != update.clients or not bool(torch.isin(senders, asked.ids).all()):
            return OTHERS
    return None


def _also(total: Sum, asked: Bounds) -> tuple[str, ...]:
    """Return names to allow beside the model's: all, if the method has its own server step."""
    return () if asked.method.only_averages else tuple(total.totals)


def conflicts(found: Mapping[int, Mapping[str, Sum]]) -> set[int]:
    """Return the silos whose totals have another shape than those of most silos.

    A method with its own server step may send totals of any name, so only silos can be compared.
    If no shape has a majority, all are refused.
    """
    bad: set[int] = set()
    names = {(role, name) for sums in found.values() for role in sums for name in sums[role].totals}
    for role, name in sorted(names):
        shapes = {
            silo: (*sums[role].totals[name].shape, name in sums[role].touched)
            for silo, sums in found.items()
            if role in sums and name in sums[role].totals
        }
        (most, times), *_ = Counter(shapes.values()).most_common()
        enough = 2 * times > len(shapes)
        bad |= {silo for silo, shape in shapes.items() if shape != most or not enough}
    return bad


def of_silo(events: LeftOut, silo: int) -> list[Event]:
    """Return the events of one silo."""
    return [event for at, event in events if at == silo]


def mail_for(mail: Mail, ids: Tensor) -> dict[str, Tensor]:
    """Return the mail of these clients only."""
    mine = torch.isin(mail.ids, ids)
    return {"ids": mail.ids[mine], **{name: value[mine] for name, value in mail.values.items()}}


def packed_letters(letters: Iterable[Letter]) -> tuple[Facts, dict[str, Tensor]]:
    """Convert letters to facts and tensors that go with another one, which is answered after."""
    facts, tensors = list[Facts](), dict[str, Tensor]()
    for number, letter in enumerate(letters):
        facts.append(letter.facts)
        tensors |= under(f"{BEFORE}{number}", letter.tensors)
    return ({BEFORE: facts} if facts else {}), tensors


def unpacked_letters(facts: Facts, tensors: Params) -> list[Letter]:
    """Read what `packed_letters` packed."""
    return [
        Letter(one, drawer(f"{BEFORE}{number}", tensors))
        for number, one in enumerate(facts.get(BEFORE, ()))
    ]


def holdings_named(letter: Facts) -> list[int]:
    """Return the moments of holdings that a letter starts from, and those that go with it do."""
    steps = [held for held, _ in letter.get("owed_after", ())]
    earlier = [moment for one in letter.get(BEFORE, ()) for moment in holdings_named(one)]
    return [int(letter["held"]), *steps, *earlier]


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
