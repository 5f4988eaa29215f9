"""No setting without effect: each field of each method changes the model, the forgetting or a cost.

Every field is changed, alone and then together with one other field (a temperature of the softmax
matters only with the softmax). A value that is refused counts as read.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import torch

from graphs import tiny_subgraphs
from rescind import methods
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.method import Method, Unlearner
from rescind.core.records import Erase, Event, Withdraw
from rescind.core.run_state import RoundResult
from rescind.core.settings import fields_of
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.errors import RescindError
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from worlds import next_block, tiny_holdings

CLASSES = methods.all_unlearners()
STREAM = "read by run_stream between blocks: tests/stories/test_stream.py"
EXCEPTIONS = {
    **{(name, "carry"): STREAM for name in ("FineTune", "F3CRec", "KD", "Reg", "ReLoop2", "SPP")},
    **{(name, "mask"): STREAM for name in ("FineTune", "F3CRec", "KD", "Reg", "ReLoop2", "SPP")},
    **{
        (name, "reset_private"): STREAM
        for name in ("FineTune", "F3CRec", "KD", "Reg", "ReLoop2", "SPP")
    },
}
"""(class, field): why this test cannot see its effect."""


def small(cls: type, **given: Any) -> Any:
    """Return a method with few clients a round and, where it has one, a small model."""
    made = cls(**given)
    if isinstance(made, Method) and "clients_per_round" not in given:
        made = replace(made, clients_per_round=5)
    return made


def others(value: Any, hint: Any) -> Iterator[Any]:
    """Yield other values that a field may have."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is bool:
        yield not value
    elif origin is Literal:
        yield from (one for one in inside if one != value)
    elif origin is Union or type(hint).__name__ == "UnionType":
        if type(None) in inside and value is not None:
            yield None
        for one in inside:
            if one is not type(None):
                start = value if isinstance(value, one if isinstance(one, type) else object) else 2
                yield from others(start, one)
    elif hint is int:
        yield from (n for n in (1, 2, 3, value + 1, 40) if n != value)
    elif hint is float:
        yield from (x for x in (value * 0.5, value * 3 + 0.1, 0.0, 0.5, 1.0) if x != value)
    elif is_dataclass(value):
        for field in fields(value):
            kind = fields_of(type(value)).get(field.name)
            for one in others(getattr(value, field.name), kind):
                yield replace(value, **{field.name: one})


def described(fed: Federation) -> list[str]:
    """Return digests of everything a federation holds, and what it publishes."""
    state, vault = fed.now.state, fed.now.vault
    held = [state.public, state.own, vault.private, *(s.values for s in state.memory)]
    sizes = [state.memory.nbytes, vault.nbytes, state.round]
    return [*(params.digest(part) for part in held), str(sizes), str(fed.method.published(fed))]


def watched(fed: Federation, seen: list[str]) -> Federation:
    """Let every round write down its costs."""

    def look(result: RoundResult) -> None:
        seen.append(str([(t.clients, t.up, t.down, t.who.tolist()) for t in result.sums.values()]))

    return replace(fed, watch=(look,))


def begin(method: Method) -> Federation:
    """Return a small federation in which some people lend."""
    nodes = method.model.task == "nodes"
    holdings = tiny_subgraphs(clients=9) if nodes else tiny_holdings(clients=9, items=14)
    fed = Federation.start(holdings, method, keep_every=None)
    if nodes:
        return fed
    groups = draw_groups(fed.world.sizes.clients, fed.clock, (1, 1, 1))
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


def requests(fed: Federation) -> list[Event]:
    """Return a leaver and, where somebody lends, loans that are erased."""
    events: list[Event] = [Withdraw(3)]
    if len(fed.world.shared):
        who = fed.world.shared.client[0]
        events.append(Erase(fed.world.shared[fed.world.shared.client == who]))
    return events


def story(method: Unlearner) -> str:
    """Return a digest of what a method learns, forgets, and learns from the next block."""
    seen: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(method, Method):
                fed = watched(begin(method), seen).run(2)
                seen += described(fed)
            else:
                fed = watched(replace(learnt(method), watch=()), seen)
            for event in requests(fed):
                seen += described(method.unlearn(fed, event))
            if isinstance(method, Method) and fed.world.task == "ranking":
                seen += described(fed.apply(next_block(clients=10, items=16)).run(1))
    except RescindError as error:
        seen.append(f"refused: {error}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


@lru_cache
def learnt(method: Unlearner) -> Federation:
    """Return what an unlearner without a learner's settings forgets from."""
    shared = FedShare(model=LightGCN(dim=4), clients_per_round=5, keep_sums=True, snapshots=2)
    return begin(shared if _for_fedshare(method) else FedAvg(clients_per_round=5)).run(6)


def _for_fedshare(method: Unlearner) -> bool:
    return type(method).__name__ in ("FedShareUnlearn", "ServerReplay", "ServerInfluence")


def counts(cls: type, field: str) -> bool:
    """Return whether some change of a field changes anything, alone or with one other field."""
    hints = fields_of(cls)
    usual = small(cls)

    def tried(context: dict[str, Any]) -> bool:
        try:
            base = small(cls, **context)
        except RescindError:
            return False
        before = story(base)
        for value in others(getattr(base, field), hints[field]):
            try:
                if story(small(cls, **{**context, field: value})) != before:
                    return True
            except RescindError:
                return True  # refused, so it was read
        return False

    if tried({}):
        return True
    for other, hint in hints.items():
        if other == field:
            continue
        for value in others(getattr(usual, other), hint):
            if tried({other: value}):
                return True
    return False


@pytest.mark.parametrize("name", CLASSES)
def test_every_setting_has_an_effect(name: str) -> None:
    cls = CLASSES[name]
    idle = [
        field
        for field in fields_of(cls)
        if (name, field) not in EXCEPTIONS and not counts(cls, field)
    ]
    assert idle == [], f"{name} accepts settings that change nothing: {idle}"


def test_exceptions_name_settings_that_exist_and_reasons() -> None:
    for (name, field), reason in EXCEPTIONS.items():
        assert field in fields_of(CLASSES[name])
        assert len(reason) > 20


def test_a_setting_without_effect_would_be_found() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Idle(FedAvg):
        nothing: float = 1.0

    assert not counts(Idle, "nothing")
    assert counts(Idle, "rate")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("Gram", {"rate": 9}),
        ("Gram", {"optimiser": "adam"}),
        ("Gram", {"epochs": 5}),
        ("Popularity", {"rate": 9}),
        ("Retrain", {"rate": 99}),
        ("Retrain", {"loss": "bce"}),
        ("FedShareUnlearn", {"rate": 9}),
        ("FedShareUnlearn", {"layers": 1}),
        ("GraphFedAvg", {"negatives": 3}),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_by_name(name: str, given: dict[str, Any]) -> None:
    (field,) = given
    known = list(fields_of(CLASSES[name]))
    with pytest.raises(RescindError, match=f"{name} has no setting '{field}'") as error:
        CLASSES[name](**given)
    assert all(setting in str(error.value) for setting in known)
    assert torch.is_grad_enabled()
