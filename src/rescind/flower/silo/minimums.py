"""What a silo asks of every sum before it gives it out, whatever the server says.

A sum over few people shows what each of them has; so does the difference of two sums over nearly
the same people. The silo's owner can allow both with `--single-updates`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rescind.core import params
from rescind.core.executor import by_role
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.errors import ConsentError

LEAST_PEOPLE = 3
"""With two people in a sum, each could compute the other's part. A silo on which fewer have
something to train on gives sums of all of them; of one, only if the silo has no other member."""
Flags = NDArray[np.bool_]
FILE = "masked-sums.safetensors"
_REMEDY = "Ask for more of its clients, or let its owner join with --single-updates."


def people(method: Method, holdings: Holdings) -> Tensor:
    """Return the members that have something to train on in this method. [clients] bool"""
    return holdings.available if method.local_includes_shared else holdings.keeps


def check_method(silo: int, method: Method) -> None:
    """Refuse a method that sends updates of single clients."""
    if method.individual:
        raise ConsentError(
            f"{type(method).__name__} sends updates of single clients to the server, but silo "
            f"{silo} sends sums only. Choose another method, or join with --single-updates."
        )


def check_training(
    silo: int,
    method: Method,
    ids: Tensor,
    holdings: Holdings,
    roles: Mapping[int, str] | None,
    folder: Path | None,
) -> None:
    """Refuse a round whose sums show single clients. folder: of earlier sums, if it is masked"""
    there, members = people(method, holdings), holdings.members
    check_sum(silo, ids, roles, there, int(members.sum()))
    if folder is not None:
        check_difference(folder / FILE, silo, ids, there, members)


def check_sum(
    silo: int, ids: Tensor, roles: Mapping[int, str] | None, there: Tensor, members: int
) -> None:
    """Refuse sums in which too few different people take part. Each role has its own sum.

    ids: different ones; a request that names a client twice is not valid (`wire.schema`)
    there: [clients] bool, the members that have something to train on
    """
    least = max(min(LEAST_PEOPLE, int(there.sum())), min(2, members))
    for role, mine in by_role(ids, roles):
        count = int(there[mine].sum())
        if count < least:
            raise ConsentError(
                f"silo {silo} was asked for a sum of role '{role}' in which {count} of its "
                f"{members} clients take part; it gives sums of {least} or more. {_REMEDY}"
            )


def check_measured(folder: Path, silo: int, ids: Tensor, holdings: Holdings, split: str,
                   block: int | None) -> None:  # fmt: skip
    """Refuse measures over too few people, or over nearly the same people as before.

    Measures count what people have, and what is held out for them.
    """
    held = torch.zeros_like(holdings.members)
    held[holdings.holders(split, block)] = True
    for kind, there in (("own", holdings.available), (split, held)):
        count, least = int(there[ids].sum()), min(LEAST_PEOPLE, int(there.sum()))
        if 0 < count < least or len(torch.unique(ids)) < len(ids):
            raise ConsentError(
                f"silo {silo} was asked to measure {count} of its {int(there.sum())} clients with "
                f"{kind} records; it measures {least} or more, each once. {_REMEDY}"
            )
        if count:
            check_difference(folder / f"measured-{kind}.safetensors", silo, ids, there,
                             holdings.members)  # fmt: skip


def check_difference(path: Path, silo: int, ids: Tensor, there: Tensor, members: Tensor) -> None:
    """Refuse a sum that differs from an earlier one by too few people. Remember the new one.

    People who came or left since do not count alone: a silo does not refuse to forget. Whoever
    is no longer a member is removed from what it remembers.

    path: the file with earlier sums    there: [clients] bool, the members that have something to
    sum    members: [clients] bool
    """
    earlier = _read(path)  # [n, 2, clients]
    clients = max(len(there), earlier.shape[2])
    earlier = np.pad(earlier, ((0, 0), (0, 0), (0, clients - earlier.shape[2])))
    asked = np.zeros(clients, dtype=bool)
    asked[ids.cpu().numpy()] = True
    present, kept = np.zeros(clients, dtype=bool), np.ones(clients, dtype=bool)
    present[: len(there)], kept[: len(members)] = there.cpu().numpy(), members.cpu().numpy()
    asked &= present  # others add nothing
    earlier &= kept
    then_asked, then_present = earlier[:, 0], earlier[:, 1]
    differ = then_asked ^ asked  # [n, clients]
    stayed = differ & then_present & present
    close = stayed.any(1) & (differ.sum(1) < LEAST_PEOPLE)
    if close.any():
        few = int(differ[close].sum(1).min())
        raise ConsentError(
            f"silo {silo} was asked for {int(asked.sum())} of its {int(present.sum())} clients, "
            f"which differs from an earlier sum by {few}; sums must differ by "
            f"{LEAST_PEOPLE} or more. Ask for all clients in every round (clients_per_round)."
        )
    both = np.concatenate([earlier, np.stack([asked, present])[None]])
    both = np.unique(np.packbits(both, axis=2), axis=0)
    facts = {"facts": json.dumps({"clients": clients})}
    params.save(path, {"sums": torch.from_numpy(both)}, facts)


def _read(path: Path) -> Flags:
    """Return who was asked for in earlier sums, and who was there. [n, 2, clients]"""
    if not path.is_file():
        return np.zeros((0, 2, 0), dtype=bool)
    tensors, notes = params.load(path)
    clients = int(json.loads(notes["facts"])["clients"])
    return np.unpackbits(tensors["sums"].numpy(), axis=2, count=clients).astype(bool)
