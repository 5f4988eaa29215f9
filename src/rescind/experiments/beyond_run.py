"""Find what imported data has of a request and the run has not: only its rows can be deleted.

They were added since the run learnt, a filter left them out, or the run forgot them before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rescind.core.federation import Federation
from rescind.data.erasing import items_of
from rescind.data.importing import imported_names
from rescind.experiments.other_runs import items_held, learnt_items, still_has
from rescind.experiments.read_request import NamedRecords, Source
from rescind.storage.run_folder import read_facts

NOTHING = "the run has nothing of theirs; "
FORGOT = "the run has nothing of theirs since an earlier request, whose receipt is about it; "


def asked_of_run(source: Source, run: Path) -> tuple[Source | None, str]:
    """Return what of a request a run can answer, None for nothing, and the data with the rest.

    Without such data the run is asked everything: it says what is not there.
    """
    name = _imported(read_facts(run) or {})
    if not name:
        return source, ""
    user, items = _named(source)
    stored = {*items_of(name, user)}
    if items is None:
        rows_alone = bool(stored) and not still_has(run, {user: None})
        return (None, name) if rows_alone else (source, "")
    learnt = learnt_items(run, user)
    if not {*items} - learnt or not {*items} - learnt <= stored:
        return source, ""
    here = tuple(item for item in items if item in learnt)
    return (NamedRecords(user, here) if here else None), name


def told_of_rows(facts: dict[str, Any], fed: Federation, source: Source) -> str:
    """Return a sentence about items that a run has not, but its data; '' if there are none."""
    name = _imported(facts)
    if not name or not isinstance(source, NamedRecords):
        return ""
    if not {*source.items} & {*items_of(name, source.user)} - items_held(fed, source.user):
        return ""
    return (
        f"The data '{name}' has some of these items of this user that the run has not learnt, or "
        f"not yet. rescind data show {name} --user USER lists them, rescind data erase {name} "
        f"--user USER --item ITEM deletes them. Of the run, ask for those that it has."
    )


def _named(source: Source) -> tuple[str, tuple[str, ...] | None]:
    """Return the user, and the items if not all are meant."""
    return (source.user, source.items) if isinstance(source, NamedRecords) else (source, None)


def _imported(facts: dict[str, Any]) -> str:
    """Return the name of the imported data that a run learnt from, if it is on this machine."""
    data = facts.get("data", {})
    name = str(data.get("name", ""))
    return name if data.get("source") == "imported" and name in imported_names() else ""


def in_part(source: Source, exact: Path) -> str:
    """Say that a run had only some of the items that a request names. exact: what it was asked"""
    _, items = _named(source)
    if items is None or not exact.is_file():
        return ""
    here = len({*json.loads(exact.read_text(encoding="utf-8")).get("item", items)})
    asked = len({*items})
    about = "that one" if here == 1 else "those"
    told = f"the run had learnt {here} of the {asked} items: receipt.json is about {about}; "
    return told if here < asked else ""


def not_learnt(source: Source, run: Path) -> str:
    """Say of a request that is answered by the rows alone what the run has."""
    user, items = _named(source)
    if items is None or not still_has(run, {user: None}):
        return NOTHING
    return f"the run has not learnt {'it' if len({*items}) == 1 else 'any of them'}; "
