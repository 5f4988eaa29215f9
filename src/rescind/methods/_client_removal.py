"""What the unlearners of a leaving client have in common: who goes, who stays, what is wiped."""

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
"""Roles while a client is being forgotten: the one who leaves, and the others."""
ONLINE = "online"
"""The server's note of who takes part in the rounds of an unlearner; without it, everybody."""

M = TypeVar("M", bound=Method)


def leaver(roles: Mapping[int, str]) -> int:
    """The client that leaves, given everybody's role."""
    return next(client for client, role in roles.items() if role == FORGET)


def forgotten(
    fed: Federation,
    request: Request,
    steps: Callable[[Federation, dict[int, str]], Federation],
    repair: int,
) -> Federation:
    """The story of a leaver: the unlearner's own rounds, wipe what they needed, withdraw, repair.

    Who never took part is in no weight: the model stays as it is. Repair rounds are plain rounds
    of the federation's own method without the leaver. Single records are forgotten by training
    again, which is exact: these papers know leaving clients only.

    steps: the unlearner's rounds, given the federation and everybody's role
    """
    event = request.event
    if not isinstance(event, Withdraw):
        return fed.retrained(event)
    gone = fed.apply(event)  # refuses a client that is no member before anything is done
    if had_no_influence(fed, request):
        return gone
    members = fed.world.members.nonzero().squeeze(1).tolist()
    roles = {c: FORGET if c == event.client else KEEP for c in members}
    after = wiped(steps(fed, roles), fed, event.client)
    return after.apply(event).run(repair, method=fed.method)


def had_no_influence(fed: Federation, request: Request) -> bool:
    """Whether nobody of an event is in any weight, as far as the past is known."""
    return fed.past is not None and request.first_round is None


def wiped(after: Federation, before: Federation, client: int) -> Federation:
    """Without references and without the server's moments, which hold the leaver's gradients.

    Rows that the server keeps by client stay, but for the leaver's.
    """
    public, device = weights(after.now.state.public), before.world.members.device
    first = before.method.server_init(before.world, before.clock).own
    clients = before.world.sizes.clients
    rows = {
        name: value
        for name, value in without_optimiser_state(before.now.state.own).items()
        if has_user_rows(name, value, clients)
    }
    own = {name: value.to(device) for name, value in first.items()}
    own |= reset_rows(rows, first, torch.tensor([client]), clients)
    return after.with_(state=replace(after.now.state, public=public, own=own))


def referring(
    fed: Federation,
    values: Mapping[str, Tensor],
    roles: Mapping[int, str] | None = None,
    only: str | None = None,
) -> Federation:
    """The same federation that also broadcasts these values, to be read and not trained.

    only: of everybody's roles, the one that takes part in what follows
    """
    named = {f"{REFERENCE}{name}": value for name, value in values.items()}
    own = {}
    if roles is not None and only is not None:
        own[ONLINE] = torch.tensor([c for c, role in roles.items() if role == only])
    state = replace(fed.now.state, public={**fed.now.state.public, **named}, own=own)
    return fed.with_(state=state)


def asked(ids: Tensor, own: Params) -> Tensor:
    """Of these clients, whom the server asks. sorted"""
    return ids[torch.isin(ids, own[ONLINE].to(ids.device))] if ONLINE in own else ids


def one_step(method: M, **fields: Any) -> M:
    """The same method taking one plain step from what is broadcast: it sends gradients."""
    plain: dict[str, Any] = {"epochs": 1, "optimiser": "sgd", "rate": 1.0, "weight_decay": 0.0}
    plain |= {"keep_moments": False, "clients_per_round": None, "batch_size": None}
    return replace(method, **{**plain, **fields})


def watched(fed: Federation, method: Method, roles: Mapping[int, str]) -> dict[str, Sum]:
    """What a round of a method would bring the server, by role; the round itself is not kept."""
    seen: list[Mapping[str, Sum]] = []
    fed.run(1, method=method, roles=roles, watch=[lambda moment: seen.append(moment.sums)])
    return dict(seen[0])


def weights(public: Params) -> dict[str, Tensor]:
    """What is trained."""
    return {n: v for n, v in public.items() if not n.startswith(REFERENCE)}


def reference(public: Params) -> dict[str, Tensor]:
    """What is broadcast to be read: the model as it was when forgetting began, and the like."""
    return {n[len(REFERENCE) :]: v for n, v in public.items() if n.startswith(REFERENCE)}


def clipped(step: Params, longest: float) -> dict[str, Tensor]:
    """A step no longer than this."""
    return times(step, min(1.0, longest / max(norm(step), 1e-12)))
