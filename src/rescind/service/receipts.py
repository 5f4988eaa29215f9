"""Handing over receipts and their proofs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rescind.ledger.reading import OPEN
from rescind.service.problems import Problem
from rescind.service.statuses import NO_RECEIPT, being_written, receipt_impossible
from rescind.service.witnesses import covering

if TYPE_CHECKING:
    from rescind.service.context import Service


def receipt(service: Service, row: Any) -> Response:
    """Return a receipt, byte for byte as it was signed."""
    if row.receipt is None:
        raise _not_there(service, row)
    return Response(bytes(row.receipt), media_type="application/json")


async def proof(service: Service, row: Any) -> Response:
    """Return the proof that the log holds the receipt, and say how many witnesses signed it."""
    if row.receipt is None or row.receipt_leaf is None:
        raise _not_there(service, row)
    under = await covering(service, row.receipt_leaf)
    headers = {"Rescind-Cosigned": f"{len(under.signed)} of {under.of}"}
    text = await run_in_threadpool(service.log.proof, row.receipt_leaf, under)
    return Response(text, headers=headers, media_type="text/plain; charset=utf-8")


def _not_there(service: Service, row: Any) -> Problem:
    """Say why there is no receipt: it comes, it cannot come, or none belongs to the request."""
    if receipt_impossible(row):
        return Problem(
            404,
            f"This request is {row.status}. {NO_RECEIPT}",
            "Use the receipt that was issued before. If you did not save it, ask the operator, who "
            "may still have it.",
            kind="no-receipt",
        )
    if row.status not in OPEN:
        return Problem(
            404,
            f"This request is {row.status}: no receipt belongs to it.",
            "Read its status: it says what was done. Receipts are about what was taken back.",
            kind="no-receipt",
        )
    if being_written(service, row):
        return Problem(404, "Its receipt is being written.", "Ask in a moment.", kind="not-yet")
    return Problem(
        404,
        f"This request is {row.status}: its receipt is not issued yet.",
        "Read its status: it says when the next release is due.",
        kind="not-yet",
    )
