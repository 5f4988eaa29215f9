"""Forget shared records with no client online: one damped Newton step on the server's loss.

After influence functions for recommenders (IFRU, arXiv 2307.02147; baselines.md 3.6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.ranges import must_lie
from rescind.core.request import Request
from rescind.core.state import ServerState
from rescind.core.world import World
from rescind.methods._lent_graph.graph import SharedGraph, graph_of
from rescind.methods.sharing._forgotten_views import contrastive_forgetting
from rescind.methods.sharing._server_rerun import targets
from rescind.methods.sharing.fedshare import FedShare, fedshare_of
from rescind.methods.unlearning.purge_only import cleared, without_restore_points

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ServerInfluence(Unlearner):
    """theta + p with (H + lambda I) p = grad L(G) - grad L(G'), on the affected rows.

    L is the server's loss over all pairs (Eq. 17-18), G the shared records before and G' after the
    request, H the Hessian of L(G') at theta. Affected are the items of the removed records and the
    users that still share one of them. Lambda replaces the devices' loss, which the server does not
    know. Nothing has to be stored, and no device takes part.

    Records that a device trained on are not in the server's loss: such requests are retrained.
    """

    paper: ClassVar[str] = "after IFRU, arXiv 2307.02147"
    exact: ClassVar[bool] = False
    unlearning: ClassVar[str] = "ServerInfluence"

    stiffness: float = 10.0
    """Lambda as a multiple of the curvature along the right-hand side, |g' H g| / g' g. Of .1, 1,
    10 and 100 the nearest to a retraining on ML-100K: lower values damage the model, higher ones
    change nothing."""
    solver_steps: int = 30
    """Maximum number of conjugate gradient steps; it also stops at negative curvature."""
    solver_rest: float = 1e-3
    """Relative residual at which the solver stops."""

    def __post_init__(self) -> None:
        must_lie(self, "[0, inf]", "stiffness")
        must_lie(self, "[1, inf)", "solver_steps")
        must_lie(self, "(0, 1)", "solver_rest")

    def forget(self, fed: Federation, request: Request) -> Federation:
        learner = fedshare_of(fed.method, "ServerInfluence")
        if len(targets(fed, request, learner)):
            return fed.retrained(request.event)
        after = cleared(fed, request)
        clock = fed.clock.at(fed.now.state.round)
        state = self.server_moved(learner, fed.now.state, fed.world, after.world, clock)
        own = {**after.now.state.own}
        users = graph_of(after.world).sharers
        own["user"] = own["user"].index_copy(0, users, state.own["user"].index_select(0, users))
        state = replace(after.now.state, public=state.public, own=own)
        return without_restore_points(after.with_(state=state), request)

    def server_moved(
        self, learner: FedShare, state: ServerState, before: World, after: World, clock: Clock
    ) -> ServerState:
        removed = before.shared[~before.shared.among(after.shared)]
        if not len(removed) or not len(after.shared):
            return state
        old, new = graph_of(before), graph_of(after)
        items = graph_of(replace(before, shared=removed)).lent_items
        where = affected_rows(new, items, before.sizes.clients)
        theta = torch.cat([state.public["item"], state.own["user"]]).double()

        def gradient(graph: SharedGraph, at: Tensor) -> Tensor:
            loss = server_loss(learner, graph, at, before.sizes.items, clock)
            return torch.autograd.grad(loss, [at], create_graph=True)[0]

        here = theta.requires_grad_()
        slope = gradient(new, here)
        wanted = torch.where(where, (gradient(old, here) - slope).detach(), 0.0)

        def product(along: Tensor) -> Tensor:
            (out,) = torch.autograd.grad(slope, [here], along, retain_graph=True)
            return torch.where(where, out, 0.0)

        step = solve(product, wanted, self.stiffness, self.solver_steps, self.solver_rest)
        moved = theta.detach() + step
        item, user = moved[: before.sizes.items], moved[before.sizes.items :]
        public = {**state.public, "item": item.to(state.public["item"])}
        return replace(state, public=public, own={**state.own, "user": user.to(state.own["user"])})


def server_loss(
    learner: FedShare, graph: SharedGraph, theta: Tensor, items: int, clock: Clock
) -> Tensor:
    """Return BPR over every pair once, plus InfoNCE over the contrasted items (Eq. 18).

    Can be differentiated twice.    theta: [I + clients, d]
    """
    item, user = theta[:items], theta[items:].index_select(0, graph.sharers)
    drawn = replace(learner.steps, pairs=None).draw(graph, 0, clock)
    users, seen = propagated(graph, user, item, learner.layers)
    loss = learner.refine_bpr * learner.steps.plain_loss(users, seen, drawn)
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
    """Compute `SharedGraph.propagate` so that it can be differentiated twice."""
    by_user, by_item = (
        torch.sparse_coo_tensor(
            side.places, side.weight.to(item), side.shape, is_coalesced=True, check_invariants=False
        )
        for side in graph.matrices
    )
    users, seen = user, item
    for _ in range(layers):
        users, seen = user + torch.sparse.mm(by_user, seen), item + torch.sparse.mm(by_item, users)
    return users / (layers + 1), seen / (layers + 1)


def affected_rows(graph: SharedGraph, items: Tensor, clients: int) -> Tensor:
    """Return a mask of these items and the users that still share one. [I + clients, 1] bool"""
    users = graph.sharers[torch.unique(graph.user[torch.isin(graph.item, items)])]
    out = torch.zeros(graph.items + clients, 1, dtype=torch.bool, device=items.device)
    out[items] = True
    out[graph.items + users] = True
    return out


def solve(product: Product, wanted: Tensor, stiffness: float, steps: int, rest: float) -> Tensor:
    """Solve (H + lambda I) p = g by conjugate gradients, until the curvature is not positive.

    product: v -> H v    lambda = stiffness |g' H g| / g' g
    """
    length = float(wanted.square().sum())
    if not length:
        return torch.zeros_like(wanted)
    damping = stiffness * abs(float((wanted * product(wanted)).sum())) / length
    p, residual = torch.zeros_like(wanted), wanted
    along, now = residual, length
    for _ in range(steps):
        curved = product(along) + damping * along
        curvature = float((along * curved).sum())
        if curvature <= 0:
            # The first direction is a descent direction; a later one need not be.
            return p if float(p.abs().max()) else along
        size = now / curvature
        p, residual = p + size * along, residual - size * curved
        new = float(residual.square().sum())
        if new <= rest**2 * length:
            break
        along, now = residual + (new / now) * along, new
    return p
