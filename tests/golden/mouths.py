"""The ways in which requests come, by name; each is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from tests.golden.matrix import Mouth

CLASSES = {
    "forget": "shop.ByForget",
    "queue": "shop.ByQueue",
    "silos": "silos.OverSilos",
    "service": "service.ByService",
    "estimator": "estimator.ByEstimator",
}


class _Mouths(Mapping[str, type[Mouth]]):
    def __getitem__(self, name: str) -> type[Mouth]:
        module, _, kind = CLASSES[name].partition(".")
        found: type[Mouth] = getattr(import_module(f"tests.golden.{module}"), kind)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(CLASSES)

    def __len__(self) -> int:
        return len(CLASSES)


MOUTHS = _Mouths()
