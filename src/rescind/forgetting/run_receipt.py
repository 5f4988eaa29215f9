"""Check that a run and its receipt belong together: model, data and ids are those it is about."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.errors import DataError
from rescind.forgetting.receipt import Receipt, canonical, digest, parse, run_key_of
from rescind.forgetting.sealing import fits
from rescind.forgetting.succession import RECEIPT
from rescind.forgetting.verify import Check
from rescind.storage.run_folder import newest, read_facts

if TYPE_CHECKING:  # a list for one user is compared, too, and made without torch
    from rescind.core.federation import Federation
    from rescind.storage.partly import Saved

THE_RUN = "the folder of the run that answered (if it learnt again since, give no run)"
"""What to look for, where a run is not the one of a receipt."""


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


def check_newest(given: bytes, run: Path) -> None:
    """Raise `DataError` if a receipt is older than what a run holds now.

    It may be valid all the same, but a later request has changed the model and the data since.
    """
    now = newest(run)
    if not (now / RECEIPT).is_file():
        return
    before = {}
    for path in now.parent.glob(f"*/{RECEIPT}"):
        with suppress(DataError):  # the folder of another run, with a file of its own
            data = path.read_bytes()
            before[digest(data)] = parse(data).previous
    at, seen = before.get(digest((now / RECEIPT).read_bytes()), ""), set[str]()
    while at and at not in seen:
        if at == digest(given):
            raise DataError(
                f"this receipt is older than what {now} holds: a later request was answered there. "
                f"Only the newest receipt, {now / RECEIPT}, can be compared with a run and its "
                f"data. Verify this one without --run and --data."
            )
        seen.add(at)
        at = before.get(at, "")


def compare(run: Path, there: Found | None = None, given: bytes | None = None) -> list[Check]:
    """Compare the receipt of a run with its model, its data and its ids.

    there: what its files hold; None: the whole federation is loaded
    given: the receipt that somebody holds; it must be the run's own. None: that is compared
    """
    facts: dict[str, Any] = read_facts(run) or {}
    known = facts.get("receipt")
    own = (run / RECEIPT).read_bytes() if (run / RECEIPT).is_file() else b""
    data = own if given is None else given
    if known is None and not own and given is not None:
        told = f"{run} answered no request, or learnt again since: this receipt is not about it"
        return [Check(False, told, look_for=THE_RUN)]
    if given is not None and digest(given) != (known["digest"] if known else digest(own)):
        told = f"it is not the receipt of {run}: that run has its own, {RECEIPT}"
        return [Check(False, told, look_for=THE_RUN)]
    if known is None:
        return [Check(True, "an older version made this run; nothing to compare it with", True)]
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
