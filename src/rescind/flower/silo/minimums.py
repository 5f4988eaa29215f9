"""What a silo asks of every sum before it gives it out, whatever the server says.

A sum over few people shows what each of them has; so does the difference of two sums over nearly
the same people. The silo's owner can allow both with `--single-updates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rescind.core import params
from rescind.core.executor import by_role
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.saved import Schema, Values, fitting, reading
from rescind.errors import ConsentError
from rescind.flower.silo.departures import read_list
from rescind.flower.silo.names import NOT_HERE
from rescind.flower.silo.storage import as_bytes, as_keys

LEAST_PEOPLE = 3
"""With two people in a sum, each could compute the other's part. A silo on which fewer have
something to train on gives sums of all of them; of one, only if the silo has no other member."""
Flags = NDArray[np.bool_]
FILE = "masked-sums.safetensors"
SAVED: Schema = {
    "sums": Values(torch.uint8, ("sums", 2, "bytes")),
    "people": Values(torch.uint8, ("people", 16)),
}
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
) -> None:
    """Refuse a round whose sums show single clients."""
    there, members = people(method, holdings), holdings.members
    check_sum(silo, ids, roles, there, int(members.sum()))


def check_masked(
    folder: Path,
    silo: int,
    method: Method,
    ids: Tensor,
    holdings: Holdings,
    names: Sequence[str],
) -> None:
    """Refuse a masked sum over nearly the same people as an earlier one.

    folder: of earlier sums    names: the key of the person with each number
    """
    there = people(method, holdings)
    check_difference(folder / FILE, silo, ids, there, holdings.members, names)


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


def check_measured(
    folder: Path,
    silo: int,
    ids: Tensor,
    holdings: Holdings,
    split: str,
    block: int | None,
    names: Sequence[str],
) -> None:
    """Refuse measures over too few people, or over nearly the same people as before.

    Measures count what people have, and what is held out for them.
    names: the key of the person with each number
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
            path = folder / f"measured-{kind}.safetensors"
            check_difference(path, silo, ids, there, holdings.members, names)


def check_difference(
    path: Path, silo: int, ids: Tensor, there: Tensor, members: Tensor, names: Sequence[str]
) -> None:
    """Refuse a sum that differs from an earlier one by too few people. Remember the new one.

    People who came or left since do not count alone: a silo does not refuse to forget. Whoever
    is no longer a member is removed from what it remembers.

    Sums are remembered by the keys of people. By number, data that grows and numbers people anew
    would make the same people look like others, and all of them but one like a new sum.

    path: the file with earlier sums    there: [clients] bool, the members that have something to
    sum    members: [clients] bool    names: the key of the person with each number
    """
    known, earlier = _read(path)
    place, before = {name: number for number, name in enumerate(names)}, set(known)
    fresh = [names[c] for c in there.nonzero().squeeze(1).tolist() if names[c] not in before]
    keys, earlier = [*known, *fresh], np.pad(earlier, ((0, 0), (0, 0), (0, len(fresh))))
    number = np.array([place.get(key, NOT_HERE) for key in keys], dtype=np.int64)
    here = (number >= 0) & (number < len(there))

    def of_keys(flags: Tensor) -> Flags:
        found = np.zeros(len(keys), dtype=bool)
        found[here] = flags.cpu().numpy()[number[here]]
        return found

    chosen = torch.zeros_like(there)
    chosen[ids] = True
    present = of_keys(there)
    asked = of_keys(chosen) & present  # others add nothing
    listed = read_list(path.parent)
    away = ~here
    away[away] = [not listed.has_withdrawn(keys[n]) for n in np.flatnonzero(away)]
    earlier &= of_keys(members) | away
    then_asked, then_present = earlier[:, 0], earlier[:, 1]
    differ = then_asked ^ asked  # [n, keys]
    stayed = differ & then_present & present
    close = stayed.any(1) & (differ.sum(1) < LEAST_PEOPLE)
    if close.any():
        few = int(differ[close].sum(1).min())
        raise ConsentError(
            f"silo {silo} was asked for {int(asked.sum())} of its {int(present.sum())} clients, "
            f"which differs from an earlier sum by {few}; sums must differ by "
            f"{LEAST_PEOPLE} or more. Ask for all clients in every round (clients_per_round)."
        )
    _write(path, keys, np.concatenate([earlier, np.stack([asked, present])[None]]))


def _write(path: Path, keys: Sequence[str], sums: Flags) -> None:
    """Write who was in each sum, and who was there. Whoever was in none leaves no trace."""
    somewhere = np.flatnonzero(sums.any((0, 1)))
    if len(somewhere):
        packed = np.unique(np.packbits(sums[:, :, somewhere], axis=2), axis=0)
    else:
        packed = np.zeros((0, 2, 0), dtype=np.uint8)
    people = as_bytes([keys[n] for n in somewhere.tolist()])
    params.save(path, {"sums": torch.from_numpy(packed), "people": people})


def _read(path: Path) -> tuple[tuple[str, ...], Flags]:
    """Return the keys of people, who was asked for in earlier sums, and who was there.

    Return (keys, [n, 2, keys])
    """
    if not path.is_file():
        return (), np.zeros((0, 2, 0), dtype=bool)
    tensors, _ = params.load(path)
    with reading(path):
        fitting(tensors, SAVED)
        keys = as_keys(tensors["people"])
        sums = np.unpackbits(tensors["sums"].numpy(), axis=2, count=len(keys)).astype(bool)
        return keys, sums
