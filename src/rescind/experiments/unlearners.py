"""An unlearner that an experimenter names for one request, with changed settings."""

from __future__ import annotations

from collections.abc import Sequence

from rescind.core.method import Method, Unlearner
from rescind.core.settings import classes, from_table, sought
from rescind.errors import ConfigError, suggest
from rescind.experiments.recipe_file import setting
from rescind.forgetting.forget import settings_of_forgetting
from rescind.methods._outside import class_name
from rescind.methods._own_file import FORGETS
from rescind.storage.kinds import MODELS, UNLEARNERS


def chosen_unlearner(name: str | None, changes: Sequence[str] = ()) -> Unlearner | None:
    """Return the unlearner of this name; None if no name is given (the run's method forgets)."""
    if name is None:
        if changes:
            raise ConfigError(
                f"--set {changes[0]} changes an unlearner, and none was named. Name one: "
                f"--method FedShareUnlearn."
            )
        return None
    name = class_name(name, FORGETS)
    every = classes(*UNLEARNERS)
    known = [n for n in every if every[n].forget is not Method.forget]  # type: ignore[attr-defined]
    cls = sought(*UNLEARNERS, name)
    if cls is None or cls.forget is Method.forget:  # type: ignore[attr-defined]
        raise ConfigError(f"there is no unlearner '{name}': {suggest(name, known)}")
    given = dict(setting(text, "rounds=20") for text in changes)
    own = settings_of_forgetting(cls)
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{cls.__name__} has no setting of forgetting '{key}' (it learns as the run did); "
                + (suggest(key, own) if own else "it has none at all. Leave --set out.")
            )
    found: Unlearner = from_table(cls, {**given, "name": cls.__name__}, {"model": MODELS})
    return found
