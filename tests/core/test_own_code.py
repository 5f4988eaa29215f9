"""Methods from elsewhere: draws that nobody can repeat, and parts that do not fit, are refused."""

from __future__ import annotations

import random  # noqa: TID251 - what is refused here
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.guards import Clip
from rescind.core.own_code import alike, outside
from rescind.core.state import Private
from rescind.core.update import Rows, Sum, Update
from rescind.errors import BoundaryError, ConfigError
from rescind.methods import FedAvg, Gram, Popularity
from rescind.models.mf import MF
from worlds import tiny_holdings

HIDDEN = np.random.default_rng(5)  # noqa: TID251 - what is refused here
DRAWS = {
    "torch": torch.rand,
    "numpy": lambda n: torch.from_numpy(np.random.rand(n)),  # noqa: TID251
    "random": lambda n: torch.tensor([random.random() for _ in range(n)]),
    "hidden": lambda n: torch.from_numpy(HIDDEN.random(n)),
}


@dataclass(frozen=True, kw_only=True)
class Drawing(FedAvg):
    """FedAvg in which one function multiplies by numbers of a generator."""

    where: str = "client_loss"
    source: str = "torch"
    after: int = 0

    def drawn(self, where, count, clock, ids=None):
        """Return numbers; ids: of clients, whose draws are their own at any place of a cohort"""
        if where != self.where or (clock is not None and clock.round <= self.after):
            return torch.ones(count)
        if self.source == "clock":
            return clock.uniform("mine", torch.arange(count) if ids is None else ids).float()
        return DRAWS[self.source](count).float()

    def server_init(self, world, clock):
        state = super().server_init(world, clock)
        item = state.public["item"]
        return replace(
            state, public={"item": item * self.drawn("server_init", len(item), clock)[:, None]}
        )

    def server_sample(self, state, world, clock):
        ids = super().server_sample(state, world, clock)
        drawn = self.drawn("server_sample", len(ids), clock)
        return ids[drawn.argsort()[: 1 + len(ids) // 2]].sort().values

    def server_step(self, state, sums, world, clock):
        after = super().server_step(state, sums, world, clock)
        item = after.public["item"]
        return replace(
            after, public={"item": item * self.drawn("server_step", len(item), clock)[:, None]}
        )

    def client_init(self, ids, clock):
        user = super().client_init(ids, clock)["user"]
        return Private({"user": user * self.drawn("client_init", len(ids), clock, ids)[:, None]})

    def client_weight(self, cohort):
        return self.drawn("client_weight", len(cohort), None)

    def client_loss(self, work, batch, public, private, cohort, clock):
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        return loss * self.drawn("client_loss", len(cohort), clock, cohort.ids)

    def client_scores(self, public, private, cohort):
        scores = super().client_scores(public, private, cohort)
        return scores * self.drawn("client_scores", len(cohort), None)[:, None]


def learn(method, executor=None, rounds=2, clients=12):
    fed = Federation.start(tiny_holdings(clients, 20), method, seed=0, executor=executor)
    return fed.run(rounds)


def drawing(where, source="torch", after=0):
    return Drawing(model=MF(dim=4), where=where, source=source, after=after)


EVERYWHERE = ["server_init", "server_sample", "server_step", "client_init", "client_loss"]


@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize("source", ["torch", "hidden"])
def test_a_function_that_draws_from_another_generator_is_named(where, source):
    after = -1 if where.endswith("init") else 0
    with pytest.raises(ConfigError) as refused:
        learn(drawing(where, source, after))
    named = "client_train" if where == "client_loss" else where
    assert f"two calls of Drawing.{named} with the same arguments differ" in str(refused.value)
    assert "clock.uniform" in str(refused.value)
    assert learn(drawing(where, "clock", after)).now.state.round == 2  # control: the clock decides


@pytest.mark.parametrize("source", ["torch", "numpy", "random"])
@pytest.mark.parametrize("where", ["client_loss", "client_weight", "server_step"])
def test_a_draw_after_the_first_round_is_found_where_the_generator_moves(where, source):
    with pytest.raises(ConfigError, match="same arguments differ"):
        learn(drawing(where, source, after=1))


def test_updates_behind_a_guard_are_asked_twice_too():
    with pytest.raises(ConfigError, match=r"Drawing\.client_train"):
        learn(drawing("client_loss", "hidden"), InProcess(guards=(Clip(1.0),)))


def test_scores_that_are_drawn_are_refused_as_they_are_measured():
    fed = learn(drawing("client_scores"))
    with pytest.raises(ConfigError, match=r"Drawing\.client_scores"):
        fed.evaluate()


def test_a_draw_that_decides_nothing_is_allowed():
    @dataclass(frozen=True, kw_only=True)
    class Layered(FedAvg):
        def client_loss(self, *given):
            layer = torch.nn.Linear(2, 2)  # draws its first values
            torch.nn.init.zeros_(layer.weight)
            return super().client_loss(*given) + layer.weight.sum().detach()

    assert learn(Layered(model=MF(dim=4))).now.state.round == 2


def test_functions_of_rescind_are_asked_once_and_others_again_in_the_first_rounds(monkeypatch):
    asked = []

    def counted(cls):
        plain = cls.client_sum
        monkeypatch.setattr(
            cls, "client_sum", lambda m, *given: asked.append(given[3].round) or plain(m, *given)
        )

    class Mine(Popularity):
        def client_sum(self, *given):
            return super().client_sum(*given)

    counted(Popularity)
    learn(Popularity(), InProcess(chunk=5))
    assert asked == [1, 1, 1, 2, 2, 2]
    asked.clear()
    learn(Mine(), InProcess(chunk=5))
    twice, whole_and_halves = 1, 3
    assert asked == [1] * (3 + twice + whole_and_halves) + [2] * (3 + whole_and_halves)
    assert (outside(Mine()), outside(Popularity())) == (True, False)


def test_privacy_noise_is_no_draw_to_refuse():
    class Noisy(Gram):
        pass

    assert learn(Noisy(noise=1.0, longest_history=20), rounds=1).now.state.round == 1


def test_answers_are_compared_with_all_their_parts():
    def answer(value=1.0, size=3):
        rows = Rows(torch.tensor([0]), torch.tensor([1]), torch.tensor([[value]]), size)
        return Update(1, {"item": rows}), Private({})

    nan = float("nan")
    assert alike(answer(), answer())
    assert alike(answer(nan), answer(nan))
    assert not alike(answer(1.0), answer(1.0 + 1e-7))
    assert not alike(answer(size=3), answer(size=4))
    assert not alike(torch.ones(2), torch.ones(1))
    assert not alike({"a": torch.ones(1)}, {"b": torch.ones(1)})


# -- shapes ---------------------------------------------------------------------------------------


def returned(change):
    """Learn with a method whose `client_train` returns something else. 11 of 12 have records."""

    @dataclass(frozen=True, kw_only=True)
    class Sketch(FedAvg):
        def client_train(self, public, private, cohort, clock):
            update, private = super().client_train(public, private, cohort, clock)
            return change(update, private)

    return learn(Sketch(model=MF(dim=4)))


def with_rows(**changes):
    def change(update, private):
        rows = update.entries["item"]
        new = {name: function(rows) for name, function in changes.items()}
        return Update(update.clients, {"item": replace(rows, **new)}), private

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda u, p: u, r"Sketch\.client_train returned Update; expected \(Update, Private\)"),
        (lambda u, p: (p, u), r"returned \(Private, Update\); expected \(Update, Private\)"),
        (with_rows(value=lambda r: r.value[:12]),
         r"'item' has owner, index and value of .*\[12, 4\].; expected one length"),
        (with_rows(index=lambda r: r.index + 1),
         r"'item' has an index 20; expected 0 to 19, as there are 20 rows of the table"),
        (with_rows(index=lambda r: r.index - 1), r"has an index -1; expected 0 to 19"),
        (with_rows(owner=lambda r: r.owner + 1),
         r"has an owner 11; expected 0 to 10, as there are 11 clients"),
        (lambda u, p: (Update(5, u.entries), p),
         r"an update of 5 clients; expected 11\."),
        (lambda u, p: (Update(11, {"item": torch.zeros(7, 20, 4)}), p),
         r"'item' is \[7, 20, 4\]; expected \[11, \.\.\.\]"),
    ],
)  # fmt: skip
def test_parts_of_an_update_that_do_not_fit_are_told_by_name(change, words):
    with pytest.raises(BoundaryError, match=words):
        returned(change)


def test_a_pair_is_asked_of_updates_behind_a_guard_and_of_sums():
    class Bare(Popularity):
        def client_train(self, *given):
            return super().client_train(*given)[0]

    class BareSum(Popularity):
        def client_sum(self, *given):
            return Sum({}, 0.0, 0)

    with pytest.raises(BoundaryError, match=r"Bare\.client_train returned Update"):
        learn(Bare(), InProcess(fused=False))
    with pytest.raises(BoundaryError, match=r"BareSum\.client_sum returned Sum; .*\(Sum, Private"):
        learn(BareSum())


# -- what a method may use ------------------------------------------------------------------------


class Inferring(Popularity):
    """What it returns are tensors of which torch counts no changes."""

    def server_init(self, *given):
        with torch.inference_mode():
            return super().server_init(*given)

    def server_step(self, *given):
        with torch.inference_mode():
            return super().server_step(*given)


def test_a_method_may_use_inference_mode():
    fed, same = learn(Inferring(), rounds=3), learn(Popularity(), rounds=3)
    assert torch.equal(fed.now.state.public["item"], same.now.state.public["item"])


@pytest.mark.parametrize("seed", ["0", -1])
def test_a_seed_that_is_no_whole_number_is_told(seed):
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got"):
        Federation.start(tiny_holdings(12, 20), Popularity(), seed=seed)
