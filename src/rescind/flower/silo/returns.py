"""Let a user who withdrew from a silo come in again.

A silo's list (`withheld.json`) has numbers of users and items where the list of a dataset has
original ids, so they are looked up in the silo's data first.
"""

from __future__ import annotations

from pathlib import Path

from rescind.core.files import in_use
from rescind.data.blocklist import FILE, Blocklist
from rescind.errors import ConfigError, DataError
from rescind.experiments.learning_run import prepare
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.storage import Store


def is_silo(folder: Path) -> bool:
    """Return whether a folder is that of a silo."""
    return "recipe" in Store(folder).notes


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
    data = RecipeData.noted_in(Store(folder))
    try:
        number = data.labels().client(user, data.sizes()[0])
    except DataError:  # the data has lost the id, too: with it they get a new number
        return False
    if not Blocklist.read(folder).has_withdrawn(str(number)):
        return False
    rows = prepare(data.settings)
    before = rows.item[rows.user == number].tolist()
    return Blocklist.admit(folder / FILE, str(number), list(map(str, before)))
