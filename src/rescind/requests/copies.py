"""Find the copies of some data: imported tables and runs that the ledger knows."""

from __future__ import annotations

from pathlib import Path

from rescind.home import Copy, Ledger, Request
from rescind.requests.holders import Holder


def holders(ledger: Ledger, request: Request) -> list[Holder]:
    """Return all copies of the data of a request; those that are no more are struck off."""
    from rescind.requests.run_holder import Run
    from rescind.requests.table_holder import Table

    kinds = {"run": Run, "table": Table, "saved": _saved}
    present = {holder.copy.id: holder for holder in ledger.present}
    copies = [copy for copy in ledger.copies(request.dataset) if copy.kind in kinds]
    found: list[Holder] = [kinds[copy.kind](copy) for copy in copies if copy.id not in present]
    for holder in found:
        if not holder.there:
            ledger.unregister(holder.copy.id)
    mine = [holder for holder in present.values() if holder.copy.dataset == request.dataset]
    return [holder for holder in found if holder.there] + mine


def _saved(copy: Copy) -> Holder:
    from rescind.requests.saved_holder import Saved  # estimators, which few homes have

    return Saved(copy)


def run_copy(run: Path) -> Copy:
    """Return the copy that a run is; a run of published data has none in the ledger before."""
    from rescind.experiments.registering import artefact
    from rescind.storage.run_folder import (
        artefact_of,
        check_finished,
        dataset_of,
        read_facts,
        write_facts,
    )

    check_finished(run)
    facts = read_facts(run) or {}
    if not artefact_of(run):
        write_facts(run, facts := {**facts, "artefact": artefact(run)})
    return Copy(facts["artefact"], dataset_of(facts, facts["artefact"]), "run", str(run.absolute()))
