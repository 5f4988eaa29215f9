"""Check the sums in silos' replies and add them, or take trimmed means of them.

Trimmed means (Yin et al., ICML 2018): for each entry, the means of the silos are sorted, and the
largest and the smallest fraction `trim` are left out. So a few silos that lie cannot move a value
beyond the honest ones. Silos then count equally, whatever number of clients they state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rescind.core.gate import SHAPE
from rescind.core.tasks import Metric
from rescind.core.update import Sum
from rescind.errors import ConfigError, ConsentError
from rescind.flower.server.transport import INVALID
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.payloads import Bounds, checked_sums, conflicts, sums_of
from rescind.flower.wire.schema import metric_flaw

TIMES = 10.0
"""A silo's update may be this many times as large as the median silo's, whatever the limit: where
all grow, as in a run in one process that diverges, none lies."""


def check_trim(trim: float, masked: bool) -> None:
    """Check the fraction to leave out at each end."""
    if not 0 <= trim < 0.5:
        raise ConfigError(f"trim must be at least 0 and below 0.5; got {trim}.")
    if trim and masked:
        raise ConfigError("masked sums cannot be trimmed: the server sees no silo's sum.")


class NeededError(ConsentError):
    """The silo of the one who asks was not there: the request can be given again."""


def check_roles(
    asked: Mapping[int, Tensor], roles: Mapping[int, str] | None, missing: Mapping[int, str]
) -> None:
    """Refuse a round in which nobody answered for one of the roles.

    Without the one who leaves it would forget nothing, and the request would count as answered.

    asked: clients, by silo    missing: why the sum of a silo is not there
    """
    roles = roles or {}
    of_silo = {
        silo: {c: roles[c] for c in ids.tolist() if c in roles} for silo, ids in asked.items()
    }
    there = {role for silo, own in of_silo.items() if silo not in missing for role in own.values()}
    for silo, reason in sorted(missing.items()):
        for client, role in of_silo[silo].items():
            if role not in there:
                raise NeededError(
                    f"silo {silo} is needed for this request and was not there ({reason}). The "
                    f"model is as before: start the silo, then give the request again.",
                    client=client,
                )


def accepted(
    replies: Mapping[int, Letter], asked: Mapping[int, Bounds], limit: float, trim: float
) -> tuple[dict[str, Sum], dict[int, str]]:
    """Return the sums of all valid replies by role, and why the others are refused, by silo.

    limit: the largest norm per client, or `TIMES` that of the median silo if that is larger
    """
    found = {silo: checked_sums(reply, asked[silo]) for silo, reply in replies.items()}
    why = {silo: one for silo, one in found.items() if isinstance(one, str)}
    good = {silo: one for silo, one in found.items() if not isinstance(one, str)}
    why |= dict.fromkeys(conflicts(good), SHAPE)
    norms = {silo: _norm(one) for silo, one in good.items() if silo not in why}
    most = max(limit, TIMES * sorted(norms.values())[(len(norms) - 1) // 2]) if norms else limit
    why |= {silo: f"norm above {limit:g}" for silo, norm in norms.items() if norm > most}
    return combined([one for silo, one in good.items() if silo not in why], trim), why


def _norm(sums: Mapping[str, Sum]) -> float:
    """Return the norm of a silo's update per client."""
    values = [value.double() for total in sums.values() for value in total.totals.values()]
    weight = sum(total.weight for total in sums.values())
    return math.sqrt(sum(float(v.square().sum()) for v in values)) / weight if weight else 0.0


def accepted_measures(
    replies: Mapping[int, Letter], metric: Metric, items: int, most: Mapping[int, int]
) -> tuple[Sum | None, dict[int, str]]:
    """Return the totals of all valid replies, and why the others are refused, by silo.

    most: by silo, the largest possible count of its clients or of their nodes
    """
    total, why = None, {}
    for silo, reply in replies.items():
        try:
            one = sums_of(reply)["measure"]
            flaw = metric_flaw(one, metric, items, most[silo])
        except Exception as error:  # totals that no check foresaw must not end the server
            flaw = repr(error)
        if flaw is not None:
            why[silo] = f"{INVALID}: {flaw}"
            continue
        total = one if total is None else total + one
    return total, why


def combined(sums: Sequence[Mapping[str, Sum]], trim: float = 0.0) -> dict[str, Sum]:
    """Add the sums of silos by role. With `trim`, their means are trimmed means."""
    out: dict[str, Sum] = {}
    for one in sums:
        for role, total in one.items():
            out[role] = out[role] + total if role in out else total
    if trim:
        for role, total in out.items():
            parts = [one[role] for one in sums if role in one]
            trimmed = {name: _trimmed(name, parts, trim) for name in total.totals}
            out[role] = replace(total, totals=trimmed)
    return out


def _trimmed(name: str, parts: Sequence[Sum], trim: float) -> Tensor:
    """Return the total whose mean is the trimmed mean of the silos' means. [...]"""
    parts = [part for part in parts if name in part.totals]
    totals = torch.stack([part.totals[name] for part in parts])
    if not totals.is_floating_point():
        raise ConfigError(f"counts ('{name}') cannot be trimmed. Run without --trim.")
    weights = torch.stack(
        [part.touched.get(name, torch.tensor(part.weight)).to(totals.dtype) for part in parts]
    )
    weights = weights.view(*weights.shape, *[1] * (totals.dim() - weights.dim())).expand_as(totals)
    there = weights > 0
    means = torch.where(there, totals / weights, torch.inf).sort(0).values  # absent silos last
    count = there.sum(0)
    cut = (trim * count).floor()
    rank = torch.arange(len(parts), device=totals.device).view(-1, *[1] * (totals.dim() - 1))
    kept = (rank >= cut) & (rank < count - cut)
    mean = torch.where(kept, means, 0).sum(0) / kept.sum(0).clamp(min=1)
    return (mean * weights.sum(0)).to(totals.dtype)
