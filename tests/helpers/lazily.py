"""Heavy oracles, imported when a test first asks them: collecting the tests stays quick."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Stands for a module until one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks of its own in everything it collects
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
