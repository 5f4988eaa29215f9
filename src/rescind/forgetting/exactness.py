"""Decide who vouches for an exact result: the platform, or only the method.

`exact = True` in a class is a claim. The platform vouches where its own code did the work or where
it has checked the result:

- `Federation.retrained`, called by `Retrain` or by `Method.forget`, is the platform's own code. The
  classes are compared by identity; code that replaces functions of a running process is not in
  scope.
- An additive learner of this package subtracts. The sum over the remaining data, added up again
  from zero, must be the sum it holds.
- Any other claim is checked by making the rounds again: models, states and devices must be equal
  bit for bit, so that nothing else is kept either.

Code from outside that trains is vouched for in none of these ways: what it reads, it may have
written in an earlier run. A fresh process without files and network would not change that: the
first run is not in it, and can leave the old model in the data, in installed packages or in what
compares and signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from rescind.audits.finding import Finding
from rescind.audits.layout import surplus
from rescind.core import params
from rescind.core.claims import AFTER, CLAIMED
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.request import Request
from rescind.core.settings import to_table
from rescind.errors import DataError
from rescind.forgetting.pipeline import (
    Forgotten,
    claimed_by,
    retrains,
    unlearn_and_purge,
    vouched,
)
from rescind.methods.unlearning.retrain import Retrain

AGAIN = "The platform trained the rounds again without what was taken back."
OF_THIS_BLOCK = (
    "The platform trained the rounds of the present block again without what was taken back. "
    "What earlier blocks taught is as it was."
)
NO_ROUND = "No round that can be repeated used what was taken back, so none was trained again."


@dataclass(frozen=True)
class Exactness:
    """Whether a result is exact, and who says so."""

    shown: bool
    says: str
    code: str = ""
    """Files and digests of the code from outside that alone claims it."""

    @property
    def finding(self) -> Finding:
        """Return the line of the receipt."""
        return Finding("exactness", "SHOWN", note=self.says)

    @property
    def claims(self) -> dict[str, str]:
        """Return the claim of the receipt that names this code."""
        return {CLAIMED: self.code} if self.code else {}


def exactness(done: Forgotten) -> Exactness:
    """Say who vouches for a result that no second retraining has checked."""
    by = done.unlearner
    if not by.exact:
        return Exactness(False, f"{type(by).__name__} is approximate.")
    if not vouched(by):
        return Exactness(False, f"{type(by).__name__} counts as exact (exact = True), not checked.")
    if code := claimed_by(by, done.fed.method, done.fed.executor, watch=done.fed.watch):
        says = f"Claimed by code {code}, not shown: it can bring back what an earlier run learnt."
        return Exactness(False, says, code)
    return Exactness(True, _repeated(done)) if retrains(by) else _added_up(done)


def _repeated(done: Forgotten) -> str:
    """Say which rounds the platform made again."""
    if not done.cost.rounds:
        return NO_ROUND
    return OF_THIS_BLOCK if done.fed.now.vault.holdings.now else AGAIN


def _added_up(done: Forgotten) -> Exactness:
    method = done.fed.method
    stated = method.claims(done.fed, done.fed).bound.get(AFTER)
    try:
        right = method.rebuilt(done.fed) == stated
    except DataError as error:
        return Exactness(False, f"Claimed by {type(method).__name__}, not shown: {error}.")
    if right:
        says = (
            "The platform added up the remaining data: it is the sum of the method, bit for bit. "
            "The weights follow from it, equal up to rounding."
        )
        return Exactness(True, says)
    return Exactness(
        False,
        f"Claimed by {type(method).__name__}, not shown: the remaining data do not add up to its "
        f"sum, because devices are away or the sum is wrong.",
    )


def checked(
    fed: Federation, request: Request, unlearner: Unlearner
) -> tuple[Forgotten, Exactness, list[str]]:
    """Answer a request with an unlearner that claims to be exact, and make the rounds again.

    Returns the platform's retraining, in the unlearner's name if its own result is equal in
    everything, and what differed.
    """
    ours = unlearn_and_purge(
        fed, replace(request, away=()), Retrain()
    )  # before theirs can touch it
    mine = unlearn_and_purge(fed, request, unlearner, exact=True)
    wrong = list(differences(mine.fed, ours.fed))
    ours.cost.add(mine.cost)
    known = exactness(ours)
    if wrong:
        return ours, known, wrong
    if known.shown:
        says = f"The platform made the rounds again: {type(unlearner).__name__} gave the same bits."
        known = Exactness(True, says)
    fed = replace(ours.fed, forgot_by=unlearner)
    return replace(ours, fed=fed, unlearner=unlearner), known, []


def differences(mine: Federation, ours: Federation) -> Iterator[str]:
    """Yield what a federation has that the platform's retraining does not have, bit for bit.

    Parts that are missing (such as spare models that were used up) can hold nothing.
    """
    if type(mine.method) is not type(ours.method) or to_table(mine.method) != to_table(ours.method):
        yield "another method"
    yield from surplus(mine, ours)
    if mine.world.digest() != ours.world.digest():
        yield "another world"
    if mine.now.vault.holdings.digest() != ours.now.vault.holdings.digest():
        yield "other data on devices"
    states = (mine.now.state, ours.now.state)
    for place, (one, two) in {
        "public": [s.public for s in states],
        "server": [s.own for s in states],
        "devices": [f.now.vault.private for f in (mine, ours)],
    }.items():
        yield from (f"{place} '{n}'" for n in one if n in two and not _same(one[n], two[n]))
    known = {params.digest(s.values) for s in states[1].memory}
    if any(params.digest(s.values) not in known for s in states[0].memory):
        yield "snapshots"


def _same(one: Tensor, two: Tensor) -> bool:
    return params.digest({"": one}) == params.digest({"": two})
