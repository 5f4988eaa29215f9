"""A method from elsewhere in which clients mix is told so: no device could compute it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from rescind.core import apart, jagged
from rescind.core import method as methods
from rescind.core.federation import Federation
from rescind.core.update import Rows, Update
from rescind.errors import BoundaryError
from rescind.methods import FedAvg, Gram, Popularity
from rescind.models.mf import MF
from worlds import tiny_holdings


def base_loss(self, *given):
    return FedAvg.client_loss(self, *given)


def away(work):
    return work.rows["item"].square().sum(1)


class Plain(FedAvg):
    """The control: what belongs to each is added to each."""

    def client_loss(self, work, *given):
        mine = jagged.segment_sum(away(work), work.shelf.owner, len(given[3]))
        return base_loss(self, work, *given) + mine


class MeanOfAll(FedAvg):
    def client_loss(self, work, *given):
        return base_loss(self, work, *given) + away(work).mean()


class ShareOfAll(FedAvg):
    def client_loss(self, *given):
        loss = base_loss(self, *given)
        return loss / loss.detach().sum() * len(loss)


class WeighedByRank(FedAvg):
    def client_weight(self, cohort):
        return cohort.train.count / cohort.train.count.max()


class SendsTheMean(Popularity):
    def client_train(self, public, private, cohort, clock):
        lot = cohort.train
        each = torch.ones(len(lot), 1)
        value = (each / lot.count.float().mean()).to(public["item"])
        return Update(
            len(cohort), {"item": Rows(lot.owner, lot.item, value, cohort.items)}
        ), private


class KeepsTheMean(FedAvg):
    def client_train(self, public, private, cohort, clock):
        update, private = super().client_train(public, private, cohort, clock)
        return update, private.with_(user=private["user"] - private["user"].mean(0))


@pytest.mark.parametrize(
    ("cls", "function"),
    [
        (MeanOfAll, "client_loss"),
        (ShareOfAll, "client_loss"),
        (WeighedByRank, "client_weight"),
        (SendsTheMean, "client_train"),
        (KeepsTheMean, "client_train"),
    ],
)
def test_clients_that_mix_in_training_are_refused_by_function(cls, function):
    given = {} if cls is SendsTheMean else {"model": MF(dim=4)}
    told = f"{cls.__name__}.{function} gives something else for .* clients mix"
    with pytest.raises(BoundaryError, match=told):
        Federation.start(tiny_holdings(12, 20), cls(**given), seed=0).run(8)


def test_a_mean_over_clients_in_scores_is_refused():
    class Centred(FedAvg):
        def client_scores(self, *given):
            scores = super().client_scores(*given)
            return scores - scores.mean(0)

    fed = Federation.start(tiny_holdings(12, 20), Centred(model=MF(dim=4)), seed=0).run(1)
    with pytest.raises(BoundaryError, match=r"Centred\.client_scores gives a client other scores"):
        fed.evaluate()


def test_scores_are_asked_without_what_is_held_back():
    class Peeks(FedAvg):
        def client_scores(self, public, private, cohort):
            scores = super().client_scores(public, private, cohort)
            if cohort.held is not None:
                scores[cohort.held.owner, cohort.held.item] += 1e6
            return scores

    honest, peeking = (
        Federation.start(tiny_holdings(12, 20), cls(model=MF(dim=4)), seed=0).run(2)
        for cls in (FedAvg, Peeks)
    )
    assert peeking.evaluate(k=5) == honest.evaluate(k=5)


@dataclass(frozen=True, kw_only=True)
class Small(FedAvg):
    """Steps so small that rounding is most of them."""

    rate: float = 1e-7


@pytest.mark.parametrize("make", [
    lambda: Plain(model=MF(dim=4)),
    lambda: Plain(model=MF(dim=4), optimiser="adam", rate=0.01, epochs=3, batch_size=2),
    lambda: Small(model=MF(dim=4)),
    type("Mine", (Gram,), {}),
])  # fmt: skip
def test_methods_in_which_nobody_mixes_run(make):
    """Those of rescind are held to more by tests/contract."""
    method = make()
    assert apart.tried(method, 1, 12)
    fed = Federation.start(tiny_holdings(12, 20), method, seed=0).run(8)
    assert fed.evaluate(k=5)


def test_only_methods_from_elsewhere_are_tried_and_in_ever_fewer_rounds(monkeypatch):
    method = Plain(model=MF(dim=4))
    assert [n for n in range(1, 20) if apart.tried(method, n, 2)] == [1, 2, 4, 8, 16]
    assert not apart.tried(method, 1, 1), "alone there is nobody to mix with"
    assert not apart.tried(FedAvg(model=MF(dim=4)), 1, 2)
    asked = []
    monkeypatch.setattr(methods, "check_scores", lambda *given: asked.append(given))
    Federation.start(tiny_holdings(12, 20), FedAvg(model=MF(dim=4)), seed=0).evaluate()
    assert asked == []
