"""Two learners as one method: each alone, and plain loops, are the oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Share, Unshare, Withdraw
from rescind.experiments.recipe import read
from rescind.forgetting.forget import forget
from rescind.methods.additive.blend import Blend
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.softmax import Softmax
from rescind.models.bag import Bag
from rescind.receipts.claims import AFTER, check, sum_digest
from worlds import lendable, tiny_holdings

BLEND = Blend(model=Bag(dim=4), clients_per_round=3, server_rate=0.05, ridge=5.0, share=0.7)


def lending(method: Blend | Gram | Softmax = BLEND, rounds: int = 4) -> Federation:
    fed = Federation.start(tiny_holdings(clients=9, items=14), method, seed=2)
    own = lendable(fed.now.vault.holdings, 0, 2, 3)
    return fed.apply(Share(own[torch.arange(len(own)) % 3 > 0])).run(rounds)


def requests(fed: Federation) -> list[Event]:
    mine = fed.world.shared[fed.world.shared.client == 2]
    return [Unshare(mine[:1]), Erase(mine), Withdraw(2)]


def by_hand(fed: Federation, client: int) -> Tensor:
    """z(x B) + .7 z(softmax), one item after the other."""
    public, method = fed.now.state.public, fed.method
    items = fed.now.vault.holdings.of_clients("own", torch.tensor([client])).item.tolist()
    u = sum(public["item"][i].double() for i in items)
    linear, soft = [], []
    for j in range(fed.world.sizes.items):
        v = public["item"][j].double()
        linear.append(sum(float(public["weights"][i, j]) for i in items))
        cosine = float(u @ v / (u.norm() * v.norm()))
        soft.append(cosine / method.model.temperature + float(public["bias"][j, 0]))
    both = []
    for values in (linear, soft):
        mean = sum(values) / len(values)
        deviation = (sum((x - mean) ** 2 for x in values) / len(values)) ** 0.5
        both.append([(x - mean) / deviation for x in values])
    return torch.tensor([a + 0.7 * b for a, b in zip(*both, strict=True)])


def test_a_score_is_the_sum_of_two_standardised_scores():
    fed = lending()
    for client in (0, 2, 5):
        ids = torch.tensor([client])
        cohort = fed.executor.cohort(fed.method, fed.now.vault, ids)
        found = fed.method.client_scores(fed.now.state.public, fed.now.vault.read(ids), cohort)
        assert_close(found[0], by_hand(fed, client), atol=1e-4, rtol=1e-4)


def test_without_items_of_ones_own_nothing_is_divided_by_zero():
    fed = lending()
    silent = torch.tensor([8])  # nothing to train on, so x B is 0 for every item
    cohort = fed.executor.cohort(fed.method, fed.now.vault, silent)
    found = fed.method.client_scores(fed.now.state.public, fed.now.vault.read(silent), cohort)
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("candidates", [None, 3])
def test_each_learner_is_what_it_is_alone(cross, candidates):
    shared = {"clients_per_round": None, "candidates": candidates, "server_rate": 0.05}
    both = lending(replace(BLEND, cross=cross, **shared)).now.state
    soft = lending(Softmax(model=BLEND.model, local_includes_shared=cross, **shared)).now.state
    gram = lending(Gram(ridge=5.0, cross=cross)).now.state
    assert sum_digest(both.own) == sum_digest(gram.own)
    assert_close(both.public["weights"], gram.public["weights"])
    for name in ("item", "bias"):
        assert_close(both.public[name], soft.public[name], atol=1e-5, rtol=1e-4)


def test_everybody_is_counted_in_the_first_round_and_a_few_learn_in_each():
    fed = lending(rounds=0)
    first = fed.method.server_sample(fed.now.state, fed.world, fed.clock.at(1))
    assert torch.equal(first, fed.world.announced.keeps.nonzero().squeeze(1))
    fed = fed.run(1)
    second = fed.method.server_sample(fed.now.state, fed.world, fed.clock.at(2))
    assert len(second) == 3


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["unshare", "erase", "withdraw"])
def test_forgetting_gives_what_a_training_without_the_records_gives(kind):
    fed = lending()
    event = requests(fed)[kind]
    after = fed.method.unlearn(fed, event)
    again = fed.retrained(event, from_start=True)
    assert sum_digest(after.now.state.own) == sum_digest(again.now.state.own)
    assert sum_digest(after.now.state.own) != sum_digest(fed.now.state.own)
    for name in ("item", "bias"):
        assert torch.equal(after.now.state.public[name], again.now.state.public[name])
        assert not torch.equal(after.now.state.public[name], fed.now.state.public[name])
    assert_close(after.now.state.public["weights"], again.now.state.public["weights"])
    twice = after.method.unlearn(after, Erase(after.world.shared[-1:]))
    assert twice.now.state.round == fed.now.state.round


def test_the_receipt_says_that_exactness_covers_the_sum_alone():
    fed = lending()
    after, evidence = forget(fed, requests(fed)[1], audits="none")
    receipt = evidence.exact
    assert receipt.claims[AFTER] == sum_digest(after.now.state.own)
    assert check(receipt, after, "the run").holds
    assert any("covers the item weights B alone" in line for line in receipt.not_covered)
    plain = lending(Gram())
    _, other = forget(plain, requests(plain)[1], audits="none")
    assert not any("softmax" in line for line in other.receipt.not_covered)


def test_a_device_that_is_away_owes_its_part_and_the_tables_are_made_again_all_the_same():
    fed = lending()
    event = requests(fed)[0]
    after, again = fed.method.unlearn(fed, fed.request(event, away=[2])), fed.retrained(event)
    assert bool(after.now.state.own["owes"][2])
    assert torch.equal(after.now.state.public["item"], again.now.state.public["item"])
    assert sum_digest(after.now.state.own) != sum_digest(again.now.state.own)


def test_the_tuned_form_is_the_one_that_validation_chose():
    root = Path(__file__).resolve().parents[2] / "recipes" / "additive"
    recipe, seen = read(root / "blend.toml"), dict[str, list[float]]()
    for line in (root / "blend.jsonl").read_text("utf-8").splitlines():
        made = json.loads(line)
        value = made["valid"]["HR@20"] + made["valid"]["NDCG@20"]
        seen.setdefault(made["cell"], []).append(value)
    mean = {name: sum(values) / len(values) for name, values in seen.items()}
    best = max(mean, key=lambda name: mean[name])
    (chosen,) = {cell.name: cell.method for cell in recipe.cells if cell.name == best}.values()
    assert Blend.tuned(cross=chosen.cross) == chosen
