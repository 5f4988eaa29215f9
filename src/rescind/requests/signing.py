"""The one maker of receipts for a home: what all holders did, in one signed statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rescind.audits.finding import Finding
from rescind.core.claims import CONFIRMED, ITEMS
from rescind.home import Copy, Ledger, Request
from rescind.privacy.keys import log_key
from rescind.privacy.sealing import run_key
from rescind.proof.log_folder import RECEIPT, entry_of
from rescind.receipts.log import open_log
from rescind.receipts.receipt import Draft, canonical, finish
from rescind.requests.table_holder import NOT_COVERED, ONLY_ROWS, drafted_by_words, scanned

WEAKEST = ("L0", "L1", "L2", "L3")


def signed_receipt(ledger: Ledger, request: Request, state: Mapping[str, Any]) -> bytes:
    """Return the signed receipt over everything that was done for a request.

    The run that learnt first gives the numbers; other models are named by their digests, and the
    level is that of the weakest.
    """
    of: dict[str, dict[str, Any]] = state["unlearnt"]["of"]
    rows = next((facts for facts in of.values() if "rows" in facts), None)
    models = {n: f for n, f in of.items() if "draft" in f and ONLY_ROWS not in f}
    deleted = [facts["deleted"] for facts in of.values() if "deleted" in facts]
    if models:
        draft = _of_models([Draft.of_text(facts["draft"]) for facts in models.values()])
        draft = _with_rows(draft, rows) if rows else draft
    else:
        texts = (facts["draft"] for facts in of.values() if "draft" in facts)
        text = next(texts, None)
        draft = Draft.of_text(text) if text else drafted_by_words(request, rows or {})
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
    for name, facts in models.items():
        if "model" in facts and (copy := ledger.copy(name)) is not None:
            known = {**copy.facts, "receipt": body.decode(), "run key": run_key(request.key).hex()}
            known |= {"model": facts["model"], "data": facts["data"], "answered": request.id}
            ledger.register(Copy(copy.id, copy.dataset, copy.kind, copy.address, known))
    return body


def _of_models(drafts: Sequence[Draft]) -> Draft:
    first, *others = drafts
    if not others:
        return first
    level = min((draft.done.level for draft in drafts), key=WEAKEST.index)
    digests = [one.done.model_after for one in others]
    more = {f"model {number}": digest for number, digest in enumerate(digests, 2)}
    note = f"{len(others)} further models of this data forgot, too; the level is the weakest."
    findings = (*first.findings, Finding("other models", "SHOWN", n=len(others), note=note))
    done = replace(first.done, level=level)
    return replace(first, done=done, findings=findings, bound={**first.bound, **more})


def _with_rows(draft: Draft, rows: Mapping[str, Any]) -> Draft:
    return replace(
        draft,
        findings=(*draft.findings, scanned(int(rows["rows"]))),
        not_covered=(*draft.not_covered, NOT_COVERED),
        bound={**draft.bound, ITEMS: str(rows["items"])},
    )


def log_receipt(body: bytes) -> str:
    """Append a receipt's digest to the log of this home; return its proof.

    A receipt that is in the log already gets a new proof only.
    """
    log = open_log()
    entry = entry_of(RECEIPT, body)
    log.append([entry], log_key())
    return str(log.proof(entry))
