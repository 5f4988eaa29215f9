"""Erase rows of an imported dataset, with a receipt of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from rescind.audits.finding import Finding
from rescind.core.claims import CASE, OPERATOR, one_line
from rescind.core.files import write_atomically
from rescind.core.records import Erase, Records
from rescind.data.blocklist import place
from rescind.data.erasing import erase_imported, stored_rows
from rescind.errors import ConfigError
from rescind.forgetting.purge import kept_list
from rescind.forgetting.receipt import Done, Receipt, issue, write
from rescind.forgetting.receipt_html import page
from rescind.forgetting.receipt_log import log_if_possible
from rescind.forgetting.receipt_words import ROWS
from rescind.privacy.keys import operator

NOT_COVERED = (
    "Runs that learnt from these rows: `rescind forget RUN` answers for each of them.",
    "The file that was imported, and copies of it elsewhere.",
)


def erase(
    name: str, users: Sequence[str], items: Sequence[str], path: Path, case: str = ""
) -> tuple[Receipt, int, Path]:
    """Delete rows of users from an imported dataset; write a receipt, and its page beside it.

    Return (receipt, number of rows, where the requester's key is). path: of the receipt
    case: the operator's number of the request, which the page shows
    """
    if path.suffix != ".json":
        raise ConfigError(f"--receipt {path} must end in .json. Nothing was erased.")
    if taken(path):
        raise ConfigError(
            f"{path}, its key or its page exists already. Choose another with --receipt. Nothing "
            f"was erased."
        )
    numbered = {CASE: one_line(case, "the case")} if case else {}
    begun = time.perf_counter()
    done = erase_imported(name, users, items)
    event = Erase(Records.of(torch.from_numpy(done.rows.user), torch.from_numpy(done.rows.item)))
    found = stored_rows(name, *done.pairs)
    read_again = "The stored files were read again and searched for rows of the request"
    findings = (
        Finding("scan", "SHOWN", value=float(found), n=len(done.rows), note=f"{read_again}."),
        Finding("audit", "UNAUDITED", note="This receipt is about stored rows, not about models."),
    )
    issued = issue(
        event,
        Done(
            method={"name": "imported data"},
            unlearning=ROWS,
            level="L1",
            world_before=done.before.digest,
            world_after=done.after.digest,
            model_before="",
            model_after="",
            rounds=0,
            client_rounds=0,
            online={},
            seconds=time.perf_counter() - begun,
        ),
        [kept_list("of the data", place(name).stat().st_size)],
        findings,
        not_covered=NOT_COVERED,
        claims={OPERATOR: who} if (who := operator()) else {},
        bound_claims=numbered,
    )
    key = write(issued, path)
    shown = page(issued.receipt, key=issued.key, name=path.stem)
    write_atomically(path.with_suffix(".html"), shown.encode(), private=True)
    log_if_possible(path)
    return issued.receipt, len(done.rows), key


def taken(path: Path) -> bool:
    """Return whether a receipt, its key or its page is there."""
    return any(path.with_suffix(suffix).exists() for suffix in (".json", ".key", ".html"))
