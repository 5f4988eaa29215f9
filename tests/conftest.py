"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.holdings import Holdings

# The same examples on every machine and no clock of the machine in a verdict.
hypothesis.settings.register_profile(
    "rescind", derandomize=True, deadline=None, database=None, max_examples=50
)
hypothesis.settings.load_profile("rescind")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test of real data is skipped, with what was tried, where the data cannot be had."""
    from rescind.errors import DataError

    try:
        return (yield)
    except DataError as error:
        if item.get_closest_marker("data") is None or "could not be obtained" not in str(error):
            raise
        pytest.skip(str(error).splitlines()[0].removesuffix(" Tried:"))


@pytest.fixture
def tiny() -> Holdings:
    """Six clients and twelve items, with splits."""
    from worlds import tiny_holdings  # here, so that collecting tests loads no more than they do

    return tiny_holdings()


@pytest.fixture
def tiny_fed(tiny: Holdings) -> Federation:
    """The tiny holdings under plain averaging, three clients a round."""
    from rescind.core.federation import Federation
    from rescind.methods.baselines.fedavg import FedAvg
    from rescind.models.lightgcn import LightGCN

    model = LightGCN(dim=4, user_spread=0.04)
    method = FedAvg(model=model, clients_per_round=3, private_rate=0.01)
    return Federation.start(tiny, method, seed=7)


@pytest.fixture(autouse=True)
def keys_of_the_test(tmp_path_factory, monkeypatch):
    """Secrets of a test go to a folder of the test, never to the user's own."""
    monkeypatch.setenv("RESCIND_KEYS", str(tmp_path_factory.mktemp("keys")))
