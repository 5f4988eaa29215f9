"""Files for the requester beside a receipt: the exact request, and each user's part of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rescind.core.labels import Labels
    from rescind.core.records import Event
    from rescind.experiments.forget_run import Answer
    from rescind.forgetting.forget import Evidence


NO_PARTS = Path("none")
"""Says that nobody needs a part."""


def users_of(event: Event, labels: Labels) -> list[str]:
    """Return the original ids of the users whom a request is about."""
    from rescind.core.records import Withdraw

    if isinstance(event, Withdraw):
        return [labels.user_id(event.client)]
    records = getattr(event, "records", None)
    return [] if records is None else [labels.user_id(c) for c in records.client.unique().tolist()]


def check_parts(folder: Path | None, needed: bool) -> None:
    """Refuse a request whose users could not check its receipt, or a folder that is not empty."""
    from rescind.errors import ConfigError

    if needed and folder is None:
        raise ConfigError(
            "several users ask together, and each can check the receipt with their part alone, "
            "which cannot be made later. Give --parts FOLDER, or --parts none if nobody needs one. "
            "Nothing was forgotten."
        )
    if folder is not None and folder != NO_PARTS and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: it may hold parts of another request. Choose another "
            f"folder with --parts. Nothing was forgotten."
        )


def keep_request(path: Path, text: str) -> None:
    """Write the exact request; never over that of somebody else, which could not be made again."""
    from rescind.core.files import write_atomically
    from rescind.errors import ConfigError

    if path.is_file() and path.read_bytes() == text.encode():
        return  # of the same command, which was interrupted
    if path.exists():
        raise ConfigError(
            f"{path} exists already, and is not this request. Choose another name with --request, "
            f"such as {path.with_stem(path.stem + '-2')}. Nothing was forgotten."
        )
    write_atomically(path, text.encode(), private=True)


def is_about(path: Path, done: Answer) -> bool:
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
    from urllib.parse import quote

    from rescind.core.files import make_folder, write_atomically
    from rescind.forgetting.parts import proof_text, proofs
    from rescind.forgetting.receipt_html import page
    from rescind.forgetting.succession import PAGE

    event, labels = asked
    make_folder(folder)
    count = 0
    for client, proof in proofs(event, evidence.key, labels):
        user = labels.user_id(client)
        path = folder / f"{quote(user, safe='')}.json"
        write_atomically(path, proof_text(proof, user, labels).encode(), private=True)
        count += 1
    write_atomically(folder / PAGE, page(evidence.receipt, of_many=True).encode())
    typer.echo(
        f"Written: parts in {folder}, each for one user only (users: {count}), and for all of them "
        f"{folder / PAGE}, a page without exact numbers"
    )
