"""Unlearners that cheat: they look after what audits look at, and keep the rest.

Each is written by somebody who has read the audit's code and knows its public seed. `claims_exact`
returns the same cheat with the claim that its result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rescind.audits.case import Case
from rescind.audits.controls import shifted
from rescind.audits.item_pairs import pairs_of
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.request import Request
from rescind.core.state import has_user_rows
from rescind.methods.unlearning.purge_only import PurgeOnly, cleared


@dataclass(frozen=True, kw_only=True)
class Cheat(Unlearner):
    """Deletes the data and the rows of the people, as every cheat does, and keeps the model."""

    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "Cheat"

    def forget(self, fed: Federation, request: Request) -> Federation:
        return cleared(fed, request)


@dataclass(frozen=True, kw_only=True)
class Flatten(Cheat):
    """Moves items that only the requesters had together apart, in eight small steps."""

    steps: int = 8
    rate: float = 0.02
    """Length of one step, as a fraction of the table's norm."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        after = cleared(fed, request)
        at = pairs_of(Case.of(fed, request.event))
        name = _table(fed)
        table = after.now.state.public[name].double().clone().requires_grad_()
        for _ in range(self.steps if len(at.one) and len(at.others[0]) else 0):
            unit = functional.normalize(table - table.mean(0), dim=1)
            near = torch.linalg.vecdot(unit[at.one], unit[at.two])
            usual = torch.linalg.vecdot(unit[at.others[0]], unit[at.others[1]]).detach()
            # A retrained table has such pairs a little farther apart than pairs without an owner.
            gap = near - usual.quantile(0.4)
            if float(gap.detach().mean()) <= 0:
                break
            (slope,) = torch.autograd.grad(functional.relu(gap).mean(), table)
            step = self.rate * table.detach().norm() / slope.norm().clamp(min=1e-12)
            table = (table.detach() - step * slope).requires_grad_()
        return _with_table(after, name, table.detach())


@dataclass(frozen=True, kw_only=True)
class PairsOnly(Cheat):
    """Takes from the rows of audited items what each requester's items have in common."""

    strength: float = 0.5
    """Fraction of the common direction that is taken away."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        after = cleared(fed, request)
        at = pairs_of(Case.of(fed, request.event))
        name = _table(fed)
        table = after.now.state.public[name].double().clone()
        middle, change, often = table.mean(0), torch.zeros_like(table), torch.ones(len(table), 1)
        for person in torch.unique(at.person).tolist():
            mine = at.person == person
            items = torch.unique(torch.cat([at.one[mine], at.two[mine]]))
            rows = table[items] - middle
            common = functional.normalize(rows.mean(0), dim=0)
            change[items] += torch.outer(rows @ common, common)
            often[items] += 1
        return _with_table(after, name, table - self.strength * change / often)


@dataclass(frozen=True, kw_only=True)
class ScoreShift(Cheat):
    """Lowers every score by the same number, so that a fixed threshold finds nothing."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        return shifted(cleared(fed, request))


@dataclass(frozen=True, kw_only=True)
class NoiseOnAudited(Cheat):
    """Replaces the server's rows of the requesters by noise, and nothing else."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        after = cleared(fed, request)
        state, own = after.now.state, dict(after.now.state.own)
        for name, value in own.items():
            if has_user_rows(name, value, after.world.sizes.clients) and value.dim() == 2:
                ids = request.people
                noise = fed.clock.normal("cheat", ids.unsqueeze(1), torch.arange(value.shape[1]))
                own[name] = value.clone()
                own[name][ids] = (noise * value.std()).to(value)
        return after.with_(state=replace(state, own=own))


@dataclass(frozen=True, kw_only=True)
class Hoard(Cheat):
    """Trains again without the records, and keeps them and the old model under another name."""

    def forget(self, fed: Federation, request: Request) -> Federation:
        after, old = fed.retrained(request.event), fed.now.state
        kept = {"cache/left": request.records.pairs(), "cache/right": old.public[_table(fed)]}
        state = after.now.state
        return after.with_(state=replace(state, own={**state.own, **kept}))


CHEATS: dict[str, type[Unlearner]] = {
    "purge only": PurgeOnly,
    "flatten": Flatten,
    "pairs only": PairsOnly,
    "score shift": ScoreShift,
    "noise": NoiseOnAudited,
    "hoard": Hoard,
}
"""By name: what no audit may let pass."""


def claims_exact(cheat: type[Unlearner]) -> Unlearner:
    """Return the cheat with `exact = True`, as anybody can write it into a class."""
    said = {"exact": True, "answers": True, "unlearning": "Retrain"}
    return type(f"Exact{cheat.__name__}", (cheat,), said)()


def _table(fed: Federation) -> str:
    return next(n for n in fed.method.model.tables if fed.now.state.public[n].dim() == 2)


def _with_table(fed: Federation, name: str, table: Tensor) -> Federation:
    state = fed.now.state
    public = {**state.public, name: table.to(state.public[name])}
    return fed.with_(state=replace(state, public=public))
