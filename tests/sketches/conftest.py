"""What the oracles need: torch's optimisers, which load the compiler when first made."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _optimisers_are_loaded() -> None:
    """Pay for that import once and here, not in whichever test happens to come first."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
