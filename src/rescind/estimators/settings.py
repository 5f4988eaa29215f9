"""Settings of an estimator, as `get_params`, `sklearn.base.clone` and saved files expect them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from rescind.core import params
from rescind.core.settings import checked, fields_of, refuse_unknown
from rescind.errors import DataError

FORMAT = 1
"""Version of saved estimators."""


@dataclass(kw_only=True, eq=False, repr=False)
class Settings:
    """Constructor arguments as settings, with the conventions of scikit-learn.

    They are checked when they are used. `sklearn.base.clone` works; scikit-learn is not needed.
    """

    _file = ""
    """Where it was saved or loaded last: a ledger registers this copy."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse settings that do not exist, and name those that do."""
        refuse_unknown(cls, given)
        return super().__new__(cls)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name. deep: no effect, since no setting is an estimator"""
        return {name: getattr(self, name) for name in fields_of(type(self))}

    def set_params(self, **settings: Any) -> Self:
        """Change settings; what was learnt follows them at its next use."""
        refuse_unknown(type(self), settings)
        vars(self).update(settings)  # all or none, whatever interrupts
        return self

    def _checked(self) -> dict[str, Any]:
        """Return the settings, each of its type, or raise."""
        name, kinds = type(self).__name__, fields_of(type(self))
        return {n: checked(v, kinds[n], f"{name}.{n}") for n, v in self.get_params().items()}

    def _notes(self) -> dict[str, str]:
        """Return what a saved file says about itself."""
        settings = json.dumps(self._checked())
        return {"format": str(FORMAT), "class": type(self).__name__, "settings": settings}

    @classmethod
    def _stored(cls, path: Path) -> tuple[Self, dict[str, Tensor], dict[str, str]]:
        """Return an estimator with the settings of a saved file, and its contents and notes."""
        tensors, notes = params.load(path)
        if notes.get("class") != cls.__name__ or notes.get("format") != str(FORMAT):
            raise DataError(
                f"{path} holds {notes.get('class', 'something else')}, format "
                f"{notes.get('format', 'unknown')}; {cls.__name__} reads its own, format {FORMAT}."
            )
        made = cls().set_params(**json.loads(notes["settings"]))
        made._checked()
        made._file = str(path)
        return made, tensors, notes

    def __repr__(self) -> str:
        new = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)
               if getattr(self, f.name) != f.default]  # fmt: skip
        return f"{type(self).__name__}({', '.join(new)})"
