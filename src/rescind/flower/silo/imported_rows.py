"""Rows that a silo has forgotten, and that the imported table on its machine still has."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence

from rescind.core.labels import Labels
from rescind.data.blocklist import Blocklist
from rescind.data.importing import load_imported
from rescind.errors import DataError
from rescind.flower.silo.names import Numbering

log = logging.getLogger(__name__)

Pair = tuple[str, str]


def leave_out_of_table(name: str, own: bool, gone: Sequence[Pair], withdrawn: bool) -> None:
    """Put forgotten rows on the list of an imported table, and log how the rows are deleted.

    own: the table has this silo's people only. One that all silos have is not listed: it must be
    the same on all machines, and the others do not know of the request    gone: keys of users and
    items    withdrawn: the users left, so all their rows count
    """
    try:
        stored = load_imported(name)
    except DataError as error:  # no reason to keep the silo from forgetting
        log.warning("rows that this silo has forgotten may be left in '%s': %s", name, error)
        return
    keys = Numbering.of(Labels.of(stored), len(stored.users), len(stored.items))
    user_of = dict(zip(keys.users, stored.users.tolist(), strict=True))
    item_of = dict(zip(keys.items, stored.items.tolist(), strict=True))
    found: dict[str, list[str]] = {}
    for user, item in gone:
        if user in user_of and item in item_of:
            found.setdefault(user_of[user], []).append(item_of[item])
    for user, items in found.items():
        listed = Blocklist().with_erased([user] * len(items), items)
        listed = listed.with_withdrawn(user) if withdrawn else listed
        rows = len(stored) - len(listed.left_of(stored))
        if not rows:  # deleted on this machine before
            continue
        if own:
            listed.add_to_dataset(name)
        log.warning("%s", _told(name, own, user, () if withdrawn else items, rows))


def _told(name: str, own: bool, user: str, items: Sequence[str], rows: int) -> str:
    """Return what to do about rows that are left in an imported table. items: none for all"""
    later = "Every load leaves them out from now on" if own else "This silo leaves them out"
    where = "here" if own else "on each machine that has this table"
    command = ["rescind", "data", "erase", name, "--user", user]
    command += [word for item in dict.fromkeys(items) for word in ("--item", item)]
    return (
        f"forgotten by this silo, and still in the imported table '{name}' on this machine: {rows} "
        f"row{'s' * (rows != 1)} of user '{user}'. {later}. To delete them, {where}: "
        f"{shlex.join(command)}"
    )
