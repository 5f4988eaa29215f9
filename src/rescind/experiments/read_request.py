"""Read a request to forget: from a CSV file, from ids on the command line, or drawn by lot.

People, items and nodes go by their original ids; events have indices.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rescind.core.federation import Federation
from rescind.core.records import (
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Records,
    Unshare,
    Withdraw,
)
from rescind.data.import_reading import other_separator
from rescind.data.simulated_lending import draw_regret
from rescind.errors import ConfigError, ConsentError, DataError, did_you_mean
from rescind.forgetting.asked_before import AskedBefore

Kind = Literal["erase", "unshare", "withdraw", "nodes", "edges", "labels"]
DRAW = "draw:"


@dataclass(frozen=True)
class NamedRecords:
    """A few records of one user, by original ids: a request that needs no file."""

    user: str
    items: tuple[str, ...]


Source = str | NamedRecords
"""A CSV file, `draw:0.3`, a user id to withdraw, nodes or edges; or a few records."""


def read_request(
    fed: Federation, kind: Kind, source: Source, before: AskedBefore | None = None
) -> Event:
    """Return the event of a request.

    Of a graph, nodes, edges and labels can be named: `12,40`, of edges `12-40,12-55`, or a CSV file
    with a column `node` and, for edges, `other`.

    The file has a column `user` and optionally `item`, with original ids. Without items, it means
    all records that a user holds (erase) or shares (unshare). `draw:0.3` takes all shared records
    of a random 30 % of the sharing users, for experiments.

    before: earlier requests to the run, to detect users who have left
    """
    before = before or AskedBefore()
    clients = fed.world.sizes.clients
    if isinstance(source, NamedRecords):
        client = before.client(source.user, fed.labels, clients)
        items = [_item(fed, source.user, item, before) for item in source.items]
        return _event(fed, kind, Records.of([client] * len(items), items))
    if kind == "withdraw":
        return Withdraw(before.client(source, fed.labels, clients))
    if kind in ("nodes", "edges", "labels"):
        return _of_graph(fed, kind, source)
    if source.startswith(DRAW):
        records = _drawn(fed, source)
    else:
        records = _from_file(fed, Path(source), kind, before)
    return _event(fed, kind, records)


def _event(fed: Federation, kind: Kind, records: Records) -> Event:
    if kind == "unshare" and not len(fed.world.shared):  # of the run: no line of a file is at fault
        raise ConsentError(
            "nobody lends in this run, so there is nothing to unshare. Users lend where the recipe "
            "of a run has [sharing]; what they unshared before has its receipt. To erase records, "
            "give --erase FILE, or --user USER --item ITEM. Nothing was changed."
        )
    if not len(records):
        raise ConsentError(
            f"the request names no records that can be {kind}d. "
            f"Give ids of users and items in the run (rescind data show RUN --user USER lists "
            f"them). If it was answered before, the run has them no more: see its receipt."
        )
    return Erase(records) if kind == "erase" else Unshare(records)


def _drawn(fed: Federation, source: str) -> Records:
    """Draw lenders; raise an error that says what to do if there is nobody to draw."""
    fraction = _fraction(source)
    if not len(fed.world.shared):
        raise ConsentError(
            f"{source} draws from users who lend, and in this run nobody lends. Run again with "
            f"lending (rescind run ... --set 'sharing.ratio=[1,2,7]'), or name records in a CSV "
            f"file with the columns user,item."
        )
    records = draw_regret(fed.world.shared, fed.clock, fraction)
    if not len(records):
        raise ConsentError(
            f"{source} draws nobody of {len(fed.world.shared.clients):,} lenders. "
            f"Give a larger fraction, up to draw:1."
        )
    return records


def _fraction(source: str) -> float:
    try:
        found = float(source.removeprefix(DRAW))
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise ConfigError(f"'{source}' is not a fraction from 0 to 1. Write draw:0.3 for 30 %.")
    return found


def _item(fed: Federation, user: str, item: str, before: AskedBefore) -> int:
    """Return the number of an item; raise if this record of the user was erased before."""
    if before.of_run.has_erased(user, item):
        raise ConsentError(
            f"item '{item}' of user '{user}' was erased from this run by an earlier request: see "
            f"its receipt. Leave it out of this one. Nothing was changed."
        )
    return fed.labels.item(item, fed.world.sizes.items)


def _of_graph(fed: Federation, kind: Kind, source: str) -> Event:
    """Return the event of a request about a graph; the client of a node is looked up."""
    graph = fed.now.vault.holdings.graph
    if graph is None:
        raise ConfigError(
            f"--{kind} names parts of a graph, and this run has none: it learnt "
            f"'{fed.world.task}'. Use --erase FILE, --unshare FILE or --withdraw USER."
        )
    owner = dict(zip(graph.index.tolist(), graph.owner.tolist(), strict=True))
    known = dict(zip(graph.index.tolist(), (graph.label >= 0).tolist(), strict=True))
    rows = _numbers(source, ("node", "other") if kind == "edges" else ("node",))
    for node in (n for row in rows for n in row):
        if node not in owner:
            raise ConsentError(
                f"there is no node {node} in this run: it was never there, or is erased already. "
                f"It has {len(owner):,} nodes. Nothing was changed."
            )
    client = [owner[row[0]] for row in rows]
    if kind == "edges":
        ends = [sorted(row) for row in rows]
        return EraseEdges(Records.of(client, [low for low, _ in ends], [high for _, high in ends]))
    if unlabelled := [row[0] for row in rows if not known[row[0]]]:
        raise ConsentError(
            f"node {unlabelled[0]} has no label in this run: it has none, or it is erased already. "
            f"Only nodes with a label are records. Nothing was changed."
        )
    records = Records.of(client, [row[0] for row in rows])
    return Erase(records) if kind == "nodes" else EraseLabels(records)


def _numbers(source: str, columns: tuple[str, ...]) -> list[list[int]]:
    """Read distinct rows of node numbers: from a CSV file, or from text such as `12,40`."""
    if Path(source).is_file():
        names, table = _table(Path(source))
        if missing := [name for name in columns if name not in names]:
            raise DataError(f"{source} has no column '{missing[0]}'; it has {', '.join(names)}.")
        rows = [[(row[name] or "").strip() for name in columns] for row in table]
    else:
        rows = [part.strip().split("-") for part in source.split(",")]
    good = [row for row in rows if len(row) == len(columns) and all(map(str.isdecimal, row))]
    if len(good) < len(rows) or not rows:
        bad = "-".join(next((row for row in rows if row not in good), [""]))
        form = "12,40" if len(columns) == 1 else "12-40,12-55"
        raise DataError(
            f"'{bad}' is not {' and '.join(columns)} by number. Write {form}, or the path of a CSV "
            f"file with {' and '.join(columns)} in its first line."
        )
    return [list(row) for row in dict.fromkeys(tuple(map(int, row)) for row in good)]


def _table(path: Path) -> tuple[tuple[str, ...], list[dict[str, str | None]]]:
    """Return the header and the rows of a CSV file."""
    if not path.exists():
        lot = f" For a trial, {DRAW}0.3 draws 30 % of the lenders." if ":" in str(path) else ""
        raise DataError(
            f"there is no file {path}. Give a CSV file with the columns user,item.{lot}"
        )
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            names = tuple(name.strip().lower() for name in table.fieldnames or ())  # User,Item too
            table.fieldnames = names
            rows = list(table)
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not UTF-8 text. Save it as UTF-8 (in Excel: CSV UTF-8)."
        ) from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a request: {error}.") from None
    _check_cells(path, names, rows)
    return names, rows


def _check_cells(path: Path, names: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """Refuse a table whose cells could stand in another column than its author believes."""
    if twice := [name for name in dict.fromkeys(names) if name and names.count(name) > 1]:
        raise DataError(f"{path} has two columns '{twice[0]}'. Leave one out.")
    for number, row in enumerate(rows, 2):
        beyond: list[str] = row.pop(None, None) or []  # type: ignore[call-overload]
        more = [cell for cell in (row.get("") or "", *beyond) if cell.strip()]
        if more:
            raise DataError(
                f"{path}, line {number}: '{more[0]}' has no column (the first line is "
                f"'{','.join(names)}'). Name its column there, or put a cell with a comma in it "
                f"into double quotes."
            )


def _from_file(fed: Federation, path: Path, kind: Kind, before: AskedBefore) -> Records:
    names, rows = _table(path)
    if "user" not in names:
        other = other_separator(names)  # Excel writes semicolons in many countries
        commas = f" Its cells are separated by {other!r}: separate them by commas." if other else ""
        raise DataError(
            f"{path} has no column 'user' (its first line is "
            f"'{', '.join(map(str, names))}').{commas} Write a header 'user,item' or 'user' and "
            f"original ids below."
        )
    unknown = [name for name in names if name and name != "user"]
    if unknown and "item" not in names:  # all of a user would be taken for a misspelt header
        raise DataError(
            f"{path} has a column '{unknown[0]}' and no column 'item': "
            f"{did_you_mean(unknown[0], ['item'])}For some records of a user write the header "
            f"'user,item'; for all of them a file with only the column 'user'."
        )
    if not rows:
        raise DataError(f"{path} names no users: it has no line below its header.")
    held = fed.now.vault.holdings.records
    whole = fed.world.shared if kind == "unshare" else held
    pairs, people = [], []
    for number, row in enumerate(rows, 2):
        user, item = (row.get("user") or "").strip(), (row.get("item") or "").strip()
        if "item" in names and not item:  # a damaged line must not erase a whole user
            raise DataError(
                f"{path}, line {number}: user '{user}' has no item. Add one, or write a file with "
                f"only the column 'user' to name all records of a user."
            )
        try:
            client = before.client(user, fed.labels, fed.world.sizes.clients)
            if item:
                pairs.append((client, _item(fed, user, item, before)))
            elif kind == "unshare" and len(whole) and not bool((whole.client == client).any()):
                raise ConsentError(
                    f"user '{user}' lends nothing in this run, so there is nothing to unshare. "
                    f"If an earlier unshare answered it, send that receipt again. Otherwise look "
                    f"up whom the request means, or take the line out. Nothing was changed."
                )
            else:
                people.append(client)
        except (ConsentError, DataError) as error:
            raise type(error)(f"{path}, line {number}: {error}") from None
    named = Records.of([c for c, _ in pairs], [i for _, i in pairs])
    everything = whole[torch.isin(whole.client, torch.tensor(people, dtype=torch.int64))]
    return named + everything[~everything.among(named)]
