"""Let somebody in again who left a silo."""

from __future__ import annotations

from pathlib import Path

from rescind.core.files import in_use
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.departures import DATASET, Asked, Rows, depart, read_list
from rescind.flower.silo.names import USER, key_of
from rescind.flower.silo.storage import Store
from rescind.home import Ledger, Refused


def readmit(folder: Path, user: str) -> None:
    """Let somebody in again who left a silo. What is stored of them until now stays away.

    They take part again in the next run that is trained from the beginning.
    """
    if "recipe" not in Store(folder).notes:
        raise ConfigError(f"{folder} is not the folder of a silo (rescind flower join).")
    if in_use(folder):
        raise ConfigError(f"the silo of {folder} has joined: end it (Ctrl-C), then repeat this.")
    data, key, listed = RecipeData.noted_in(Store(folder)), key_of(USER, user), read_list(folder)
    name = data.imported
    stored = Rows(name, Asked("leave", user)).items
    if not (listed.has_asked(key) or stored or user in data.names().labels.users):
        raise Refused("unknown-person", f"the silo of {folder} has no person '{user}'.")
    if not listed.has_withdrawn(key):
        raise Refused("has-not-left", f"'{user}' has not left the silo of {folder}.")
    depart(folder, Asked("erase", user), stored)
    with Ledger.open(folder) as ledger:
        ledger.readmit(DATASET, listed.digest_of(key))
    if data.own:
        with Ledger.open() as ledger:
            ledger.readmit(name, Blocklist().digest_of(user))
