"""Tell what a request to a run leaves: the stored copy of the data, and other runs on it.

Rows may have been deleted from imported data before (`rescind data erase`), or the data may be on
another machine, so what is stored is looked up. A receipt tells no counts of it: those would say
more about the records than its bands do.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rescind.core.federation import Federation
from rescind.core.records import Event, Unshare, Withdraw
from rescind.core.request import Request
from rescind.data.blocklist import Blocklist, place
from rescind.data.erasing import rows_of
from rescind.data.importing import imported_names, load_imported
from rescind.errors import DataError

Pairs = set[tuple[str, str]]
"""Original ids of users and items."""
EVERYWHERE = "give the same command again with --everywhere"


def of_people(facts: dict[str, Any]) -> bool:
    """Return whether a run learnt from data about people, and not from generated data."""
    return facts["data"].get("source", "") not in ("", "generated")


@dataclass(frozen=True)
class Rows:
    """How many rows of a request the data of a run has, before the request is answered."""

    asked: int = 1
    stored: int = 1
    left_out: int = 0
    """An earlier request has every load leave these out."""
    not_lent: int = 0
    """No new run lends these: they are left out, or were unshared."""
    left: bool = False
    """The user who leaves had left by the list of the data: rows that come later are left out."""
    here: bool = True
    """The data is on this machine."""


def rows_asked(facts: dict[str, Any], fed: Federation, request: Request) -> Rows:
    """Look up the rows of a request: in the imported data, and on the list of the dataset."""
    if not of_people(facts) or fed.now.vault.holdings.graph is not None:
        return Rows()
    name, labels = facts["data"]["name"], fed.labels
    columns = request.records.client.tolist(), request.records.item.tolist()
    asked = {(labels.user_id(c), labels.item_id(i)) for c, i in zip(*columns, strict=True)}
    user = labels.user_id(request.event.client) if isinstance(request.event, Withdraw) else None
    stored = asked if facts["data"]["source"] != "imported" else _stored(name, asked, user)
    every, listed = asked | (stored or set()), Blocklist.of_dataset(name)
    out = {pair for pair in every if listed.has_withdrawn(pair[0]) or listed.has_erased(*pair)}
    return Rows(
        asked=len(every),
        stored=len(stored or ()),
        left_out=len(out),
        not_lent=len(out | {pair for pair in every if listed.has_unshared(*pair)}),
        left=user is not None and listed.has_withdrawn(user),
        here=stored is not None,
    )


def _stored(name: str, asked: Pairs, leaves: str | None) -> Pairs | None:
    """Return which rows imported data stores; None if it is not here. leaves: all of this user"""
    if name not in imported_names():
        return None
    with suppress(DataError):
        people = {user for user, _ in asked} | ({leaves} if leaves is not None else set())
        rows = rows_of(load_imported(name), [*people])
        users, items = rows.users[rows.user].tolist(), rows.items[rows.item].tolist()
        found = {*zip(users, items, strict=True)}
        return {pair for pair in found if pair[0] == leaves or pair in asked}
    return asked  # files that cannot be read may hold them


def copies(facts: dict[str, Any], event: Event, listed: bool, rows: Rows) -> list[str]:
    """Name the copies of the data that a request does not delete.

    listed: other runs leave the rows out from now on, or do not lend them again
    """
    data = facts["data"]
    if not of_people(facts):
        return []
    name, imported = data["name"], data["source"] == "imported"
    copy = f"The {'imported copy' if imported else 'published files'} of '{name}'"
    if isinstance(event, Unshare):
        again = listed or 0 < rows.asked == rows.not_lent
        lent = "and are not lent again" if again else "and other runs may lend them again"
        stay = "rows that are still stored there stay" if imported else "all rows stay there"
        kept = f"{stay}, as they do on devices, {lent}."
        return [f"{copy}: {_not_stored(rows) or kept}"]
    out = listed or 0 < rows.asked == rows.left_out
    later = "are left out of every run from now on" if out else "may be learnt by other runs"
    if not imported:
        return [f"{copy} on this machine: their rows {later}."]
    kept = f"rows that are still stored there {later}, and `rescind data erase` deletes them."
    return [
        f"{copy}: {_not_stored(rows) or kept} The file it was imported from.",
        f"Other models that were trained on '{name}' before: each is answered by itself.",
    ]


def _not_stored(rows: Rows) -> str:
    """Return that the data has no row of a request; "" if it has."""
    if not rows.here:
        return "it is not on this machine. A copy elsewhere keeps its rows."
    return "" if rows.stored else "none of these rows is stored there any more."


def later_runs(facts: dict[str, Any], event: Event | None, listed: bool, rows: Rows) -> str:
    """Return what a request does to other runs, in sentences for the operator."""
    name = facts["data"]["name"]
    if not of_people(facts):
        return ""
    if isinstance(event, Unshare):
        return _later_loans(name, listed, rows)
    if listed:
        return (
            f"From now on every load and every new run of '{name}' on this machine leaves these "
            f"rows out (list: {place(name)}). Results from before are of other data."
        )
    if rows.left_out < rows.asked:
        return (
            f"Other runs on '{name}' are as before and may learn these rows again. To leave the "
            f"rows out of them, too, {EVERYWHERE}."
        )
    more = (
        f" Rows of this user that come later may be learnt: to leave those out, too, {EVERYWHERE}."
    )
    comes_back = isinstance(event, Withdraw) and not rows.left
    return f"{_on_the_list(name)}: new runs leave them out." + more * comes_back


def _on_the_list(name: str) -> str:
    return f"These rows were on the list of '{name}' before ({place(name)}), by an earlier request"


def _later_loans(name: str, listed: bool, rows: Rows) -> str:
    if listed:
        return (
            f"From now on these rows are not lent again in any run of '{name}' on this machine "
            f"(list: {place(name)}). {_still_learnt(rows)}"
        )
    if rows.not_lent == rows.asked:
        return f"{_on_the_list(name)}: new runs do not lend them."
    return (
        f"Other runs on '{name}' are as before and may lend these rows again. To lend them in none "
        f"of them, give --everywhere."
    )


def _still_learnt(rows: Rows) -> str:
    """Return whether runs learn on devices from rows that are lent no more."""
    if not rows.here:
        return "The data itself is not on this machine."
    if not rows.stored:
        return "None of them is stored in the data any more."
    if rows.left_out == rows.asked:
        return "New runs leave them out altogether, after an earlier request."
    if rows.stored == rows.asked and not rows.left_out:
        return "They stay in the data, and runs learn from them on devices."
    return (
        "Those that are still stored stay in the data, and runs learn from them on devices, except "
        "from what an earlier request leaves out."
    )
