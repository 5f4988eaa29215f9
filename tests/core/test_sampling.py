"""The compiled choice of a round's clients is the plain one."""

from __future__ import annotations

import pytest
import torch

from rescind.core import fast
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from worlds import tiny_holdings

pytestmark = pytest.mark.skipif(not fast.compiled(), reason="numba is not installed")


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 100])
def test_one_pass_finds_the_smallest_draws(share, count):
    from rescind.core.fast.sampling import smallest_draws

    for round_ in range(5):
        clock = Clock(3).at(round_)
        willing = clock.uniform("willing", torch.arange(20_000)) < share
        ids = willing.nonzero().squeeze(1)
        wanted = ids[torch.topk(clock.bits("sample", ids), count, largest=False).indices]
        found = smallest_draws(willing, clock.key("sample"), count)
        assert found is not None
        assert torch.equal(found.sort().values, wanted.sort().values)


def test_a_wrong_guess_is_told():
    from rescind.core.fast.sampling import smallest_draws

    assert smallest_draws(torch.zeros(100, dtype=torch.bool), 1, 4) is None


def test_a_method_draws_the_same_clients_either_way(monkeypatch):
    from rescind.core.fast import sampling

    method = FedAvg(model=MF(dim=1), clients_per_round=5)
    fed = Federation.start(tiny_holdings(clients=60), method)
    plain = [method.server_sample(fed.now.state, fed.world, fed.clock.at(r)) for r in range(20)]
    asked, made = [], sampling.smallest_draws
    monkeypatch.setattr(sampling, "MANY", 1)
    monkeypatch.setattr(sampling, "smallest_draws", lambda *a: asked.append(1) or made(*a))
    for round_, ids in enumerate(plain):
        assert torch.equal(
            method.server_sample(fed.now.state, fed.world, fed.clock.at(round_)), ids
        )
    assert len(asked) == len(plain)
