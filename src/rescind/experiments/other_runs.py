"""Find other runs that still have what a request was about: each is answered by itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rescind.core.federation import Federation
from rescind.core.labels import Labels
from rescind.core.records import Event, Unshare, Withdraw
from rescind.errors import DataError, RescindError
from rescind.experiments.read_request import Kind, NamedRecords, Source
from rescind.forgetting.run_chain import outlived_by
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import has_model, is_private, model_in, read_facts

Named = Mapping[str, Collection[str] | None]
"""Original ids: items by user. None: everything of the user, who leaves or has nothing left."""


def named_in(event: Event, before: Labels, after: Federation | None) -> Named:
    """Return what a request names. after: the run without it, if it is there"""
    if isinstance(event, Withdraw):
        return {before.user_id(event.client): None}
    records, named = getattr(event, "records", None), dict[str, set[str]]()
    if records is None:
        return {}
    for client, item in zip(records.client.tolist(), records.item.tolist(), strict=True):
        named.setdefault(before.user_id(client), set()).add(before.item_id(item))
    if isinstance(event, Unshare) or after is None:
        return named
    left = {*after.labels.users}
    return {user: items if user in left else None for user, items in named.items()}


def named_by(kind: Kind, source: Source) -> Named:
    """Return what a request names, by its words alone; of a file nothing is known."""
    if isinstance(source, NamedRecords):
        return {source.user: source.items}
    return {source: None} if kind == "withdraw" else {}


def others_with(run: Path, named: Named, lent: bool = False) -> list[Path]:
    """Return runs in the same place that learnt from the same imported data and still have some.

    lent: only what is lent counts
    """
    if not named or not is_private(run):
        return []
    place = looked_in(run)
    near = _runs_below(place, ("**",) if _is_ours(place) else ("*", "*/*", "*/*/*", "runs/**"))
    return _having(near, _data_of(run), named, lent, {run.resolve()})


def looked_in(run: Path) -> Path:
    """Return the folder below which other runs are looked for.

    A recipe puts its runs two folders below its own (RECIPE/METHOD/seed-0), a single run one. What
    is not below the working directory may be anything: there the folder of the run alone counts,
    three folders deep.
    """
    place = run.parent
    for above in list(run.parents)[1:3]:
        if not _is_ours(above):
            break
        place = above
    return place


def told_where(run: Path) -> str:
    """Return a line that says where other runs were looked for."""
    place = looked_in(run)
    deep = "" if _is_ours(place) else ", three folders deep"
    return f"Looked for other runs in {place.resolve()}{deep}, not elsewhere."


def _is_ours(place: Path) -> bool:
    """Return whether a folder is below the working directory."""
    return Path.cwd() in place.resolve().parents


def runs_near(data: str, named: Named) -> list[Path]:
    """Return runs on imported data that still have some of a request, below the working directory.

    They are looked for where commands put them: there, or in its folder `runs`.
    """
    near = _runs_below(Path(), ("*", "*/*", "runs/**"))
    return _having([one for one in near if is_private(one)], data, named)


def _runs_below(place: Path, deep: Sequence[str]) -> list[Path]:
    return sorted({path.parent for one in deep for path in place.glob(f"{one}/run.json")})


def _having(
    runs: Sequence[Path],
    data: str,
    named: Named,
    lent: bool = False,
    apart: Collection[Path] = (),
) -> list[Path]:
    """Return those runs on a dataset that have some of it, each once. apart: leave these out"""
    seen, found = {*apart}, list[Path]()
    for one in runs:
        if one.resolve() not in seen and has_model(one) and _data_of(one) == data:
            found += [one] * still_has(one, named, lent)
        seen.add(one.resolve())
    return found


_STAND = (
    "Another run on this data still has",
    "other runs on this data still have",
    "Answer there, too, or delete it",
)
_OUTLIVED = (
    "The model from before a run was trained again still has",
    "models from before their runs were trained again still have",
    "Delete it, nothing needs it any more",
)
_MANY = 10
"""More runs than this take one line for each folder: the lines below them are read, too."""


def others_told(runs: Sequence[Path]) -> str:
    """Return a line that names such a run, or a line for each of several.

    None may be missed, and a file of requests is not looked up again: so many are folded, not cut.
    Answers from before a run was trained again come last: they cannot be asked, only deleted.
    """
    stand, outlived = split_outlived(runs)
    told = [_told(stand, *_STAND)] if stand else []
    if outlived:
        told.append(_told([run / "model" for run in outlived], *_OUTLIVED))
    return "\n".join(told)


def split_outlived(runs: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the runs that can be asked, and those that were outlived by a newer training."""
    old = [run for run in runs if outlived_by(run) is not None]
    return [run for run in runs if run not in old], old


def _told(places: Sequence[Path], one: str, several: str, do: str) -> str:
    if len(places) == 1:
        return f"{one} some of it. {do}: {places[0]}"
    told = f"{len(places)} {several} some of it. {do}:"
    lines = map(str, places) if len(places) <= _MANY else _by_folder(places)
    return "\n  ".join([told, *lines])


def _by_folder(runs: Sequence[Path]) -> list[str]:
    """Return a line for each folder of runs, with how many are in it and their names."""
    inside: dict[Path, list[str]] = {}
    for run in runs:
        inside.setdefault(run.parent, []).append(run.name)
    lines = list[str]()
    for folder, names in inside.items():
        several = f"{len(names)} in {folder}: {', '.join(names)}"
        lines.append(several if len(names) > 1 else str(folder / names[0]))
    return lines


def _data_of(run: Path) -> str:
    with suppress(DataError):
        return str(((read_facts(run) or {}).get("data") or {}).get("name"))
    return ""


def still_has(run: Path, named: Named, lent: bool = False) -> bool:
    """Return whether a saved run has some of it. One that cannot be read may: look there."""
    if not _knows(run, named):
        return False
    try:
        fed = load_federation(model_in(run))
    except RescindError:
        return True
    if fed.now.vault.holdings.graph is not None:
        return True
    asked = [(user, named[user]) for user in named.keys() & {*fed.labels.users}]
    return any(items is None or items_held(fed, user, lent) & {*items} for user, items in asked)


def learnt_items(run: Path, user: str) -> set[str]:
    """Return the items that a saved run has of a user."""
    return items_held(load_federation(model_in(run)), user) if _knows(run, (user,)) else set()


def items_held(fed: Federation, user: str, lent: bool = False) -> set[str]:
    """Return the items that a federation has of a user, or those lent. A graph has none."""
    held, labels = fed.now.vault.holdings, fed.labels
    if held.graph is not None or user not in {*labels.users}:
        return set()
    records = held.records[held.lent] if lent else held.records
    mine = records.item[records.client == labels.client(user, held.clients)]
    return {labels.item_id(item) for item in mine.tolist()}


def _knows(run: Path, users: Collection[str]) -> bool:
    """Return whether the names that a saved run keeps have one of these: without a load."""
    names = [json.dumps(user).encode() for user in users]
    kept = (path.read_bytes() for path in run.glob("model/labels/*.json"))
    return any(name in text for text in kept for name in names)
