"""Tell the ledger of the home which models were learnt from imported data."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from rescind.errors import DataError
from rescind.home.ledger import Ledger
from rescind.home.request import Copy
from rescind.storage.learning import finish_learning
from rescind.storage.run_folder import artefact_of, dataset_of, place_of


def artefact(folder: Path) -> str:
    """Return the id of the run in a folder, which a run keeps when it is learnt again."""
    return artefact_of(folder) or secrets.token_hex(6) + place_of(folder)


def departures_of(name: str) -> int:
    """Return how many departures a dataset has; whoever learns looks before and after."""
    ledger = Ledger.there()
    if ledger is None:
        return 0
    with ledger:
        return ledger.counted(name)


def finish(folder: Path, facts: dict[str, Any], counted: int) -> None:
    """Give a new model its place, and register it if its data is imported.

    counted: the departures when the data was read. Whoever left since is in the model
    """
    name = facts["data"]["name"]
    if departures_of(name) != counted:
        raise DataError(
            f"a request about '{name}' was answered while this run learnt, so its model was not "
            f"taken over. Give the same command again."
        )
    if facts["data"].get("source") == "imported":
        with Ledger.open() as ledger:
            place = str(folder.absolute())
            ledger.register(
                Copy(facts["artefact"], dataset_of(facts, facts["artefact"]), "run", place)
            )
    finish_learning(folder, facts)
