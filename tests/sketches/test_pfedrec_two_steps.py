"""Sketch: PFedRec, two steps on every mini-batch.

A private score function w . v_i + b and a shared item table. Each batch moves w and b first; then
the loss is taken anew and the item table moves, 170 |I| times as fast (f3crec.md section 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind import Federation, Holdings, InProcess, OneByOne, Records
from rescind.clock import Clock
from rescind.method import Method
from rescind.model import Model, RankingModel
from rescind.models.lightgcn import uniform
from rescind.models.mf import gaussian
from rescind.optim import Step
from rescind.params import Params
from rescind.world import Sizes

# -- the sketch ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreFunction(RankingModel):
    """score = w_u . v_i + b_u, with w and b private."""

    task: ClassVar[str] = "ranking"
    tables: ClassVar[tuple[str, ...]] = ("item",)

    dim: int = 32

    def public(self, sizes: Sizes, clock: Clock) -> Params:
        """item: [I, d]"""
        return {"item": gaussian("item", torch.arange(sizes.items), self.dim, 1.0, clock)}

    def private(self, ids: Tensor, clock: Clock) -> Params:
        """weight: [C, d]    bias: [C]"""
        bound = self.dim**-0.5
        return {
            "weight": uniform("weight", ids, self.dim, bound, clock),
            "bias": uniform("bias", ids, 1, bound, clock).squeeze(1),
        }

    def score(self, rows: Params, own: Params, owner: Tensor) -> Tensor:
        """Logits of flat samples."""
        return (own["weight"][owner] * rows["item"]).sum(-1) + own["bias"][owner]

    def scores(self, public: Params, own: Params) -> Tensor:
        """[C, I]"""
        return own["weight"] @ public["item"].T + own["bias"].unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class PFedRec(Method):
    """Dual personalisation (Zhang et al., IJCAI 2023), as F3CRec runs it."""

    paper: ClassVar[str] = "Zhang et al., IJCAI 2023"

    model: Model = ScoreFunction()
    loss: Literal["bpr", "bce"] = "bce"
    negatives: int = 4
    batch_size: int | None = 512
    rate: float = 0.05
    item_scale: float = 170.0
    """How much faster items move than the score function, times |I|."""

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """First the score function, then, with the loss taken anew, the items."""
        items = self.rate * self.item_scale * len(public["item"])
        return Step({"weight": self.rate, "bias": self.rate}), Step({"item": items})


# -- its tests -----------------------------------------------------------------------------------

METHOD = PFedRec(model=ScoreFunction(dim=4), batch_size=6, negatives=2, epochs=2, rate=0.02)
SIZES = (2, 7, 1, 4)  # records of each client: 6, 21, 3 and 12 samples, so 1, 4, 1 and 2 batches


def holdings() -> Holdings:
    client = [c for c, many in enumerate(SIZES) for _ in range(many)]
    item = [(5 * c + 3 * j) % 16 for c, many in enumerate(SIZES) for j in range(many)]
    records = Records.of(client, item)
    return Holdings.of(records, torch.zeros(len(records), dtype=torch.int8), len(SIZES), 16)


def start(method: Method, executor: InProcess) -> Federation:
    """A federation in float64."""
    fed = Federation.start(holdings(), method, seed=3, executor=executor)
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    vault = replace(vault, private={n: v.double() for n, v in vault.private.items()})
    return replace(fed, now=replace(fed.now, state=state, vault=vault))


def trained_alone(fed: Federation, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """One client with its own copy of the whole table, by torch's SGD: the slow oracle."""
    m, public, vault = fed.method, fed.now.state.public, fed.now.vault
    cohort = InProcess().cohort(m, vault, torch.tensor([client]))
    clock = fed.clock.at(fed.now.state.round + 1)
    items = public["item"].clone().requires_grad_()
    weight = vault.private["weight"][client].clone().requires_grad_()
    bias = vault.private["bias"][client].clone().requires_grad_()
    inner = torch.optim.SGD([weight, bias], lr=m.rate)
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
    alone = [trained_alone(fed, client) for client in range(len(SIZES))]
    after = fed.run(1).now
    tight = {"atol": 1e-10, "rtol": 0.0}
    mean = torch.stack([items for items, _, _ in alone]).mean(0)
    assert_close(after.state.public["item"], mean, **tight)
    assert_close(after.vault.private["weight"], torch.stack([w for _, w, _ in alone]), **tight)
    assert_close(after.vault.private["bias"], torch.stack([b for _, _, b in alone]), **tight)
    assert float((mean - fed.now.state.public["item"]).abs().max()) > 0.1


def test_several_rounds_are_the_same_together_and_one_by_one() -> None:
    crowd = start(METHOD, InProcess()).run(3).now
    alone = start(METHOD, OneByOne()).run(3).now
    assert_close(crowd.state.public["item"], alone.state.public["item"], atol=1e-10, rtol=0.0)
    assert_close(crowd.vault.private, alone.vault.private, atol=1e-10, rtol=0.0)


def test_with_an_item_rate_of_zero_the_table_never_moves_but_the_scores_do() -> None:
    fed = start(replace(METHOD, item_scale=0.0), InProcess())
    after = fed.run(2).now
    assert torch.equal(after.state.public["item"], fed.now.state.public["item"])
    assert not torch.equal(after.vault.private["bias"], fed.now.vault.private["bias"])


def test_one_sample_by_hand() -> None:
    # d = 1, w = 1, b = 0, v = [2, 0], record on item 0 and its negative, item 1; mean of two.
    # Step 1, rate .5: sigma(2) = .880797, sigma(0) = .5; gradients of the logits (-.0596015, .25).
    #   dw = 2 (-.0596015) + 0 (.25) = -.119203, db = .1903985: w = 1.0596015, b = -.0951993.
    # Step 2 at rate .5 (.5 * scale .5 * |I| 2): logits 2.0240037, -.0951993,
    #   sigma .8832944, .4762181; gradients (-.0583528, .2381091) w = (-.0618307, .2523007).
    #   v = [2 + .0309154, 0 - .1261504].
    method = PFedRec(
        model=ScoreFunction(dim=1), negatives=1, rate=0.5, item_scale=0.5, batch_size=None
    )
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
