"""Check that a run and its receipt belong together: model, data and ids are those it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import DataError
from rescind.forgetting.receipt import Receipt, canonical, digest, parse, run_key_of
from rescind.forgetting.sealing import fits
from rescind.forgetting.succession import RECEIPT
from rescind.forgetting.verify import Check
from rescind.storage.run_folder import read_facts

if TYPE_CHECKING:  # a list for one user is compared, too, and made without torch
    from rescind.core.federation import Federation
    from rescind.storage.partly import Saved


@dataclass(frozen=True)
class Found:
    """What the files of a run hold: the digest of its model, and of its data."""

    model: str
    data: str

    @classmethod
    def of(cls, fed: Federation) -> Found:
        from rescind.core import params

        return cls(params.digest(fed.now.state.public), fed.now.vault.holdings.digest())

    @classmethod
    def of_saved(cls, saved: Saved) -> Found:
        return cls(saved.model_digest(), saved.data_digest())


def facts_about(receipt: Receipt, fed: Federation) -> dict[str, str]:
    """Return what run.json keeps of a receipt: its digest, and those of the model and the data."""
    return {"digest": digest(canonical(receipt)), **vars(Found.of(fed))}


def compare(run: Path, there: Found | None = None) -> list[Check]:
    """Compare the receipt of a run with its model, its data and its ids.

    there: what its files hold; None: the whole federation is loaded
    """
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
    if there is None:
        from rescind.storage.federations import load_federation

        there = Found.of(load_federation(run))  # its files, ids included, must match their digests
    same = there.model == facts["model"]["public"]
    says = "the model is the one of run.json"
    if known["model"] != facts["model"]["public"]:
        says += ", published again since"
    checks.append(Check(same, says if same else "the model is not the one of run.json"))
    whole = there.data == known["data"]
    checks.append(Check(whole, "the data is" + ("" if whole else " not") + " what remained"))
    return checks


def check_fit(run: Path, there: Found) -> None:
    """Raise `DataError` if the receipt of a run does not fit what its files hold."""
    wrong = [check.says for check in compare(run, there) if not check.holds]
    if wrong:
        raise DataError(
            f"{run} holds a receipt that does not fit: {'; '.join(wrong)}. Its answer cannot be "
            f"relied on: restore the folder from a copy, or run again and repeat the request. "
            f"`rescind verify --run {run}` shows more."
        )
