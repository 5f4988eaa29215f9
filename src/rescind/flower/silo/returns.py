"""Let a user who withdrew from a silo come in again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rescind.core.files import in_use
from rescind.data.blocklist import FILE, Blocklist
from rescind.errors import ConfigError
from rescind.experiments.prepared_data import prepare
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.names import ITEM, USER, key_of
from rescind.flower.silo.silo_notes import is_silo
from rescind.flower.silo.storage import Store
from rescind.flower.silo.upgrade import upgrade
from rescind.flower.silo.withheld import read_list


def check_silo(folder: Path, dataset: str) -> None:
    """Refuse a folder that is not of a silo with this dataset, or whose silo has joined."""
    if not is_silo(folder):
        raise ConfigError(
            f"{folder} is not the folder of a silo (rescind flower join). Nothing was changed."
        )
    found = RecipeData.noted_in(Store(folder)).settings.name
    if found != dataset:
        raise ConfigError(f"{folder} has the data '{found}', not '{dataset}'. Nothing was changed.")
    if in_use(folder):
        raise ConfigError(
            f"{folder}: this silo has joined. End it (Ctrl-C), repeat this command, and let it "
            f"join again. Nothing was changed."
        )


def admit_to_silo(folder: Path, user: str) -> bool:
    """Let a user in again who left a silo; return whether they had left.

    What they had before stays away, also rows that were added to the data while they were away.
    They take part again in the next run that is trained from the beginning.
    """
    store = Store(folder)
    data = RecipeData.noted_in(store)
    upgrade(store, data)
    key = key_of(USER, user)
    if not read_list(folder).has_withdrawn(key):
        return False
    # Without filters: what they left out may come in with rows that are added.
    rows = prepare(replace(data.settings, core=None, min_user=None), erased_too=True)
    items = rows.items[rows.item[rows.users[rows.user] == user]].tolist()
    return Blocklist.admit(folder / FILE, key, [key_of(ITEM, item) for item in items])
