"""Controls: models whose correct verdict is known. A wrong verdict makes the audit void.

No-op: the model before the request; nothing is deleted. Score shift: the no-op with a constant
subtracted from all scores, which keeps rankings and defeats fixed thresholds. Purge only: data and
user rows are deleted, the item table is kept; reported for comparison.
"""

from __future__ import annotations

from dataclasses import fields, replace

from torch import Tensor

from rescind.audits.case import Case
from rescind.audits.state_attacks import person_rows
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.state import Memory, Private

SHIFT = 2.0  # logits; defeats a fixed threshold (reliability.md 1.5) and keeps rankings


def shifted(fed: Federation, by: float = SHIFT) -> Federation:
    kind: type[Method] = type(fed.method)

    class Shifted(kind):  # type: ignore[valid-type, misc]
        def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
            scores: Tensor = super().client_scores(public, private, cohort)
            return scores.double() - by

    given = {f.name: getattr(fed.method, f.name) for f in fields(fed.method) if f.init}
    return replace(fed, method=Shifted(**given))


def purged(case: Case) -> Federation:
    """Apply the request, reset the rows of the requesting users and clear memory."""
    fed = case.before.apply(case.event)
    state, clients = fed.now.state, fed.world.sizes.clients
    fresh = fed.method.server_init(fed.world, case.clock).own
    own = dict(state.own)
    for name, rows in person_rows(state.own, clients, moments=True).items():
        new = rows.clone()
        first = fresh.get(name)
        people = case.people.to(rows.device)
        new[people] = 0.0 if first is None else first.to(rows)[people]
        own[name] = new
    return fed.with_(state=replace(state, own=own, memory=Memory()))
