"""A proxy for ReGEnUnlearn, which has no public code: ascent that harms the others least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.federation import Federation
from rescind.core.params import Params, add, norm
from rescind.core.plan import Batch, Plan
from rescind.core.state import Private
from rescind.core.tasks import nodes
from rescind.methods import _client_removal as removal
from rescind.methods._client_removal import FORGET, KEEP
from rescind.methods.graphs.sga import SGARandom, lowest_half


@dataclass(frozen=True, kw_only=True)
class ReGEnProxy(SGARandom):
    """Ascent on the half of the client's nodes whose gradients conflict least with the others'.

    A proxy after the idea of Liu and Liu (WWW 2025), not their method.
    """

    paper: ClassVar[str] = "proxy for ReGEnUnlearn (Liu and Liu, WWW 2025)"

    def references(self, fed: Federation, roles: dict[int, str]) -> dict[str, Tensor]:
        """Return the normalised direction of the others' descent."""
        kept = removal.with_reference(fed, {}, roles, only=KEEP)
        sums = removal.round_sums(kept, removal.one_step(self, dropout=0.0), roles)
        others = sums[KEEP].mean() if KEEP in sums else {}
        length = max(norm(others), 1e-12)
        return {f"others/{name}": value / length for name, value in others.items()}

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Plan the half of the client's nodes whose loss falls least along the others' descent.

        Raising the loss of a node that the descent lowers undoes the descent: the change of each
        node's loss along it, by a central difference, is minus the conflict.
        """
        if cohort.role != FORGET:
            return super().client_plan(public, private, cohort, clock)
        read, now = removal.reference(public), removal.weights(public)
        descent = {n: read[f"others/{n}"] for n in now if f"others/{n}" in read}
        node = nodes.graph_of(cohort).find(cohort.train.item)
        batch = Batch(cohort.train.owner, {}, {"node": node}, len(cohort))

        def entropy(step: float) -> Tensor:
            there = {n: v.double() for n, v in add(now, descent, step).items()}
            return self.client_entropy(nodes.same_for_all(there), batch, cohort, None)

        return lowest_half(cohort, entropy(-1e-3) - entropy(1e-3))
