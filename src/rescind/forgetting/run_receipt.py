"""Check that a run and its receipt belong together: model, data and ids are those it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rescind.core import params
from rescind.core.federation import Federation
from rescind.errors import DataError
from rescind.forgetting.receipt import Receipt, canonical, digest, parse, run_key_of
from rescind.forgetting.sealing import fits
from rescind.forgetting.succession import RECEIPT
from rescind.forgetting.verify import Check
from rescind.storage.federations import load_federation
from rescind.storage.run_folder import read_facts


def facts_about(receipt: Receipt, fed: Federation) -> dict[str, str]:
    """Return what run.json keeps of a receipt: its digest, and those of the model and the data."""
    return {
        "digest": digest(canonical(receipt)),
        "model": params.digest(fed.now.state.public),
        "data": fed.now.vault.holdings.digest(),
    }


def compare(run: Path, fed: Federation | None = None) -> list[Check]:
    """Compare the receipt of a run with its model, its data and its ids."""
    facts: dict[str, Any] = read_facts(run) or {}
    known = facts.get("receipt")
    if known is None:
        return [Check(True, "an older version made this run; nothing to compare it with", True)]
    data = (run / RECEIPT).read_bytes() if (run / RECEIPT).is_file() else b""
    same = digest(data) == known["digest"]
    checks = [Check(same, "the receipt is that of this run" if same else "it is not its receipt")]
    if same:
        bound = fits(parse(data).done.model_after, known["model"], run_key_of(run))
        says = "the receipt states the model that this run had when it was answered"
        checks.append(Check(bound, says if bound else f"it is not true that {says}"))
    fed = fed or load_federation(run)  # its files, ids included, must match their digests
    there = params.digest(fed.now.state.public) == facts["model"]["public"]
    says = "the model is the one of run.json"
    if known["model"] != facts["model"]["public"]:
        says += ", published again since"
    checks.append(Check(there, says if there else "the model is not the one of run.json"))
    whole = fed.now.vault.holdings.digest() == known["data"]
    checks.append(Check(whole, "the data is" + ("" if whole else " not") + " what remained"))
    return checks


def check_fit(run: Path, fed: Federation) -> Federation:
    """Return the federation, or raise `DataError` if the receipt of its run does not fit."""
    wrong = [check.says for check in compare(run, fed) if not check.holds]
    if wrong:
        raise DataError(
            f"{run} holds a receipt that does not fit: {'; '.join(wrong)}. Its answer cannot be "
            f"relied on: restore the folder from a copy, or run again and repeat the request. "
            f"`rescind verify --run {run}` shows more."
        )
    return fed
