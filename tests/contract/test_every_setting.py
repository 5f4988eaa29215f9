"""No setting without effect: each field of each method changes the model, the forgetting or a cost.

Every field but `model`, whose settings are its own, is changed: alone, then together with one other
field (candidates matter only with the softmax). One refused value says nothing, but a class that
refuses every other value, with its reason, states what it needs of a learner it builds on.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import torch

from graphs import tiny_subgraphs
from rescind import methods
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.labels import Labels
from rescind.core.method import Method, Unlearner
from rescind.core.records import Erase, Event, Withdraw
from rescind.core.run_state import RoundResult
from rescind.core.settings import fields_of
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.errors import RescindError
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from worlds import next_block, tiny_holdings

CLASSES = methods.all_unlearners()
STREAM = "read by run_stream between blocks: tests/stories/test_stream.py"
OF_A_SERVER = ("server_optimiser", "server_rate", "server_decay")
ALONE = "nothing is averaged, so a server has nothing to do; committed lines have the settings"
EXCEPTIONS = {
    **{("LocalModels", field): ALONE for field in OF_A_SERVER},
    **{(name, "carry"): STREAM for name in ("FineTune", "F3CRec", "KD", "Reg", "ReLoop2", "SPP")},
    **{(name, "mask"): STREAM for name in ("FineTune", "F3CRec", "KD", "Reg", "ReLoop2", "SPP")},
    **{
        (name, "reset_private"): STREAM
        for name in ("FineTune", "F3CRec", "KD", "Reg", "ReLoop2", "SPP")
    },
}
"""(class, field): why this test cannot see its effect."""


NEEDS: dict[str, dict[str, Any]] = {
    "private_rate": {"model": MF(dim=4), "local_includes_shared": True},
    "candidates": {"loss": "softmax"},
    "keep_moments": {"optimiser": "adam", "model": MF(dim=4), "local_includes_shared": True},
    "release_size": {"release": "neighbours"},
    "noise": {"longest_history": 5},
    "delta": {"longest_history": 5, "noise": 1.0},
    "releases": {"longest_history": 5, "noise": 1.0},
    "resolve_every": {"solve_above": 1.0},
    "negatives": {"loss": "bpr"},
    "calibrate": {"interval": 1},
    "hints": {"hint_share": 1.0},
    "hint_weight": {"hint_share": 1.0},
    "batch_size": {"loss": "bpr"},
    "effort": {"epochs": 4, "interval": 1},
    "ridge_power": {"ridge_per_item": 1.0},
    "usual_rating": {"liking": 0.5},
    "years": {"ties": 1.0},
    "radius": {"forget_rate": 1.0},
    **{name: {"far_share": 0.5} for name in ("far_ridge", "far_sharpen", "far_recent")},
}
"""Settings that matter only together with others; the test also finds single partners by itself."""
SMALLER = {
    "clients_per_round": 5, "forget_rounds": 2, "repair_rounds": 1, "rounds": 2, "warm_up": 1,
    "mend_after": 0,
}  # fmt: skip
"""Fewer clients and rounds than the defaults, so that a story takes milliseconds."""


LABELS = Labels(
    titles=tuple(f"Film {i} ({1990 + i})" for i in range(18)),
    genres=tuple("War" if i % 3 else "Comedy|War" for i in range(18)),
)


def small(cls: type, **given: Any) -> Any:
    """Return a method with few clients and rounds."""
    return cls(**{k: v for k, v in SMALLER.items() if k in fields_of(cls)} | given)


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


def described(fed: Federation) -> list[str]:
    """Return digests of everything a federation holds, and what it publishes."""
    state, vault = fed.now.state, fed.now.vault
    held = [state.public, state.own, vault.private, *(s.values for s in state.memory)]
    sizes = [state.memory.nbytes, vault.nbytes, state.round]
    said = [str(sizes), str(fed.method.published(fed)), str(fed.evaluate(k=(2, 5)))]
    return [*(params.digest(part) for part in held), *said]


def watched(fed: Federation, seen: list[str]) -> Federation:
    """Let every round write down its costs."""

    def look(result: RoundResult) -> None:
        seen.append(str([(t.clients, t.up, t.down, t.who.tolist()) for t in result.sums.values()]))

    return replace(fed, watch=(look,))


def begin(method: Method) -> Federation:
    """Return a small federation in which some people lend, with ratings, genres and years."""
    nodes = method.model.task == "nodes"
    holdings = tiny_subgraphs(clients=9) if nodes else tiny_holdings(clients=9, items=14)
    if not nodes:
        stars = (holdings.records.item * 3 + holdings.records.client) % 10 + 1
        holdings = replace(holdings, records=replace(holdings.records, rating=stars.short()))
    fed = Federation.start(holdings, method, labels=LABELS, keep_every=None)
    if nodes:
        return fed
    groups = draw_groups(fed.world.sizes.clients, fed.clock, (1, 1, 1))
    return fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock, part=0.5))


def requests(fed: Federation) -> list[Event]:
    """Return a leaver and, where somebody lends, loans that are erased."""
    events: list[Event] = [Withdraw(3)]
    if len(fed.world.shared):
        lenders = torch.unique(fed.world.shared.client)[:2]
        events.append(Erase(fed.world.shared[torch.isin(fed.world.shared.client, lenders)]))
    return events


def story(method: Unlearner) -> Iterator[str]:
    """Yield digests of what a method learns, forgets, and learns from the next block."""
    seen: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(method, Method):
                fed = watched(begin(method), seen).run(2)
                yield digest(seen + described(fed))
            else:
                fed = watched(learnt(_for_fedshare(method)), seen)
            if isinstance(method, Method) and fed.world.task == "ranking":
                # Two blocks: SPP's proxies first differ at the end of the second.
                later = fed.apply(next_block(clients=10, items=16)).run(2)
                yield digest(seen + described(later))
                yield digest(seen + described(later.apply(next_block(clients=11, items=18)).run(2)))
            for event in requests(fed):
                yield digest(seen + described(method.unlearn(fed, event)))
    except RescindError as error:
        yield f"refused: {error}"


def digest(seen: list[str]) -> str:
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


class Told:
    """A story that is told as far as somebody listens, and remembered."""

    def __init__(self, method: Unlearner) -> None:
        self.parts: list[str] = []
        self.rest = story(method)

    def part(self, number: int) -> str | None:
        while len(self.parts) <= number:
            new = next(self.rest, None)
            if new is None:
                return None
            self.parts.append(new)
        return self.parts[number]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Told)
        number = 0
        while (mine := self.part(number)) == other.part(number):
            if mine is None:
                return True
            number += 1
        return False

    __hash__ = None  # type: ignore[assignment]


@lru_cache
def learnt(shares: bool) -> Federation:
    """Return what an unlearner without a learner's settings forgets from."""
    shared = FedShare(model=LightGCN(dim=4), clients_per_round=5, keep_sums=True, snapshots=2)
    return begin(shared if shares else FedAvg(clients_per_round=5)).run(6)


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
        before, refused = Told(base), []
        for value in others(getattr(base, field), hints[field]):
            try:
                changed = small(cls, **{**context, field: value})
            except RescindError:
                refused.append(value)
                continue
            if Told(changed) != before:
                return True
            refused.append(None)
        return None not in refused

    needs = {name: value for name, value in NEEDS.get(field, {}).items() if name in hints}
    if tried({}) or (needs and tried(needs)):
        return True
    partners = (
        {other: value}
        for other, hint in hints.items()
        if other != field
        for value in others(getattr(usual, other), hint)
        if isinstance(value, str | bool) or value is None
    )
    return any(map(tried, partners))


# One of each family every time, all of them with `make test-slow`.
OFTEN = ("Gram", "Popularity", "EASE", "FedAvg", "GraphFedAvg", "Retrain", "Ascent", "ServerReplay")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in CLASSES]
)
def test_every_setting_has_an_effect(name: str) -> None:
    cls = CLASSES[name]
    idle = [
        field
        for field in fields_of(cls)
        if field != "model" and (name, field) not in EXCEPTIONS and not counts(cls, field)
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
