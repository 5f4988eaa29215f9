"""What `rescind forget` and `rescind audit` are given: which request, and which unlearner."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.core.method import Unlearner
    from rescind.experiments.read_request import Kind, NamedRecords, Source


def requests_of(
    erase: Sequence[str] | None = None,
    unshare: Sequence[str] | None = None,
    withdraw: Sequence[str] | None = None,
    nodes: Sequence[str] | None = None,
    edges: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    records: NamedRecords | None = None,
) -> tuple[Kind, list[Source]]:
    """Return the kind and the sources of what was given: one request, or several withdrawals."""
    from rescind.errors import ConfigError

    asked: dict[Kind, Sequence[str] | None] = {
        "erase": erase, "unshare": unshare, "withdraw": withdraw,
        "nodes": nodes, "edges": edges, "labels": labels,
    }  # fmt: skip
    given: list[tuple[Kind, Source]] = [
        (kind, one) for kind, sources in asked.items() for one in dict.fromkeys(sources or ())
    ]
    given += [("erase", records)] if records else []
    kinds = {kind for kind, _ in given}
    if len(given) != 1 and kinds != {"withdraw"}:
        raise ConfigError(
            "give exactly one of --erase FILE, --unshare FILE and --withdraw USER, or of a graph "
            f"--nodes, --edges and --labels; {len(given)} were given. Only --withdraw of rescind "
            "forget may be repeated: write other requests into one file. A few records of one "
            "user: rescind forget RUN --user USER --item ITEM. "
            "`--erase draw:0.3` erases what 30 % of the lenders lent."
        )
    return given[0][0], [source for _, source in given]


def named_records(
    user: Sequence[str] | None, item: Sequence[str] | None, withdraw: Sequence[str] | None = None
) -> NamedRecords | None:
    """Return the records that --user and --item name; None if neither was given.

    withdraw: users who leave, which takes no items
    """
    from rescind.errors import ConfigError

    if withdraw and item:
        both = (
            f"Given were {', '.join(withdraw)} (--withdraw) and {', '.join(user)} (--user): give a "
            f"command for each. "
            if user
            else ""
        )
        whose = shlex.quote((user or withdraw)[0])
        raise ConfigError(
            f"--withdraw takes no --item: who withdraws goes with everything. {both}To erase "
            f"single records: --user {whose} --item {shlex.quote(item[0])}."
        )
    users, items = tuple(dict.fromkeys(user or ())), tuple(dict.fromkeys(item or ()))
    if not users and not items:
        return None
    if len(users) != 1 or not items:
        raise ConfigError(
            f"--user and --item name a few records of one user; {count_of(len(users), 'user')} and "
            f"{count_of(len(items), 'item')} were given. Write --user 793 --item 50 --item 172. "
            f"For more users use --erase FILE; for all data of a user, --withdraw USER."
        )
    from rescind.experiments.read_request import NamedRecords

    return NamedRecords(users[0], items)


def unlearner(name: str | None, changes: Sequence[str] = ()) -> Unlearner | None:
    """Return the unlearner of this name; None if no name is given (the run's method forgets)."""
    from rescind.core.method import Method
    from rescind.core.settings import classes, from_table, sought
    from rescind.errors import ConfigError, suggest
    from rescind.experiments.recipe_file import setting
    from rescind.forgetting.forget import settings_of_forgetting
    from rescind.methods._outside import class_name
    from rescind.methods._own_file import FORGETS
    from rescind.storage.kinds import MODELS, UNLEARNERS

    if name is None:
        if changes:
            raise ConfigError(
                f"--set {changes[0]} changes an unlearner, and none was named. Name one: "
                f"--method FedShareUnlearn."
            )
        return None
    name = class_name(name, FORGETS)
    every = classes(*UNLEARNERS)
    known = [n for n in every if every[n].forget is not Method.forget]  # type: ignore[attr-defined]
    cls = sought(*UNLEARNERS, name)
    if cls is None or cls.forget is Method.forget:  # type: ignore[attr-defined]
        raise ConfigError(f"there is no unlearner '{name}': {suggest(name, known)}")
    given = dict(setting(text, "rounds=20") for text in changes)
    own = settings_of_forgetting(cls)
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{cls.__name__} has no setting of forgetting '{key}' (it learns as the run did); "
                + (suggest(key, own) if own else "it has none at all. Leave --set out.")
            )
    found: Unlearner = from_table(cls, {**given, "name": cls.__name__}, {"model": MODELS})
    return found
