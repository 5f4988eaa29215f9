"""Two processes hold shares of a sum: together the exact sum, alone nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from rescind.core.executor import InProcess, OneByOne
from rescind.core.federation import Federation
from rescind.core.guards import Clip
from rescind.core.records import Withdraw
from rescind.errors import ConfigError, DataError
from rescind.experiments.peeling_attack import peel
from rescind.methods.additive._pairs import square
from rescind.methods.additive._solving import half
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy import shared_sums
from rescind.privacy.shared_sums import SharedSums
from rescind.privacy.shares import PRIME, checksum, client_shares, expanded, opened
from rescind.privacy.two_servers import TwoServers
from rescind.receipts.claims import sum_digest
from rescind.storage.federations import load_federation, save_federation
from worlds import next_block, tiny_holdings

ITEMS = 14


def contributions() -> tuple[Federation, list[torch.Tensor]]:
    """Return what each device of a small federation sends. [half] int64 each"""
    fed = Federation.start(tiny_holdings(clients=9, items=ITEMS), Gram(), seed=2)
    method, ids = fed.method, fed.world.available.nonzero().squeeze(1)
    out = []
    for client in ids.tolist():
        one = torch.tensor([client])
        cohort = InProcess().cohort(method, fed.now.vault, one)
        private = fed.now.vault.read(one)
        total, _ = method.client_sum(fed.now.state.public, private, cohort, fed.clock)
        out.append(total.totals["gram/0000"].squeeze(1).long())
    return fed, out


def looks_random(numbers: np.ndarray) -> bool:
    """Test whether bytes are uniform: chi-squared over 256 values at level 10^-6."""
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-6, 255)


def test_two_processes_hold_the_sum_of_all_devices_and_withdraw_one():
    fed, sent = contributions()
    whole = fed.run(1).now.state.own["gram/0000"].long()
    with TwoServers(half(ITEMS), shown=True) as servers:
        for device, values in enumerate(sent):
            servers.add(values, device)
        assert torch.equal(servers.open(), whole), "bit for bit"
        servers.add(-sent[4], device=4)
        assert torch.equal(servers.open(), whole - sent[4])
        pids = {process.pid for process in servers._processes}
        assert len(pids) == 2
        shares = [servers.share(n) for n in range(2)]
        assert torch.equal(opened(*shares), whole - sent[4])
        # One share shows nothing of the sum: no zeros, no symmetry, no small numbers.
        for share in shares:
            assert not (share == 0).any()
            assert (share > 2**40).mean() > 0.9
    assert all(process.poll() is not None for process in servers._processes)


def test_a_share_alone_is_uniform_for_any_values():
    # The attack that works on a plain sum: find zeros, find the weight. 40,000 bytes of each kind.
    for values in (torch.zeros(5000), torch.full((5000,), 4096), -torch.arange(5000)):
        seed, masked = client_shares(values.long())
        for share in (expanded(seed, 5000), masked):
            assert looks_random(share)
            assert not (share == 0).any()
        assert torch.equal(opened(expanded(seed, 5000), masked), values.long())
        assert not looks_random(values.long().numpy()), "the test can detect it"


def test_a_share_fits_every_guess():
    # For every guess there is another share that would open to it.
    truth, guess = torch.tensor([4096, 0, 0]), torch.tensor([0, 0, 4096])
    seed, masked = client_shares(truth)
    other = guess.numpy().view(np.uint64) - masked
    assert torch.equal(opened(other, masked), guess)
    assert torch.equal(opened(expanded(seed, 3), masked), truth)


def test_shares_of_the_same_numbers_are_never_the_same():
    values = torch.arange(50)
    (first, one), (second, two) = client_shares(values), client_shares(values)
    assert first != second
    assert not (one == two).any()


def test_sums_wrap_and_keep_their_sign():
    for values in ([2**63 - 1, -(2**63), -1, 0], [1, -1, 2**62, -(2**62)]):
        seed, masked = client_shares(torch.tensor(values))
        assert opened(expanded(seed, 4), masked).tolist() == values


def test_invalid_contributions_are_refused():
    for wrong in (torch.zeros(3), torch.zeros(4, dtype=torch.int64)):
        with pytest.raises(ConfigError, match="3 whole numbers"):
            TwoServers(3).add(wrong, device=0)
    with pytest.raises(ConfigError, match="all zeros"):
        TwoServers(3).add(torch.zeros(3, dtype=torch.int64), device=0)
    with pytest.raises(ConfigError, match="size"):
        TwoServers(0)
    with pytest.raises(DataError, match="does not answer"):
        TwoServers(3).open()


def test_a_checksum_is_the_product_of_both_vectors():
    generator = torch.Generator().manual_seed(3)
    key = expanded(bytes(32), 400) % np.uint64(PRIME)
    key[:2] = 0, PRIME - 1
    for largest in (5, 2**40, 2**58):
        values = torch.randint(-largest, largest, (400,), generator=generator)
        by_hand = sum(int(k) * int(v) for k, v in zip(key, values, strict=True)) % PRIME
        assert checksum(key, values) == by_hand


# -- runs with two servers ------------------------------------------------------------------------


class Watched(TwoServers):
    """Two servers that record both totals just before they are opened."""

    seen: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []

    def __post_init__(self) -> None:
        self.shown = True
        super().__post_init__()

    def open(self) -> torch.Tensor:
        Watched.seen.append((self.share(0), self.share(1)))
        return super().open()


def test_a_run_over_two_servers_has_the_same_sum_and_neither_server_learns_a_row(monkeypatch):
    monkeypatch.setattr(shared_sums, "TwoServers", Watched)
    Watched.seen.clear()
    data = tiny_holdings(clients=9, items=ITEMS)
    plain = Federation.start(data, Gram(), seed=2).run(1)
    split = Federation.start(data, Gram(servers=2), 2, InProcess(chunk=1)).run(1)
    assert isinstance(split.executor, SharedSums)
    assert sum_digest(split.now.state.own) == sum_digest(plain.now.state.own), "bit for bit"
    assert torch.equal(split.now.state.public["weights"], plain.now.state.public["weights"])
    ((first, second),) = Watched.seen
    total = plain.now.state.own["gram/0000"].long()
    assert torch.equal(opened(first, second), total)
    # Peeling finds histories in the sum, and none in the total of one server.
    lower = square(total, ITEMS)
    assert peel(lower + lower.tril(-1).T).histories
    for share in (first, second):
        matrix = square(torch.from_numpy(share.view(np.int64).copy()), ITEMS)
        assert not peel(matrix + matrix.tril(-1).T).histories
        assert not (share == 0).any()
        assert (share > 2**40).mean() > 0.9


def test_a_run_over_two_servers_forgets_and_resumes_from_disk(tmp_path):
    data = tiny_holdings(clients=9, items=ITEMS)
    runs = [Federation.start(data, Gram(servers=n, min_count=2), seed=2).run(1) for n in (1, 2)]
    back = load_federation(save_federation(runs[1], tmp_path / "model"))
    assert isinstance(back.executor, SharedSums)
    digests = set()
    for fed in (*runs, back):
        after = fed.method.unlearn(fed, Withdraw(6))
        digests.add(sum_digest(after.apply(next_block(clients=11, items=16)).run(1).now.state.own))
    assert len(digests) == 1


def test_two_servers_are_refused_where_they_cannot_work():
    data = tiny_holdings(clients=9, items=ITEMS)
    with pytest.raises(ConfigError, match="OneByOne"):
        Federation.start(data, Gram(servers=2), executor=OneByOne())
    with pytest.raises(ConfigError, match="guards"):
        Federation.start(data, Gram(servers=2), executor=InProcess(guards=(Clip(1.0),)))
    with pytest.raises(ConfigError, match=r"Gram.servers must be"):
        Gram(servers=3)
    with pytest.raises(ConfigError, match="whole numbers"):
        Federation.start(data, FedAvg(model=MF(dim=2)), executor=SharedSums()).run(1)
    with pytest.raises(ConfigError, match="single"):
        LocalGram(servers=2)
