"""Replace a run by the one that forgot, in an order that survives a kill at any moment.

    1. RUN/moved.json           names the new run and, under a key, the request
    2. .NEW.partial -> NEW      the new run, complete but for its receipt, appears by one renaming
    3. RUN                      loses its model and everything else made with the records
    4. NEW/receipt.json         is signed last, so a receipt never lies beside the records;
       NEW/receipt.tlog-proof   its place in the operator's log

A kill before step 2 leaves the old run as it was. After it, `settle` finishes the rest: every
command on either folder calls it.

A run that is trained anew is replaced in the same manner, in its own folder:

    1. RUN/.learning/model      the new model; RUN, or the run that replaced it, still answers
    2. RUN/.learning/learnt.json   from now on the new model counts
    3. RUN                      gets both, and no longer names the run that had replaced it

Needs no torch.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.core.files import in_use, locked, make_folder, sweep, sync_folder, write_atomically
from rescind.errors import DataError
from rescind.storage.run_folder import (
    FOR_WORKERS,
    LEARNING,
    MOVED,
    SCRATCH,
    UNSIGNED,
    has_model,
    read_facts,
    read_note,
    successor,
    write_facts,
)  # fmt: skip

if TYPE_CHECKING:  # what signs is imported where it is used: every command settles its run first
    from rescind.forgetting.receipt import Receipt

log = logging.getLogger(__name__)

RECEIPT, PAGE, KEY = "receipt.json", "receipt.html", "receipt.key"
PROOF = "receipt.tlog-proof"
REPORT, WITHHELD = "report.html", "withheld.json"
BEFORE = "before.json"
"""In a run that forgot: the run that it replaced, which must leave out the same when run again."""
REQUEST = "request"
"""In the notes of both: a digest, under a key, of the request that one of them answered."""
LEFT = ("run.json", WITHHELD, MOVED, BEFORE, RECEIPT, PROOF, PAGE, KEY, REPORT)
"""Files that stay in the folder of a run after forgetting: no records and no model. The key of an
earlier requester stays until it is handed over."""
EARLIER = "receipt-before-"
"""Begins names of receipts, keys and pages from before a run was learnt again: they stay, too."""
OLD = "from.json"
LEARNT = "learnt.json"
"""The facts of a new model, written when it is complete: they become run.json."""
LAST = "receipt-last.json"
"""In a run that was trained anew: the newest receipt before it, so that the next one follows it."""


def partial(new: Path) -> Path:
    """Return the folder in which a new run is written before it gets its name."""
    return new.with_name(f".{new.name}.partial")


def begin(run: Path, new: Path, request: str) -> Path:
    """Name the new run in the old one; return the folder to write it in. request: keyed digest"""
    moved = {"to": os.path.relpath(new, run), REQUEST: request}
    write_atomically(run / MOVED, (json.dumps(moved) + "\n").encode())
    make_folder(partial(new))
    return partial(new)


def draft(folder: Path, run: Path, new: Path, signed: Receipt, page: bytes) -> None:
    """Write the receipt without its signature, to be signed last."""
    from rescind.forgetting.receipt import canonical

    unsigned = folder / UNSIGNED
    write_atomically(unsigned / RECEIPT, canonical(replace(signed, signature="")))
    write_atomically(unsigned / PAGE, page, private=True)  # it has the exact numbers
    back = {"run": os.path.relpath(run, new)}
    # The old run notes the request, too, but no longer when it is trained again.
    asked = {REQUEST: moved_request(run)}
    write_atomically(folder / BEFORE, json.dumps({**back, **asked}).encode())
    write_atomically(unsigned / OLD, json.dumps(back).encode())


def commit(run: Path, new: Path) -> None:
    """Give the new run its name, purge the old run, and sign the receipt."""
    os.replace(partial(new), new)
    sync_folder(new.parent)
    _finish(run, new)


def settle(run: Path) -> Path | None:
    """Finish or undo an interrupted forgetting of this run, or the one that made it.

    A new model that is complete gets its place. Return the new run, if this run was replaced.
    """
    if (run / LEARNING / LEARNT).is_file():
        with locked(run):
            _put_in_place(run)
    unsigned = run / UNSIGNED
    if unsigned.is_dir():
        old = run / str(read_note(unsigned / OLD)["run"])
        with locked(old if old.is_dir() else run):
            _finish(old, run)
    if (new := successor(run)) is None:
        _sweep(run)
        return None
    if not new.is_dir():  # nothing was committed, or somebody moved the new run
        if has_model(run) and not in_use(run):
            with locked(run):
                shutil.rmtree(partial(new), ignore_errors=True)
                (run / MOVED).unlink(missing_ok=True)
        _sweep(run)
        return None if has_model(run) else new
    if has_model(run) or (new / UNSIGNED).is_dir():
        with locked(run):
            _finish(run, new)
    return new


@contextmanager
def rerunning(run: Path) -> Iterator[None]:
    """Hold the folder of a run that is trained anew. Receipts of its earlier model are kept.

    The run that replaced it is held, too: whoever left it meanwhile would be learnt here.
    """
    try:
        make_folder(run)
    except OSError as error:
        why = f"cannot make the folder {run}: {error.strerror}"
        raise DataError(f"{why}. Choose another with --out.") from None
    settle(run)
    with ExitStack() as held:
        held.enter_context(locked(run))
        if (newest := _newest(run)) != run:
            held.enter_context(locked(newest))
        _keep_last(run)
        if (run / RECEIPT).is_file():
            number = 1 + sum(1 for _ in run.glob(f"{EARLIER}*.json"))
            for name in (
                PAGE,
                KEY,
                PROOF,
                RECEIPT,
            ):  # the receipt last: it decides whether to go on here
                if (run / name).is_file():
                    kept = name.replace("receipt", f"{EARLIER}{number}")
                    os.replace(run / name, run / kept)
        yield


def begin_learning(run: Path) -> Path:
    """Return the folder for a new model of this run. Until it is complete, nothing changes."""
    shutil.rmtree(run / LEARNING, ignore_errors=True)
    make_folder(run / LEARNING)
    return run / LEARNING / "model"


def finish_learning(run: Path, facts: dict[str, Any]) -> None:
    """Replace the run here, or the one that replaced it, by the new model, which is saved."""
    write_atomically(run / LEARNING / LEARNT, json.dumps(facts, indent=2).encode())
    _put_in_place(run)


def _put_in_place(run: Path) -> None:
    """Give a complete new model its place. Killed at any moment, it can be done again."""
    new = run / LEARNING
    if (new / "model").is_dir():
        (run / MOVED).unlink(missing_ok=True)
        (run / "run.json").unlink(missing_ok=True)  # so that it is never beside another's model
        shutil.rmtree(run / "model", ignore_errors=True)
        os.replace(new / "model", run / "model")
        sync_folder(run)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    (run / REPORT).unlink(missing_ok=True)  # it is about the model before, or says that it is gone
    os.replace(new / LEARNT, run / "run.json")
    sync_folder(run)
    shutil.rmtree(new)


def last_receipt(run: Path) -> bytes | None:
    """Return the receipt that the next one of this run follows, or None."""
    found = [run / name for name in (RECEIPT, LAST) if (run / name).is_file()]
    return found[0].read_bytes() if found else None


def _later(run: Path) -> Iterator[Path]:
    """Yield the runs that replaced this one, one after another, where they still lie."""
    while (new := successor(run)) is not None and new.is_dir():
        run = new
        yield run


def _newest(run: Path) -> Path:
    return [run, *_later(run)][-1]


def _keep_last(run: Path) -> None:
    """Keep what runs have that replaced the one here: the newest receipt, and who left since."""
    newest = run
    for newest in _later(run):
        _leave_out(run, newest)
    last = last_receipt(newest)
    if last is not None:
        write_atomically(run / LAST, last)
    if newest != run and has_model(newest):
        log.warning(
            "%s stays: the earlier model, without what was forgotten, and the data of everybody "
            "else. Later requests do not reach it. Delete it when this run is done and its "
            "receipts are handed over.", newest
        )  # fmt: skip


def moved_request(run: Path) -> str:
    """Return the keyed digest of the request that replaced a run; '' if none did."""
    return str(read_note(run / MOVED).get(REQUEST, "")) if (run / MOVED).is_file() else ""


def _finish(run: Path, new: Path) -> None:
    for folder in (run, new):
        if folder.is_dir():
            sweep(folder)
    if run.is_dir():
        _purge_folder(run, new)
    unsigned = new / UNSIGNED
    if not unsigned.is_dir():
        return
    if (unsigned / RECEIPT).is_file():
        from rescind.forgetting import receipt
        from rescind.forgetting.receipt_log import log_if_possible
        from rescind.privacy import keys

        said = receipt.parse((unsigned / RECEIPT).read_bytes())
        write_atomically(new / PAGE, (unsigned / PAGE).read_bytes(), private=True)
        write_atomically(new / RECEIPT, receipt.canonical(receipt.sign(said, keys.signing_key())))
        log_if_possible(new / RECEIPT)  # killed before: signed again, to the same bytes, and logged
    shutil.rmtree(unsigned)


def _purge_folder(run: Path, new: Path) -> None:
    """Delete everything of the old run but its results and the name of the new run."""
    # A rerun into the old folder must leave the records out, too, and into all before it.
    write_atomically(run / WITHHELD, (new / WITHHELD).read_bytes())
    for earlier in replaced(run):
        _leave_out(earlier, new)
        for begun in (earlier / LEARNING, earlier / "checkpoints"):  # a rerun that was killed
            shutil.rmtree(begun, ignore_errors=True)
    facts = read_facts(run) or {}
    facts.pop("model", None)  # its digest would help to test guesses
    if facts.get("data", {}).get("source") == "imported":
        facts["data"]["digest"] = ""  # so would that of private data with the erased rows
    write_facts(run, facts)
    write_atomically(run / REPORT, _moved_page(run, new).encode())
    # The model goes last: while it is there, `settle` knows that there is more to delete.
    for path in sorted(run.iterdir(), key=lambda path: path.name == "model"):
        if path.is_dir():
            _clear(path)
        elif path.name not in LEFT and not path.name.startswith(EARLIER):
            path.unlink()
    sync_folder(run)


def replaced(run: Path) -> Iterator[Path]:
    """Yield the runs that this one replaced, one after another, where they still lie empty."""
    seen = {run}
    while (run / BEFORE).is_file():
        run = Path(os.path.normpath(run / str(read_note(run / BEFORE)["run"])))
        if run in seen or not (run / MOVED).is_file():  # moved away, or trained again by now
            return
        seen.add(run)
        yield run


def _leave_out(run: Path, new: Path) -> None:
    """Add the list of a later run to that of an earlier one."""
    from rescind.data.blocklist import Blocklist

    (Blocklist.read(run) | Blocklist.read(new)).write(run)


def _clear(folder: Path) -> None:
    """Delete a folder with everything in it but receipts, which are evidence of other requests.

    A finished run that somebody put below this one stays: it is answered by itself, as others are.
    """
    if (folder / "run.json").is_file() and has_model(folder):
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _clear(path)
        elif path.name not in (RECEIPT, PROOF):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _moved_page(run: Path, new: Path) -> str:
    from rescind.reporting.html import Page

    out = Page(f"{run.name}: a request was answered")
    out.text(
        f"Records of this run were erased, or are no longer lent. Its model, its report and "
        f"everything else that was made with them were deleted. The new run is {new.name}."
    )
    out.link("What was requested, done and measured", f"{os.path.relpath(new, run)}/{PAGE}")
    out.text("Kept here: the settings and the results of the old run (run.json).")
    out.code(f"rescind verify {new}/{RECEIPT}")
    return out.html()


def _sweep(run: Path) -> None:
    """Remove what killed commands left in a run, if none is working there."""
    left = [run / SCRATCH, *run.glob(f"audits/{FOR_WORKERS}*")]
    if any(path.is_dir() for path in left) and not in_use(run):
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
