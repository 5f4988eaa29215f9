"""Rows of audits: what was found about a release or a generation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, select

from rescind.audits.finding import Finding, overall
from rescind.ledger import tables
from rescind.ledger.batch import Batch


def write_audit(batch: Batch, findings: Sequence[Finding], **of: Any) -> str:
    """Write what an audit found; return its verdict. of: `release=` or `job=`"""
    table, verdict = tables.audit, overall(findings)
    last = batch.tx.scalar(select(func.max(table.c.n))) or 0
    row = {
        "n": last + 1,
        "at": batch.now,
        "records": max((one.n for one in findings), default=0),
        "verdict": verdict,
        "detail": json.dumps([one.facts() for one in findings]),
        **of,
    }
    batch.tx.execute(insert(table).values(row))
    return verdict


def verdict_of(tx: Any, job: str) -> str | None:
    """Return what the audit of a generation said; None if there was none."""
    table = tables.audit
    found: str | None = tx.scalar(
        select(table.c.verdict).where(table.c.job == job).order_by(table.c.n.desc()).limit(1)
    )
    return found
