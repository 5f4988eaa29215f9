"""Shared parts of the unlearners that remove one leaving client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.params import Params, norm, times
from rescind.core.records import Withdraw
from rescind.core.request import Request
from rescind.core.state import REFERENCE, has_user_rows, reset_rows, without_optimiser_state
from rescind.core.update import Sum

FORGET, KEEP = "forget", "keep"
"""Roles while a client is being forgotten: the leaving client, and all others."""
ONLINE = "online"
"""Server state: ids of the clients in an unlearner's rounds. Default: all clients."""

M = TypeVar("M", bound=Method)


def leaving_client(roles: Mapping[int, str]) -> int:
    return next(client for client, role in roles.items() if role == FORGET)


def remove_client(
    fed: Federation,
    request: Request,
    steps: Callable[[Federation, dict[int, str]], Federation],
    repair: int,
) -> Federation:
    """Run the unlearner's rounds, clear the server state, withdraw the client, run repair rounds.

    A client that never took part changes nothing. Requests for single records are answered by
    retraining, which is exact: these papers only cover leaving clients.

    """
    event = request.event
    if not isinstance(event, Withdraw):
        return fed.retrained(event)
    without = fed.apply(event)  # first, because it rejects a client that is not a member
    if had_no_influence(fed, request):
        return without
    members = fed.world.members.nonzero().squeeze(1).tolist()
    roles = {c: FORGET if c == event.client else KEEP for c in members}
    after = clear_server_state(steps(fed, roles), fed, event.client)
    return after.apply(event).run(repair, method=fed.method)


def had_no_influence(fed: Federation, request: Request) -> bool:
    """Return whether the history shows that no client of the request took part in training."""
    return fed.past is not None and request.first_round is None


def clear_server_state(after: Federation, before: Federation, client: int) -> Federation:
    """Remove references and optimiser moments (they contain the client's gradients).

    Per-client rows on the server are kept, except the leaving client's.
    """
    public, device = weights(after.now.state.public), before.world.members.device
    first = before.method.server_init(before.world, before.clock).own
    clients = before.world.sizes.clients
    kept = without_optimiser_state(before.now.state.own)
    rows = {name: value for name, value in kept.items() if has_user_rows(name, value, clients)}
    own = {name: value.to(device) for name, value in first.items()}
    own |= reset_rows(rows, first, torch.tensor([client]), clients)
    return after.with_(state=replace(after.now.state, public=public, own=own))


def with_reference(
    fed: Federation,
    values: Mapping[str, Tensor],
    roles: Mapping[int, str] | None = None,
    only: str | None = None,
) -> Federation:
    """Return the federation with these values added to the broadcast, read-only."""
    named = {f"{REFERENCE}{name}": value for name, value in values.items()}
    own = {}
    if roles is not None and only is not None:
        own[ONLINE] = torch.tensor([c for c, role in roles.items() if role == only])
    state = replace(fed.now.state, public={**fed.now.state.public, **named}, own=own)
    return fed.with_(state=state)


def only_online(ids: Tensor, own: Params) -> Tensor:
    """Return the clients that take part (`ONLINE`), sorted."""
    return ids[torch.isin(ids, own[ONLINE].to(ids.device))] if ONLINE in own else ids


def one_step(method: M, **fields: Any) -> M:
    """Return the method with one plain local step, so that clients send gradients."""
    plain: dict[str, Any] = {"epochs": 1, "optimiser": "sgd", "rate": 1.0, "weight_decay": 0.0}
    plain |= {"keep_moments": False, "clients_per_round": None, "batch_size": None}
    return replace(method, **{**plain, **fields})


def round_sums(fed: Federation, method: Method, roles: Mapping[int, str]) -> dict[str, Sum]:
    """Run one round and return its sums by role. The federation is not changed."""
    seen: list[Mapping[str, Sum]] = []
    fed.run(1, method=method, roles=roles, watch=[lambda moment: seen.append(moment.sums)])
    return dict(seen[0])


def weights(public: Params) -> dict[str, Tensor]:
    """Return the trained parameters."""
    return {n: v for n, v in public.items() if not n.startswith(REFERENCE)}


def reference(public: Params) -> dict[str, Tensor]:
    """Return the read-only values of the broadcast, such as the model before forgetting."""
    return {n[len(REFERENCE) :]: v for n, v in public.items() if n.startswith(REFERENCE)}


def clipped(step: Params, max_norm: float) -> dict[str, Tensor]:
    """Return the step, scaled down to `max_norm` if it is longer."""
    return times(step, min(1.0, max_norm / max(norm(step), 1e-12)))


def within_ball(before: Params, after: Params, radius: float) -> dict[str, Tensor]:
    """Return the nearest weights within `radius` of the reference model in `before`."""
    start = reference(before)
    inside = clipped({n: v - start[n] for n, v in weights(after).items()}, radius)
    return {**after, **{n: start[n] + v for n, v in inside.items()}}
