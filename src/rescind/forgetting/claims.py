"""Claims of exactness: what a receipt says of a sum, and the rebuild that checks it.

An additive learner forgets by subtraction, so there is one right sum after a request: the sum over
what remains. A receipt states its digest; whoever holds the remaining data adds it up again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.cohort import Lot
from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.errors import DataError
from rescind.forgetting.receipt import SUM_AFTER, Receipt
from rescind.forgetting.verify import Check
from rescind.methods.additive._exchange import OWNERS, Lent, outstanding, parts_of_loans
from rescind.methods.additive._pairs import Parts, from_bits
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.releases import promise, released, waiting, what
from rescind.storage.federations import load_federation

AFTER, BEFORE, OPEN = SUM_AFTER, "sum before", "outstanding"
"""Names of the claims: digests of the sum, and how many devices still owe or have lost a part."""
PUBLISHED, NEXT, EPSILON = "published", "next release", "epsilon"
"""What devices are sent, when they are sent something newer, and what its noise promises."""


@dataclass(frozen=True)
class Claims:
    """What a receipt can state of a forgetting beyond its own word."""

    plain: Mapping[str, str] = field(default_factory=dict)
    sealed: Mapping[str, str] = field(default_factory=dict)
    """Depends on the forgotten records: only digests under the requester's key are written."""
    not_covered: tuple[str, ...] = ()


def claims_of(before: Federation, after: Federation) -> Claims:
    """The digests of the sum before and after, for methods that keep one; nothing for others."""
    if not isinstance(after.method, Gram) or not isinstance(before.method, Gram):
        return Claims()
    left = outstanding(after.now.state.own)
    said = []
    if len(left.owes):
        said.append(
            f"What {len(left.owes)} devices that could not be reached had kept: it is subtracted "
            f"when they are next online."
        )
    if len(left.lost):
        said.append(
            f"What {len(left.lost)} devices had kept that left and never came back: it stays in "
            f"the sum until everybody is counted anew."
        )
    said += after.method.exactness
    if more := waiting(after):
        said.append(
            f"What devices are sent until the next release, which is due when {more} more people "
            f"have changed something: it was made before this request and still holds the records."
        )
    return Claims(
        {
            AFTER: sum_digest(after.now.state.own),
            OPEN: f"{len(left.owes)} owed, {len(left.lost)} lost",
            **_released(after),
        },
        {BEFORE: sum_digest(before.now.state.own)},
        tuple(said),
    )


def _released(fed: Federation) -> dict[str, str]:
    """The privacy dial, for a receipt."""
    more, promised = waiting(fed), promise(fed)
    said = {
        PUBLISHED: what(_gram(fed)),
        NEXT: f"due when {more} more people have changed something" if more else "made",
    }
    if promised:
        often, _ = released(fed)
        said[EPSILON] = (
            f"{promised['epsilon']:.4g} at delta {promised['delta']:g}, {often} releases"
        )
    return said


def sum_digest(own: Mapping[str, Tensor]) -> str:
    """SHA-256 of the whole numbers of a sum, however many bytes each of them is kept in."""
    sums = {n: v.long() for n, v in own.items() if n.startswith("gram/") or n == OWNERS}
    return params.digest(sums)


def rebuilt(fed: Federation) -> dict[str, Tensor]:
    """The sum over the data of a federation, added up from nothing.

    Loans come from the server's copy and what devices kept from the devices; of blocks that are
    over, devices have only their notes of what they counted.
    """
    method, own = _gram(fed), fed.now.state.own
    everybody = torch.arange(fed.world.sizes.clients, device=own["counted"].device)
    parts = _kept(fed, fed.now.vault, everybody, own["counted"] >= 0)
    for (number, _), vault in zip(fed.world.hosted, fed.now.hosted, strict=True):
        who = torch.tensor([number], device=everybody.device)
        parts += _kept(fed, vault, who, torch.ones_like(who, dtype=torch.bool))
    if not method.cross:
        parts += parts_of_loans(Lent.of(own), method.longest_history)
    return method.server_added(parts, fed.world)


def _gram(fed: Federation) -> Gram:
    assert isinstance(fed.method, Gram)
    return fed.method


def _kept(fed: Federation, vault: Vault, who: Tensor, counted: Tensor) -> Parts:
    """What these devices hold, as far as they were counted. who, counted: [C]"""
    now = fed.world.block
    name = "own" if fed.method.local_includes_shared else "unshared"
    longest = _gram(fed).longest_history
    parts = _once(vault.holdings.of_clients(name, who), counted, who, now, longest)
    for note, bits in vault.private.items():
        if note.startswith("sent/") and int(note[-4:]) < now:
            parts += _once(from_bits(bits[who]), counted, who, int(note[-4:]), longest)
    return parts


def _once(lot: Lot, chosen: Tensor, who: Tensor, block: int, longest: int) -> Parts:
    """A part for each of the chosen owners. chosen, who: [owners]"""
    mine = chosen[lot.owner]
    inside = Lot(lot.owner[mine], lot.item[mine], lot.clients)
    return Parts.of(inside, 1, who, torch.full_like(who, block), longest)


def checks_with(run: Path) -> Callable[[Receipt], Check]:
    """A check of a receipt's claim against the data of a run's folder."""
    fed = load_federation(run)
    return lambda receipt: check(receipt, fed, run.name)


def check(receipt: Receipt, fed: Federation, where: str) -> Check:
    """Whether the sum a receipt states is the sum over the data of this federation."""
    stated = receipt.claims.get(AFTER)
    if stated is None:
        return Check(False, "it states no sum that data could be held against")
    if not isinstance(fed.method, Gram):
        raise DataError(
            f"{where} holds a run of {type(fed.method).__name__}, which keeps no sum in whole "
            f"numbers. Give the folder of the additive run that the receipt came with."
        )
    found = sum_digest(rebuilt(fed))
    lent = torch.unique(fed.world.shared.pairs())
    if not fed.method.cross and not torch.equal(lent, Lent.of(fed.now.state.own).pair):
        return Check(False, f"the loans in {where} are not those its sum was made of")
    if found != stated:
        left = receipt.claims.get(OPEN, "")
        owed = "" if left.startswith("0 owed, 0 lost") else f"; it says itself: {left}"
        return Check(
            False,
            f"the data in {where} add up to {found}, not to the sum it states, {stated}{owed}",
        )
    blocks = " (blocks that are over: by the devices' notes)" if fed.world.block else ""
    return Check(True, f"the data in {where} add up to the sum it states, bit for bit{blocks}")
