"""A function of a method that changes its arguments in place is refused, in whichever round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from graphs import tiny_subgraphs
from rescind import methods
from rescind.core.federation import Federation
from rescind.core.records import Withdraw
from rescind.core.returns import ANSWERS, Unchanged
from rescind.errors import BoundaryError
from rescind.methods import FedAvg
from rescind.models.mf import MF
from worlds import tiny_holdings


def velocity(state):
    return state.own.get("velocity", torch.zeros_like(state.public["item"]))


def slip(self, state, sums, world, clock):
    """Momentum, with the velocity of the last round changed where it lies: not in round 1."""
    now = FedAvg.server_step(self, state, sums, world, clock)
    if "velocity" not in state.own:
        return replace(now, own={**now.own, "velocity": torch.zeros_like(now.public["item"])})
    moved = state.own["velocity"].mul_(0.9).add_(now.public["item"] - state.public["item"])
    return replace(now, own={**now.own, "velocity": moved})


def public(self, state, sums, world, clock):
    if state.round:
        state.public["item"].mul_(0.98)
    return FedAvg.server_step(self, state, sums, world, clock)


def by_numpy(self, state, sums, world, clock):
    now = FedAvg.server_step(self, state, sums, world, clock)
    if state.round:
        state.public["item"].numpy()[0] += 1.0
    return now


def private(self, public, private, cohort, clock):
    made = FedAvg.client_train(self, public, private, cohort, clock)
    if clock.round > 1:
        private.values["user"][0] = 0.0
    return made


def sent(self, state, sums, world, clock):
    now = FedAvg.server_step(self, state, sums, world, clock)
    if state.round:
        sums["train"].totals["item"].zero_()
    return now


def pure(self, state, sums, world, clock):
    """The control: the same momentum, with new tensors."""
    now = FedAvg.server_step(self, state, sums, world, clock)
    moved = velocity(state) * 0.9 + (now.public["item"] - state.public["item"])
    return replace(now, own={**now.own, "velocity": moved})


SLIPS = {
    "own": ("server_step", slip, "state.own['velocity']"),
    "public": ("server_step", public, "state.public['item']"),
    "by numpy": ("server_step", by_numpy, "state.public['item']"),
    "private": ("client_train", private, "private.values['user']"),
    "sums": ("server_step", sent, "sums['train'].totals['item']"),
}


def sketch(name, function):
    return type("Sketch", (FedAvg,), {name: function})(model=MF(dim=4))


@pytest.mark.parametrize("case", SLIPS)
def test_a_change_in_place_after_the_first_round_is_told(case):
    name, function, place = SLIPS[case]
    fed = Federation.start(tiny_holdings(12, 20), sketch(name, function), seed=0).run(1)
    with pytest.raises(BoundaryError) as refused:
        fed.run(2)
    assert str(refused.value).startswith(f"Sketch.{name} changed its argument {place} in place")
    assert "old.clone()" in str(refused.value)


def test_new_tensors_run_and_a_federation_stays_a_value():
    fed = Federation.start(tiny_holdings(12, 20), sketch("server_step", pure), seed=0).run(2)
    one, two = fed.run(3), fed.run(3)
    assert torch.equal(one.now.state.public["item"], two.now.state.public["item"])
    assert bool(one.now.state.own["velocity"].any()), "control: there is something to change"


def test_a_value_that_is_not_a_number_is_no_change():
    kept = {"x": torch.tensor([float("nan"), 1.0])}
    before = Unchanged({"state": kept}, copy=True)
    before.check("f")
    kept["x"].numpy()[1] = 2.0
    with pytest.raises(BoundaryError, match=r"state\['x'\]"):
        before.check("f")


def test_a_change_of_a_tensor_of_inference_mode_is_told_by_its_values():
    with torch.inference_mode():
        kept = {"x": torch.zeros(2)}
        before = Unchanged({"state": kept}, copy=False)
        before.check("f")
        kept["x"] += 1.0
    with pytest.raises(BoundaryError, match=r"state\['x'\]"):
        before.check("f")


OFTEN = {"FedAvg", "FedShare", "F3CRec", "Gram", "SeqGram", "GraphFedAvg"}
"""What other authors build on most; the rest takes minutes."""
WORLDS = {
    "ranking": lambda: tiny_holdings(clients=9, items=14),
    "nodes": lambda: tiny_subgraphs(clients=9),
}


@pytest.mark.parametrize(
    ("cls", "task"),
    [
        pytest.param(
            cls, task, id=f"{name}-{task}", marks=() if name in OFTEN else pytest.mark.slow
        )
        for name, cls in methods.all_methods().items()
        for task in cls.tasks
    ],
)
def test_no_method_of_rescind_changes_its_arguments(cls, task):
    """So that other authors may build on each of them."""

    def passed_on(name):
        def asked(self, *given, **named):
            return getattr(cls, name)(self, *given, **named)

        return asked

    body = {name: passed_on(name) for name in ANSWERS if hasattr(cls, name)}
    method = replace(type("Sketch", (cls,), body)(), clients_per_round=5)
    fed = Federation.start(WORLDS[task](), method, seed=0).run(2)
    fed.evaluate()
    method.unlearn(fed, Withdraw(int(fed.world.available.nonzero()[0])))
