"""Files for the requester beside a receipt: the exact request, and each user's part of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rescind.core.words import count_of

if TYPE_CHECKING:
    from rescind.core.labels import Labels
    from rescind.core.records import Event
    from rescind.experiments.forget_run import Answer
    from rescind.experiments.other_runs import Named
    from rescind.forgetting.forget import Evidence


NONE = Path("none")
"""Says that nobody needs a part, or the request."""
HARMLESS = "@+,="
"""Characters that every disk and every shell takes in a name, beside letters, digits and `_.-~`."""
LONGEST = 200
"""Characters of a name: disks take 255, and a part that cannot be written cannot be made again."""


def users_of(event: Event, labels: Labels) -> list[str]:
    """Return the original ids of the users whom a request is about."""
    from rescind.core.records import Withdraw

    if isinstance(event, Withdraw):
        return [labels.user_id(event.client)]
    records = getattr(event, "records", None)
    return [] if records is None else [labels.user_id(c) for c in records.client.unique().tolist()]


def check_papers(
    folder: Path | None, request: Path | None, text: str, needed_by: Sequence[str]
) -> None:
    """Refuse a request whose users could not check its receipt, or files that are there already.

    text: what is written into `request`    needed_by: users who ask, of imported data
    """
    from rescind.errors import ConfigError

    if len(needed_by) > 1 and folder is None:
        raise ConfigError(
            "several users ask together. Give --parts FOLDER (a part for each, which cannot be "
            "made later: without it they cannot check the receipt), or --parts none. Nothing was "
            "forgotten."
        )
    if len(needed_by) == 1 and request is None:
        raise ConfigError(
            f"give --request FILE (the exact request, which cannot be written later: without it "
            f"'{needed_by[0]}' cannot check the receipt), or --request none. Nothing was forgotten "
            f"for this user."
        )
    if folder is not None and folder != NONE and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: it may hold parts of another request. Choose another "
            f"folder with --parts. Nothing was forgotten."
        )

    if request in (None, NONE) or not request.exists():
        return
    if not request.is_file() or request.read_bytes() != text.encode():  # not one that was stopped
        raise ConfigError(
            f"{request} exists already, and is not this request. Choose another name with "
            f"--request, such as {request.with_stem(request.stem + '-2')}. Nothing was forgotten."
        )


def keep_request(path: Path | None, text: str) -> None:
    """Write the exact request, if it is asked for."""
    from rescind.core.files import write_atomically

    if path is not None:
        write_atomically(path, text.encode(), private=True)


def rows_left(run: Path, named: Named, case: str = "") -> str:
    """Return the command that deletes what imported data stores of a request; "" if nothing.

    case: the number of the request, which that receipt is to have, too
    """
    from rescind.data.erasing import rows_of
    from rescind.data.importing import imported_names, load_imported
    from rescind.storage.run_folder import is_private, read_facts

    name = ((read_facts(run) or {}).get("data") or {}).get("name", "")
    if not is_private(run) or name not in imported_names():
        return ""
    rows = rows_of(load_imported(name), [*named])
    users, items = rows.users[rows.user].tolist(), rows.items[rows.item].tolist()
    left: dict[str, list[str]] = {}
    for user, item in dict.fromkeys(zip(users, items, strict=True)):
        asked = named[user]
        if asked is None or item in asked:
            left.setdefault(user, []).append(item)
    if not left:
        return ""
    first = next(iter(left))
    some = () if named[first] is None else left[first]
    of = "".join(f" --item {shlex.quote(item)}" for item in some)
    others = f"; the same for {count_of(len(left) - 1, 'other user')}" if len(left) > 1 else ""
    number = f" --case {shlex.quote(case)}" if case else ""
    told = f"rescind data erase {name} --user {shlex.quote(first)}{of}{number}{others}"
    return f"The rows are still stored in '{name}'. To delete them, with a receipt: {told}"


def check_late_papers(folder: Path | None, request: Path | None, done: Answer) -> None:
    """Refuse papers of a request that was answered before; say first that its receipt is there.

    folder: of the parts    request: the file, which may be there from the first time
    """
    from rescind.errors import ConfigError
    from rescind.forgetting.succession import RECEIPT

    late = ["the parts (--parts)"] if folder is not None else []
    if request is not None and not _is_about(request, done):
        late.insert(0, "the exact request (--request)")
    if late:
        key = "its key beside it" if done.key_file.is_file() else "its key handed over, or deleted"
        raise ConfigError(
            f"this request was answered before. Its receipt is {done.folder / RECEIPT}, {key}: "
            f"nothing of the answer is lost. Only {' and '.join(late)} cannot be written now: no "
            f"list of what was asked for was kept. To see the answer again, leave that out."
        )


def _is_about(path: Path, done: Answer) -> bool:
    """Return whether a file is the request of an answer that was given before."""
    from rescind.errors import RescindError
    from rescind.storage.events import read_event

    if not path.is_file():
        return False
    try:
        event = read_event(path.read_text(encoding="utf-8"))
    except (RescindError, UnicodeDecodeError):
        return False
    return event.digest(done.evidence.key) == done.evidence.receipt.asked.digest


def write_parts(folder: Path, asked: tuple[Event, Labels], evidence: Evidence) -> None:
    """Write a proof for each user of a request, named by original id, and a page for all of them.

    The page is that for strangers: it says how to check, and has no exact numbers.
    """
    from rescind.core.files import make_folder, write_atomically
    from rescind.forgetting.parts import proof_text, proofs
    from rescind.forgetting.receipt_html import page
    from rescind.forgetting.succession import PAGE

    event, labels = asked
    make_folder(folder)
    parts = [
        (labels.user_id(client), proof) for client, proof in proofs(event, evidence.key, labels)
    ]
    names = file_names([user for user, _ in parts])
    for name, (user, proof) in zip(names, parts, strict=True):
        text = proof_text(proof, user, labels)
        write_atomically(folder / f"{name}.json", text.encode(), private=True)
    write_atomically(folder / PAGE, page(evidence.receipt, of_many=True).encode())
    typer.echo(
        f"Written: parts in {folder}, each for one user only (users: {len(parts)}), and for all of "
        f"them {folder / PAGE}, a page without exact numbers"
    )


def file_names(users: Sequence[str]) -> list[str]:
    """Return a name for a file of each user: the id, with what a disk may not take escaped.

    Some disks ignore capitals, so one of two names that differ in nothing else gets a number. "#"
    would be escaped, so no id has such a name.
    """
    from collections import Counter
    from urllib.parse import quote

    names, times = list[str](), Counter[str]()
    for user in users:
        name = quote(user, safe=HARMLESS)[:LONGEST]
        name = f"%2E{name[1:]}" if name.startswith(".") else name  # a hidden file is not found
        times[name.casefold()] += 1
        number = times[name.casefold()]
        names.append(name if number == 1 else f"{name}#{number}")
    return names
