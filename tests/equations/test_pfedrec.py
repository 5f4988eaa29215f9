"""PFedRec: two steps on every mini-batch, against a plain torch loop and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind import Federation, InProcess, OneByOne
from rescind.core.holdings import Holdings
from rescind.core.records import Records
from rescind.methods.continual.finetune import FineTune
from rescind.models.pfedrec import PFedRec

SIZES = (2, 7, 1, 4)  # records of each client: 6, 21, 3 and 12 samples, so 1, 4, 1 and 2 batches
METHOD = FineTune(
    model=PFedRec(dim=4), batch_size=6, negatives=2, epochs=2, rate=0.02, private_rate=0.03
)
TIGHT = {"atol": 1e-10, "rtol": 0.0}


def start(method: FineTune, executor: InProcess) -> Federation:
    """Start a federation in float64."""
    client = [c for c, n in enumerate(SIZES) for _ in range(n)]
    item = [(5 * c + 3 * j) % 16 for c, n in enumerate(SIZES) for j in range(n)]
    split = torch.zeros(len(item), dtype=torch.int8)
    held = Holdings.of(Records.of(client, item), split, len(SIZES), 16)
    fed = Federation.start(held, method, seed=3, executor=executor)
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    vault = replace(vault, private={n: v.double() for n, v in vault.private.items()})
    return replace(fed, now=replace(fed.now, state=state, vault=vault))


def trained_alone(fed: Federation, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train one client with its own copy of the whole table by torch SGD: the slow reference."""
    m, public, vault = fed.method, fed.now.state.public, fed.now.vault
    cohort = InProcess().cohort(m, vault, torch.tensor([client]))
    clock = fed.clock.at(fed.now.state.round + 1)
    items = public["item"].clone().requires_grad_()
    weight = vault.private["weight"][client].clone().requires_grad_()
    bias = vault.private["bias"][client].clone().requires_grad_()
    inner = torch.optim.SGD([weight, bias], lr=m.private_rate)
    outer = torch.optim.SGD([items], lr=m.rate * 170 * len(items))
    for epoch in range(m.epochs):
        plan = m.client_plan(public, vault.read(cohort.ids), cohort, clock.step(epoch))
        chosen = plan.items["item"].split(plan.sizes)
        labels = plan.values["label"].double().split(plan.sizes)
        for item, label in zip(chosen, labels, strict=True):
            for optimiser in (inner, outer):
                for each in (inner, outer):
                    each.zero_grad()
                logit = items[item] @ weight + bias
                functional.binary_cross_entropy_with_logits(logit, label).backward()
                optimiser.step()
    return items.detach(), weight.detach(), bias.detach()


@pytest.mark.parametrize("executor", [InProcess(), InProcess(chunk=3), OneByOne()])
def test_two_steps_a_batch_equal_a_plain_loop_over_clients(executor: InProcess) -> None:
    fed = start(METHOD, executor)
    for _ in range(2):
        alone = [trained_alone(fed, client) for client in range(len(SIZES))]
        before, fed = fed.now.state.public["item"], fed.run(1)
        mean = torch.stack([items for items, _, _ in alone]).mean(0)
        assert_close(fed.now.state.public["item"], mean, **TIGHT)
        for place, name in ((1, "weight"), (2, "bias")):
            expected = torch.stack([one[place] for one in alone])
            assert_close(fed.now.vault.private[name], expected, **TIGHT)
        assert float((mean - before).abs().max()) > 0.1


def test_with_an_item_rate_of_zero_the_table_never_moves_but_the_scores_do() -> None:
    fed = start(replace(METHOD, model=PFedRec(dim=4, faster=0.0)), InProcess())
    after = fed.run(2).now
    assert torch.equal(after.state.public["item"], fed.now.state.public["item"])
    assert not torch.equal(after.vault.private["bias"], fed.now.vault.private["bias"])


def test_one_sample_by_hand() -> None:
    # d = 1, w = 1, b = 0, v = [2, 0], record on item 0 and its negative, item 1; mean of two.
    # Step 1, rate .5: sigma(2) = .880797, sigma(0) = .5; gradients of the logits (-.0596015, .25).
    #   dw = 2 (-.0596015) + 0 (.25) = -.119203, db = .1903985: w = 1.0596015, b = -.0951993.
    # Step 2 at rate .5 (.5 * faster .5 * |I| 2): logits 2.0240037, -.0951993,
    #   sigma .8832944, .4762181; gradients (-.0583528, .2381091) w = (-.0618307, .2523007).
    #   v = [2 + .0309154, 0 - .1261504].
    model = PFedRec(dim=1, faster=0.5)
    method = FineTune(model=model, negatives=1, rate=0.5, private_rate=0.5, batch_size=None)
    held = Holdings.of(Records.of([0], [0]), torch.zeros(1, dtype=torch.int8), 1, 2)
    fed = Federation.start(held, method)
    state = replace(fed.now.state, public={"item": torch.tensor([[2.0], [0.0]])})
    first = {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}
    vault = replace(fed.now.vault, private=first)
    after = replace(fed, now=replace(fed.now, state=state, vault=vault)).run(1).now
    near = {"atol": 2e-6, "rtol": 0.0}
    assert_close(after.vault.private["weight"], torch.tensor([[1.0596015]]), **near)
    assert_close(after.vault.private["bias"], torch.tensor([-0.0951993]), **near)
    assert_close(after.state.public["item"], torch.tensor([[2.0309154], [-0.1261504]]), **near)
