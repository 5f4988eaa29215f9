"""The ways in which requests come, by name."""

from __future__ import annotations

from tests.golden.estimator import ByEstimator
from tests.golden.matrix import Mouth
from tests.golden.service import ByService
from tests.golden.shop import ByForget, ByQueue, ByRows
from tests.golden.silos import OverSilos

EVERY = (ByForget, ByQueue, ByRows, OverSilos, ByService, ByEstimator)
MOUTHS: dict[str, type[Mouth]] = {mouth.name: mouth for mouth in EVERY}
