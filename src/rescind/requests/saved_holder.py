"""An estimator as a holder: one in memory, or one that was saved to a file."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import rescind
from rescind.audits.finding import Finding
from rescind.core.records import Erase, Records
from rescind.home import Copy, Ledger, Request
from rescind.privacy.keys import about_signer
from rescind.receipts.receipt import Asked, Done, prepare
from rescind.requests.holders import Held, Holder, Progress, named

EXACT = "The records were subtracted: exact integer sums leave nothing of them."


class Saved(Holder):
    """`rs.Gram()` and the like: sums that forget by subtraction."""

    model = True

    def __init__(self, copy: Copy, estimator: Any = None) -> None:
        super().__init__(copy)
        if estimator is not None:
            self.estimator = estimator

    @cached_property
    def estimator(self) -> Any:
        """Load the estimator, if it is not the one in memory."""
        return getattr(rescind, self.copy.facts["class"]).load(self.copy.address)

    @property
    def there(self) -> bool:
        return not self.copy.address or Path(self.copy.address).is_file()

    def held(self, request: Request) -> Held:
        holding = {user: self.estimator.holding(user) for user in request.records}
        return {user: frozenset(map(str, ids)) for user, ids in holding.items() if ids is not None}

    def unlearn(self, ledger: Ledger, request: Request, progress: Progress) -> dict[str, Any]:
        held, before, start = self.held(request), self.estimator.digest(), time.perf_counter()
        pairs = [(u, i) for u, items in held.items() for i in sorted(named(request, u, items))]
        self.estimator.drop(held, None if request.everything else pairs)
        if self.copy.address:
            self.estimator.save(self.copy.address)
        seconds, model = time.perf_counter() - start, self.estimator.digest()
        kind = "Withdraw" if request.kind == "leave" else "Erase"
        draft = prepare(
            Asked(kind, len(pairs), len(held), _event(pairs).digest(request.key)),
            Done(
                method={"name": type(self.estimator).__name__}, unlearning="Subtract", level="L3",
                world_before="", world_after="", model_before=before, model_after=model,
                rounds=0, client_rounds=0, online={}, seconds=seconds,
            ),
            [],
            [
                Finding("exactness", "SHOWN", note=EXACT),
                Finding("audit", "UNAUDITED", note="No audit was requested."),
            ],
            request.key,
            claims=about_signer(),
        )  # fmt: skip
        known = {"draft": draft.to_text(), "model": model, "data": ""}
        ledger.done(request, f"unlearnt {self.copy.id}", known)
        return known

    def purge(self, request: Request) -> None:
        """Do nothing: an estimator keeps nothing beside its sum and its records."""


def _event(pairs: Collection[tuple[str, str]]) -> Erase:
    users, items = sorted({u for u, _ in pairs}), sorted({i for _, i in pairs})
    who, what = [users.index(u) for u, _ in pairs], [items.index(i) for _, i in pairs]
    return Erase(Records.of(who, what))
