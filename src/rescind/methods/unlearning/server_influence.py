"""Forgetting loans with nobody online: one damped Newton step on the server's own loss.

After influence functions for recommenders (IFRU, arXiv 2307.02147; baselines.md 3.6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.method import Unlearner
from rescind.core.request import Request
from rescind.core.state import ServerState
from rescind.core.world import World
from rescind.errors import ConfigError
from rescind.methods._lent_graph.graph import SharedGraph, graph_of
from rescind.methods.sharing._forgotten_views import contrastive_forgetting
from rescind.methods.sharing._server_rerun import targets
from rescind.methods.sharing.fedshare import FedShare, fedshare_of
from rescind.methods.unlearning.purge_only import cleared, without_restore_points

if TYPE_CHECKING:
    from rescind.core.federation import Federation

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ServerInfluence(Unlearner):
    """theta + p with (H + lambda I) p = grad L(G) - grad L(G'), on the rows that are concerned.

    L is the server's loss over all pairs (Eq. 17-18), G the loans before and G' after the request,
    H the Hessian of L(G') at theta: the items of the loans that go, and the rows of people who
    still lend one of them. The devices' loss, which the server does not know, holds the table in
    place: lambda stands for it. Nothing has to be kept, and no device works.

    Records that a device trained on are in no loss of the server: it trains again instead.
    """

    paper: ClassVar[str] = "after IFRU, arXiv 2307.02147"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "ServerInfluence"

    stiffness: float = 10.0
    """Lambda as a multiple of the curvature along the right-hand side, |g' H g| / g' g. Of .1, 1,
    10 and 100 the nearest to a retraining on ML-100K: below it the model is ruined, above it
    nothing moves."""
    solver_steps: int = 30
    """Conjugate gradient steps, each one product with H; it stops where curvature is negative."""
    solver_rest: float = 1e-3
    """It also stops when so little of the right-hand side is left."""

    def __post_init__(self) -> None:
        if not (self.stiffness >= 0 and self.solver_steps >= 1 and 0 < self.solver_rest < 1):
            raise ConfigError(
                f"ServerInfluence.stiffness is 0 or above, solver_steps 1 or more and solver_rest "
                f"between 0 and 1; got {self.stiffness}, {self.solver_steps}, {self.solver_rest}."
            )

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Purge, and move the rows that the loans touched."""
        learner = fedshare_of(fed.method, "ServerInfluence")
        if len(targets(fed, request, learner)):
            return fed.retrained(request.event)
        after = cleared(fed, request)
        clock = fed.clock.at(fed.now.state.round)
        state = self.server_moved(learner, fed.now.state, fed.world, after.world, clock)
        own = {**after.now.state.own}
        stay = graph_of(after.world).sharers
        own["user"] = own["user"].index_copy(0, stay, state.own["user"].index_select(0, stay))
        state = replace(after.now.state, public=state.public, own=own)
        return without_restore_points(after.with_(state=state), request)

    def server_moved(
        self, learner: FedShare, state: ServerState, before: World, after: World, clock: Clock
    ) -> ServerState:
        """The state one damped Newton step towards the optimum without the loans."""
        gone = before.shared[~before.shared.among(after.shared)]
        if not len(gone) or not len(after.shared):
            return state
        old, new = graph_of(before), graph_of(after)
        items = graph_of(replace(before, shared=gone)).lent_items
        where = rows_concerned(new, items, before.sizes.clients)
        theta = torch.cat([state.public["item"], state.own["user"]]).double()

        def down(graph: SharedGraph, at: Tensor) -> Tensor:
            loss = server_loss(learner, graph, at, before.sizes.items, clock)
            return torch.autograd.grad(loss, [at], create_graph=True)[0]

        here = theta.requires_grad_()
        slope = down(new, here)
        wanted = torch.where(where, (down(old, here) - slope).detach(), 0.0)

        def product(along: Tensor) -> Tensor:
            (out,) = torch.autograd.grad(slope, [here], along, retain_graph=True)
            return torch.where(where, out, 0.0)

        step = solved(product, wanted, self.stiffness, self.solver_steps, self.solver_rest)
        moved = theta.detach() + step
        item, user = moved[: before.sizes.items], moved[before.sizes.items :]
        public = {**state.public, "item": item.to(state.public["item"])}
        return replace(state, public=public, own={**state.own, "user": user.to(state.own["user"])})


def server_loss(
    learner: FedShare, graph: SharedGraph, theta: Tensor, items: int, clock: Clock
) -> Tensor:
    """BPR over every pair once, and InfoNCE over the contrasted items (Eq. 18).

    Of operations that can be differentiated twice.    theta: [I + clients, d]
    """
    item, user = theta[:items], theta[items:].index_select(0, graph.sharers)
    drawn = replace(learner.steps, pairs=None).draw(graph, 0, clock)
    people, seen = propagated(graph, user, item, learner.layers)
    loss = learner.refine_bpr * learner.steps.plain_loss(people, seen, drawn)
    if not learner.contrast:
        return loss
    chosen = graph.some_items(learner.contrast_items, clock)
    local, other = item.index_select(0, chosen), seen.index_select(0, chosen)
    nothing = theta.new_zeros(0, len(chosen), theta.shape[1])
    none = torch.zeros(len(chosen), dtype=torch.bool, device=theta.device)
    tau = learner.contrast_temperature
    return loss + learner.contrast * contrastive_forgetting(local, other, nothing, none, tau)


def propagated(
    graph: SharedGraph, user: Tensor, item: Tensor, layers: int
) -> tuple[Tensor, Tensor]:
    """`SharedGraph.propagate` of operations that can be differentiated twice."""
    there, back = (
        torch.sparse_coo_tensor(
            side.places, side.weight.to(item), side.shape, is_coalesced=True, check_invariants=False
        )
        for side in graph.matrices
    )
    people, seen = user, item
    for _ in range(layers):
        people, seen = user + torch.sparse.mm(there, seen), item + torch.sparse.mm(back, people)
    return people / (layers + 1), seen / (layers + 1)


def rows_concerned(graph: SharedGraph, items: Tensor, clients: int) -> Tensor:
    """Which rows are concerned: these items, and who still lends one. [I + clients, 1] bool"""
    people = graph.sharers[torch.unique(graph.user[torch.isin(graph.item, items)])]
    out = torch.zeros(graph.items + clients, 1, dtype=torch.bool, device=items.device)
    out[items] = True
    out[graph.items + people] = True
    return out


def solved(product: Product, wanted: Tensor, stiffness: float, steps: int, rest: float) -> Tensor:
    """p with (H + lambda I) p = g by conjugate gradients, or as far as curvature is positive.

    product: v -> H v    lambda = stiffness |g' H g| / g' g
    """
    length = float(wanted.square().sum())
    if not length:
        return torch.zeros_like(wanted)
    lift = stiffness * abs(float((wanted * product(wanted)).sum())) / length
    p, left = torch.zeros_like(wanted), wanted
    along, now = left, length
    for _ in range(steps):
        bent = product(along) + lift * along
        curvature = float((along * bent).sum())
        if curvature <= 0:
            # The first direction is still the way down; of a later one nothing is known.
            return p if float(p.abs().max()) else along
        far = now / curvature
        p, left = p + far * along, left - far * bent
        new = float(left.square().sum())
        if new <= rest**2 * length:
            break
        along, now = left + (new / now) * along, new
    return p
