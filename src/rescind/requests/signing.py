"""The one maker of receipts for a home: what all holders did, in one signed statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rescind.audits.finding import Finding
from rescind.core.claims import CASE, CONFIRMED, ITEMS, one_line
from rescind.core.labels import Labels
from rescind.core.records import Erase, Records
from rescind.forgetting.purge import kept_list
from rescind.home import Copy, Ledger, Request
from rescind.privacy.keys import about_signer, log_key
from rescind.privacy.sealing import run_key
from rescind.proof.log_folder import RECEIPT, entry_of
from rescind.receipts.log import open_log
from rescind.receipts.receipt import Asked, Done, Draft, canonical, covered, finish, prepare
from rescind.receipts.words import ROWS
from rescind.requests.table_holder import NOT_COVERED

WEAKEST = ("L0", "L1", "L2", "L3")


def signed_receipt(ledger: Ledger, request: Request, state: Mapping[str, Any]) -> bytes:
    """Return the signed receipt over everything that was done for a request.

    The run that learnt first gives the numbers; other models are named by their digests, and the
    level is that of the weakest.
    """
    of: dict[str, dict[str, Any]] = state["unlearnt"]["of"]
    rows = next((facts for facts in of.values() if "rows" in facts), None)
    deleted = [facts["deleted"] for facts in of.values() if "deleted" in facts]
    drafts = {name: Draft.of_text(f["draft"]) for name, f in of.items() if "draft" in f}
    if drafts:
        draft = _of_models(drafts)
        if rows:
            draft = _with_rows(draft, rows)
    else:
        draft = _of_rows(request, rows or {"rows": 0, "items": 0, "before": ""})
    if deleted:
        note = f"{len(deleted)} models could not forget, and were deleted."
        findings = (*draft.findings, Finding("deleted models", "SHOWN", n=len(deleted), note=note))
        draft = replace(draft, findings=findings)
    previous = ledger.last_receipt(request.dataset)
    if silos := state["purged"].get("silos"):
        draft = replace(draft, claims={**draft.claims, CONFIRMED: silos})
    issued = finish(draft, request.key, previous)
    body = canonical(issued.receipt)
    ledger.keep_receipt(request, body)
    for name, facts in of.items():
        copy = ledger.copy(name)
        if copy is not None and "draft" in facts:
            known = {**copy.facts, "receipt": body.decode(), "run key": run_key(request.key).hex()}
            known |= {"model": facts["model"], "data": facts["data"], "answered": request.id}
            ledger.register(Copy(copy.id, copy.dataset, copy.kind, copy.address, known))
    return body


def _of_models(drafts: Mapping[str, Draft]) -> Draft:
    first, *others = drafts.values()
    if not others:
        return first
    level = min((one.done.level for one in drafts.values()), key=WEAKEST.index)
    digests = [one.done.model_after for one in others]
    more = {f"model {number}": digest for number, digest in enumerate(digests, 2)}
    note = f"{len(others)} further models of this data forgot, too; the level is the weakest."
    findings = (*first.findings, Finding("other models", "SHOWN", n=len(others), note=note))
    done = replace(first.done, level=level)
    return replace(first, done=done, findings=findings, bound={**first.bound, **more})


def _with_rows(draft: Draft, rows: Mapping[str, Any]) -> Draft:
    return replace(
        draft,
        findings=(*draft.findings, _scan(int(rows["rows"]))),
        not_covered=(*draft.not_covered, NOT_COVERED),
        bound={**draft.bound, ITEMS: str(rows["items"])},
    )


def _scan(rows: int) -> Finding:
    note = "The imported rows were deleted, and the stored files were read again: none is there."
    return Finding("scan", "SHOWN", value=0.0, n=rows, note=note)


def _of_rows(request: Request, rows: Mapping[str, Any]) -> Draft:
    """Return a receipt about rows that no model had learnt."""
    pairs = [(user, item) for user, items in request.records.items() for item in items or ()]
    users, items = (
        (tuple(dict.fromkeys(column)) for column in zip(*pairs, strict=True)) if pairs else ((), ())
    )
    numbers = [[users.index(u) for u, _ in pairs], [items.index(i) for _, i in pairs]]
    event = Erase(Records.of(*(torch.tensor(n, dtype=torch.int64) for n in numbers)))
    labels = Labels(users, items)
    about = "This receipt is about stored rows, not about models."
    return prepare(
        Asked("Erase", int(rows["rows"]), len(request.records), event.digest(request.key)),
        Done(
            method={"name": "imported data"}, unlearning=ROWS, level="L1",
            world_before=str(rows["before"]), world_after="", model_before="", model_after="",
            rounds=0, client_rounds=0, online={}, seconds=0.0,
        ),
        [kept_list("of the data", 64 * int(rows["rows"]))],
        [_scan(int(rows["rows"])), Finding("audit", "UNAUDITED", note=about)],
        request.key,
        not_covered=[NOT_COVERED],
        claims={**covered(event, request.key, labels), **about_signer()},
        bound_claims={
            ITEMS: str(rows["items"]),
            **({CASE: one_line(request.case, "the case")} if request.case else {}),
        },
    )  # fmt: skip


def log_receipt(body: bytes) -> str:
    """Append a receipt's digest to the log of this home; return its proof.

    A receipt that is in the log already gets a new proof only.
    """
    log = open_log()
    entry = entry_of(RECEIPT, body)
    log.append([entry], log_key())
    return str(log.proof(entry))
