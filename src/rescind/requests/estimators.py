"""Forget in an estimator by a request of a home: `m.forget(users=["ann"], ledger=True)`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.core.home import home
from rescind.errors import ConfigError, RescindError
from rescind.home import Copy, Ledger
from rescind.home.request import REFUSED
from rescind.receipts.receipt import Receipt, parse
from rescind.requests.answer import answer
from rescind.requests.saved_holder import Saved
from rescind.requests.words import Words


def forget_with_receipt(
    estimator: Any, users: Iterable[Any], ledger: Path | str | bool, data: str, file: str
) -> Receipt:
    """Let users leave an estimator, and sign a receipt about all of them.

    ledger: the home; True: that of RESCIND_HOME    data: of which data the estimator is a copy
    file: where it was saved or loaded, to be saved again; "" if it is in memory alone
    """
    people = {str(user): None for user in users}
    if not people:
        raise ConfigError("with a ledger name users: forget(users=['ann'], ledger=True).")
    address = str(Path(file).absolute()) if file else ""
    name, facts = f"saved {address or id(estimator)}", {"class": type(estimator).__name__}
    copy = Copy(name, data, "saved", address, facts)
    with Ledger.open(home() if ledger is True else Path(str(ledger))) as opened:
        if address:
            opened.register(copy)
        opened.present = [Saved(copy, estimator)]
        kind = "leave" if len(people) == 1 else "erase"
        words = Words(kind, people, datetime.now(UTC), source="estimator")
        request = answer(opened, opened.add(words.request(data)).id)
        if request.outcome == REFUSED:
            refused = RescindError(request.reason)
            refused.code = request.code
            opened.withdraw(request.id)
            raise refused
        return parse(opened.receipt(request.receipt)[0])
