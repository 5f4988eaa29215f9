"""Subjects whose verdict is known in advance: an audit that they fool is void.

No-op: nothing is deleted, not even the server's copy; it is the model before. Score shift: the
no-op with every score lowered by a constant, so that rankings are the same and fixed thresholds
are beaten. Purge only: data and rows of people go, the table stays; shown beside them.
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

SHIFT = 2.0  # logits; beats a fixed threshold by far (reliability.md 1.5) and costs no ranking


def shifted(fed: Federation, by: float = SHIFT) -> Federation:
    """The same federation with every score lower by a constant: nothing is forgotten."""
    kind: type[Method] = type(fed.method)

    class Shifted(kind):  # type: ignore[valid-type, misc]
        def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
            scores: Tensor = super().client_scores(public, private, cohort)
            return scores.double() - by

    given = {f.name: getattr(fed.method, f.name) for f in fields(fed.method) if f.init}
    return replace(fed, method=Shifted(**given))


def purged(case: Case) -> Federation:
    """The world after the request; rows of the people who asked are first values, memory is gone.

    The item table is kept as it was: this is deletion without unlearning.
    """
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
