"""Erase rows of an imported dataset, with a receipt of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from rescind.audits.finding import Finding
from rescind.core.records import Erase, Records
from rescind.data.blocklist import place
from rescind.data.importing import erase_imported
from rescind.errors import ConfigError
from rescind.forgetting.purge import kept_list
from rescind.forgetting.receipt import Done, Receipt, issue, write
from rescind.forgetting.receipt_log import log_if_possible

NOT_COVERED = (
    "Runs that learnt from these rows: `rescind forget RUN` answers for each of them.",
    "The file that was imported, and copies of it elsewhere.",
)


def erase(
    name: str, users: Sequence[str], items: Sequence[str], path: Path
) -> tuple[Receipt, int, Path]:
    """Delete rows of users from an imported dataset and write a receipt.

    Return (receipt, number of rows, where the requester's key is). path: of the receipt
    """
    if path.exists() or path.with_suffix(".key").exists():
        raise ConfigError(
            f"{path} or its key exists already. Choose another with --receipt. Nothing was erased."
        )
    begun = time.perf_counter()
    done = erase_imported(name, users, items)
    event = Erase(Records.of(torch.from_numpy(done.rows.user), torch.from_numpy(done.rows.item)))
    read_again = "The stored files were read again and searched for rows of the request"
    findings = (
        Finding("scan", "SHOWN", value=float(done.found), n=len(done.rows), note=f"{read_again}."),
        Finding("audit", "UNAUDITED", note="This receipt is about stored rows, not about models."),
    )
    issued = issue(
        event,
        Done(
            method={"name": "imported data"},
            unlearning="rows deleted",
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
    )
    key = write(issued, path)
    log_if_possible(path)
    return issued.receipt, len(done.rows), key
