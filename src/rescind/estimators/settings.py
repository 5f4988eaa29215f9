"""Settings of an estimator: what `get_params`, `set_params` and `sklearn.base.clone` expect."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from rescind.core.settings import checked, fields_of
from rescind.errors import ConfigError, suggest


@dataclass(kw_only=True, eq=False, repr=False)
class Settings:
    """Constructor arguments as settings, with the conventions of scikit-learn.

    They are checked when they are used. `sklearn.base.clone` works; scikit-learn is not needed.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name. deep: no effect, since no setting is an estimator"""
        return {name: getattr(self, name) for name in fields_of(type(self))}

    def set_params(self, **settings: Any) -> Self:
        """Change settings; what was learnt follows them at its next use."""
        known = fields_of(type(self))
        for name in settings:
            if name not in known:
                text = f"{type(self).__name__} has no setting '{name}'; {suggest(name, known)}"
                raise ConfigError(text)
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    def _checked(self) -> dict[str, Any]:
        """Return the settings, each of its type, or raise."""
        name, kinds = type(self).__name__, fields_of(type(self))
        return {n: checked(v, kinds[n], f"{name}.{n}") for n, v in self.get_params().items()}

    def __repr__(self) -> str:
        new = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)
               if getattr(self, f.name) != f.default]  # fmt: skip
        return f"{type(self).__name__}({', '.join(new)})"
