"""A method from elsewhere that returns another kind of value is told so, by class and function."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from rescind.core.federation import Federation
from rescind.core.method import Method
from rescind.core.records import Arrive, Records, Withdraw
from rescind.core.returns import ANSWERS
from rescind.core.state import Private, ServerState
from rescind.errors import BoundaryError
from rescind.methods import FedAvg, FedShare, Gram, Popularity
from rescind.models.bag import Bag
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from worlds import tiny_holdings

NUMPY = np.zeros(3)
INSIDE = {
    "server_step": (ServerState({"item": NUMPY}), r"ServerState\(\{'item': a numpy array\}\)"),
    "server_init": (ServerState(NUMPY), r"ServerState\(a numpy array\)"),
    "client_init": (Private([1]), r"Private\(list\)"),
}
WRONG = {
    "None": (None, "None"),
    "dict": ({"item": NUMPY}, "{'item': a numpy array}"),
    "numpy": (NUMPY, "a numpy array"),
}


def whole_life(method):
    """Let a federation call every function of its method."""
    fed = Federation.start(tiny_holdings(12, 20), method, seed=0).run(1)
    fed.evaluate()
    fed.query(fed.now.vault.holdings.records[:3])
    fed = fed.apply(Arrive(Records.none(), torch.zeros(0), 13, 21))
    return method.unlearn(fed, Withdraw(3))


def answering(name, given, base=FedAvg):
    """Return a class in which one function gives this."""
    body = {name: lambda self, *_, **named: given, "logs": name == "client_log"}
    return type("Sketch", (base,), body)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ANSWERS)
def test_another_kind_of_answer_is_told_by_class_and_function(name, wrong):
    given, told = WRONG[wrong]
    method = answering(name, given)(model=MF(dim=4))
    if (name, wrong) == ("server_mail", "None"):
        whole_life(method)
        return
    with pytest.raises(BoundaryError) as refused:
        whole_life(method)
    expected = f"expected {ANSWERS[name].words}. Change that function."
    assert str(refused.value).startswith(f"Sketch.{name} returned {told}; {expected}")


@pytest.mark.parametrize("name", INSIDE)
def test_tables_inside_a_state_must_be_tensors(name):
    given, told = INSIDE[name]
    with pytest.raises(BoundaryError, match=rf"Sketch\.{name} returned {told}; expected a "):
        whole_life(answering(name, given)(model=MF(dim=4)))


ROWS = torch.zeros(5, 4)
OTHER_SIZES = {
    "no table": (
        "server_init",
        lambda *_: ServerState({"items": ROWS}),
        "'items'; expected 'item'",
    ),
    "few rows": ("server_init", lambda *_: ServerState({"item": ROWS}), "'item' as [5, 4]"),
    "lost": (
        "server_step",
        lambda _, state, *__: state.next({}),
        "nothing; expected 'item', too",
    ),
    "cut": ("server_step", lambda _, state, *__: state.next({"item": ROWS}), "'item' as [5, 4]"),
    "wider": (
        "server_step",
        lambda _, state, *__: state.next({"item": torch.zeros(20, 5)}),
        "'item' as [20, 5]; expected [20, 4], as before",
    ),
    "no round": ("server_step", lambda _, state, *__: state, "a state after round 0; expected one"),
    "twice": ("server_sample", lambda *_: torch.tensor([3, 3]), "ids out of order, or one of"),
    "below 0": ("server_sample", lambda *_: torch.tensor([-1, 1]), "ids from -1 to 1; expected 0"),
    "too far": ("server_sample", lambda *_: torch.tensor([1, 99]), "ids from 1 to 99; expected 0"),
    "a mask": ("server_sample", lambda *_: torch.ones(12).bool(), "[12] of torch.bool; expected"),
    "few ids": ("client_init", lambda *_: Private({"user": ROWS}), "'user' as [5, 4]; expected"),
    "other name": (
        "client_init",
        lambda _, ids, __: Private({"me": torch.zeros(len(ids), 4)}),
        "'me'; expected 'user', too",
    ),
    "one weight": ("client_weight", lambda *_: torch.tensor(2.0), "[]; expected [11]"),
    "few weights": ("client_weight", lambda *_: torch.ones(10), "[10]; expected [11]"),
    "one answer": ("client_answer", lambda *_: torch.zeros(()), "[]; expected [3]"),
}
"""What compiled code would read past the end of, or what would count for nobody, or twice.

11 of the 12 clients train."""


@pytest.mark.parametrize("case", OTHER_SIZES)
def test_an_answer_of_another_size_is_told(case):
    name, function, told = OTHER_SIZES[case]
    method = type("Sketch", (FedAvg,), {name: function})(model=MF(dim=4))
    with pytest.raises(BoundaryError) as refused:
        whole_life(method)
    assert str(refused.value).startswith(f"Sketch.{name} returned {told}")


def test_a_method_of_its_own_tables_needs_none_of_a_model():
    def counted(self, state, sums, world, clock):
        return state.next({"count": torch.ones(world.sizes.items)})

    def scores(self, public, private, cohort):
        return public["count"].expand(len(cohort), -1).clone()

    def start(self, world, clock):
        return ServerState({"count": torch.zeros(world.sizes.items)})

    body = {"server_init": start, "server_step": counted, "client_scores": scores}
    method = type("Sketch", (Popularity,), body)()
    assert Federation.start(tiny_holdings(12, 20), method, seed=0).run(1).evaluate()


def doubled(function):
    """Return a function whose answer has its tables in float64."""

    def answer(*given):
        made = function(*given)
        key = "public" if isinstance(made, ServerState) else "values"
        return replace(made, **{key: {n: v.double() for n, v in getattr(made, key).items()}})

    return answer


def wide(self, world, clock):
    return ServerState({"item": torch.ones(world.sizes.items, 16)})


def wide_rows(self, ids, clock):
    return Private({"user": torch.ones(len(ids), 16)})


FLOAT64 = "'{}' as float64; expected float32, {}."
OTHER_KINDS = {
    "float64 at first": (
        "server_init", doubled(FedAvg.server_init), FLOAT64.format("item", "as {} makes it")
    ),
    "float64 later": (
        "server_step", doubled(FedAvg.server_step), FLOAT64.format("item", "as before")
    ),
    "float64 rows": (
        "client_init", doubled(FedAvg.client_init), FLOAT64.format("user", "as {} makes it")
    ),
    "width": ("server_init", wide, "'item' as [20, 16]; expected [20, 4], as {} makes it. Change"),
    "width of rows": ("client_init", wide_rows, "'user' as [12, 16]; expected [12, 4], as {} mak"),
}  # fmt: skip
"""By what differs from the values of the model: the function, and what its author is told."""


@pytest.mark.parametrize("model", [MF(dim=4), LightGCN(dim=4)])
@pytest.mark.parametrize("base", [FedAvg, FedShare])
@pytest.mark.parametrize("case", OTHER_KINDS)
def test_values_of_another_kind_or_width_than_the_models_are_told(case, base, model):
    name, function, told = OTHER_KINDS[case]
    method = type("Pretrained", (base,), {name: function})(model=model)
    with pytest.raises(BoundaryError) as refused:
        whole_life(method)
    told = told.format(type(model).__name__)
    assert str(refused.value).startswith(f"Pretrained.{name} returned {told}")


def test_tables_that_no_model_is_asked_about_may_be_of_any_kind():
    body = {"server_init": doubled(Popularity.server_init)}
    whole_life(type("Counted", (Popularity,), body)())
    both = {"server_init": wide, "client_init": wide_rows}  # a width of their own
    wider = type("Wide", (FedAvg,), both)(model=MF(dim=4))
    assert Federation.start(tiny_holdings(12, 20), wider, seed=0).run(1).evaluate()
    bag = {"server_init": doubled(FedAvg.server_init)}  # which has no private half
    whole_life(type("Doubled", (FedAvg,), bag)(model=Bag(dim=4)))


@pytest.mark.parametrize("name", ["server_init", "server_step"])
def test_a_method_that_trains_and_scores_by_itself_may_have_tables_in_float64(name):
    made = [
        type("Counted", (Popularity,), {name: function(getattr(Popularity, name))})()
        for function in (doubled, lambda same: same)
    ]
    feds = [Federation.start(tiny_holdings(12, 20), one, seed=0).run(2) for one in made]
    assert feds[0].evaluate() == feds[1].evaluate(), "the same numbers as in float32"
    whole_life(made[0])
    changed = {"server_step": doubled(FedAvg.server_step)}
    with pytest.raises(BoundaryError, match="expected float32, as before"):  # the control
        whole_life(type("Trained", (FedAvg,), changed)(model=Bag(dim=4)))


@pytest.mark.parametrize(("kernel", "loss"), [(LightGCN, "bpr"), (MF, "bce")])
def test_compiled_code_never_reads_two_widths(kernel, loss):
    both = {"server_init": wide, "client_init": FedAvg.client_init}
    body = {"public": lambda self, sizes, clock: {}}  # of its author, so nobody knows its width
    mine = type("Mine", (kernel,), body)
    with pytest.raises(BoundaryError, match=r"\[16\].*\[4\].*expected one kind"):
        whole_life(type("Wide", (FedAvg,), both)(model=mine(dim=4), loss=loss))


@pytest.mark.parametrize(("kernel", "loss"), [(LightGCN, "bpr"), (MF, "bce")])
def test_compiled_code_never_reads_two_kinds(kernel, loss):
    def rows(self, ids, clock):  # of its author, so nobody knows its kind
        return FedAvg.client_init(self, ids, clock)

    both = {"server_init": doubled(FedAvg.server_init), "client_init": rows}
    mixed = type("Mixed", (FedAvg,), both)(model=kernel(dim=4), loss=loss)
    with pytest.raises(BoundaryError, match=r"'item' has rows .torch.float64.*float32.*expected"):
        whole_life(mixed)
    both["client_init"] = doubled(rows)
    alike = type("Alike", (FedAvg,), both)(model=kernel(dim=4), loss=loss)
    whole_life(alike)  # the control


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda loss: loss.mean(), "returned []; expected [11], one number per client"),
        (lambda loss: loss[:, None], "returned [11, 1]; expected [11], one number per client"),
        (lambda loss: loss.detach(), "returned a loss that no trained value has a part in"),
    ],
)
def test_a_loss_that_mixes_clients_or_teaches_nothing_is_told(loss, told):
    def client_loss(self, *given):
        return loss(FedAvg.client_loss(self, *given))

    method = type("Sketch", (FedAvg,), {"client_loss": client_loss})(model=MF(dim=4))
    with pytest.raises(BoundaryError) as refused:
        whole_life(method)
    assert f"Sketch.client_loss {told}" in str(refused.value)


def test_a_function_of_a_class_beside_is_held_too_and_the_class_that_wrote_it_is_named():
    class Beside:
        def server_step(self, state, sums, world, clock):
            pass

    class First(Popularity):
        def client_scores(self, public, private, cohort):
            super().client_scores(public, private, cohort)

    class Second(First):
        def client_scores(self, public, private, cohort):
            return super().client_scores(public, private, cohort)

    class Mixed(Beside, Popularity):
        pass

    with pytest.raises(BoundaryError, match=r"Mixed\.server_step returned None"):
        whole_life(Mixed())
    with pytest.raises(BoundaryError, match=r"First\.client_scores returned None"):
        whole_life(Second())


def test_functions_of_rescind_are_not_wrapped_and_those_of_others_keep_their_signature():
    class Mine(Popularity):
        also: ClassVar[int] = 1

        def server_step(self, state, sums, world, clock):
            """Mine."""
            return super().server_step(state, sums, world, clock)

    for cls in (Method, FedAvg, Popularity, Gram):
        assert not any(hasattr(getattr(cls, name, None), "held_to") for name in ANSWERS)
    assert [n for n in ANSWERS if hasattr(getattr(Mine, n, None), "held_to")] == ["server_step"]
    assert Mine.server_step.__doc__ == "Mine."
