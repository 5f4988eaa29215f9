"""Check that a run and the receipt it answered with belong together: model and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import DataError
from rescind.home.ledger import Ledger
from rescind.privacy.sealing import bound, fits
from rescind.receipts.receipt import digest, parse
from rescind.receipts.verify import Check
from rescind.storage.run_folder import artefact_of, read_facts

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


def answered_by(run: Path) -> Mapping[str, Any]:
    """Return what the ledger knows of the last answer of a run; {} if it gave none here."""
    ledger, name = Ledger.there(), artefact_of(run)
    if ledger is None or not name:
        return {}
    with ledger:
        copy = ledger.copy(name)
    return copy.facts if copy is not None else {}


def run_key_of(run: Path) -> bytes | None:
    """Return the key that binds a run to its receipt; None if this home has none."""
    known = answered_by(run)
    return bytes.fromhex(known["run key"]) if "run key" in known else None


def compare(run: Path, there: Found | None = None, given: bytes | None = None) -> list[Check]:
    """Compare the receipt of a run with its model and its data.

    there: what its files hold; None: the whole federation is loaded
    given: the receipt that somebody holds; it must be the run's own. None: that is compared
    """
    known = answered_by(run)
    if "receipt" not in known:
        told = f"{run} answered no request here, or learnt again since"
        return [Check(given is None, told, note=given is None)]
    own = known["receipt"].encode()
    if given is not None and digest(given) != digest(own):
        told = f"it is not the newest receipt of {run}: that is {digest(own)[7:19]}"
        return [Check(False, told)]
    if there is None:
        from rescind.storage.federations import load_federation

        there = Found.of(load_federation(run))
    receipt, key = parse(own), bytes.fromhex(known["run key"])
    others = [v for n, v in receipt.claims.items() if n.startswith("model ")]
    states = fits(receipt.done.model_after, known["model"], key)
    states = states or bound(known["model"], key) in others
    now = ((read_facts(run) or {}).get("model") or {}).get("public")
    return [
        Check(states, "the receipt states the model that this run had when it was answered"),
        Check(there.model == now, "the model is the one of run.json"),
        Check(there.data == known["data"], "the data is what remained"),
    ]


def check_fit(run: Path, there: Found) -> None:
    """Raise `DataError` if the receipt of a run does not fit what its files hold."""
    if "receipt" not in answered_by(run):
        return
    if wrong := [check.says for check in compare(run, there) if not check.holds]:
        raise DataError(
            f"{run} does not fit the receipt of its last answer; untrue: {wrong[0]}. Restore the "
            f"folder from a copy, or learn it again."
        )
