"""Measure how much single updates leak, for each method and defence.

N users take part in every round of a small run, and the server observes each of them. The same
updates are attacked under every defence, after the first round and averaged over more rounds.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rescind import methods, models
from rescind.audits import update_leak as leak
from rescind.audits.defences import Defence, Key, Stream, add, view_through, with_dummies
from rescind.audits.update_leak import View
from rescind.core.clock import Clock
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.gradient import GradientMethod, RankingMethod
from rescind.core.guards import Clip, Gaussian
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.settings import find
from rescind.core.update import Rows
from rescind.data import Dataset
from rescind.data.simulated_lending import NOTHING, draw_groups, draw_share
from rescind.errors import ConfigError, DataError
from rescind.experiments.value import DRAWS, bootstrap
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy.gaussian import epsilon_of
from rescind.storage.kinds import METHODS, MODELS
from rescind.storage.provenance import versions

LEAST = 5  # smallest number of training records of an observed user
BAR = 1.5  # reliability.md S6: allowed multiple of chance
CELLS = 2**26  # largest array users x items x d, 256 MB; about ten are in memory
ATTACKER = 0x0B5E_57E4  # added to the seed: the attacker's draws are not those of the run

NO_ROWS = "sends no rows trained by gradients, so this attack does not apply"

Progress = Callable[[str, int, int], Any]


# -- attacked methods -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A method on a backbone."""

    name: str
    method: Method


def cases(
    dataset: Dataset, method: str | None = None, model: str | None = None
) -> tuple[Case, ...]:
    """Return all methods that send rows trained by gradients, and FedAvg on every backbone.

    Found by running one device, so that new methods and models are included automatically.
    """
    chosen = method is not None or model is not None
    made = [_method(method or "FedAvg", model)] if chosen else _all_methods()
    found = [Case(_name(one), one) for one in made]
    kept = tuple(case for case in found if _sends_rows(case.method, dataset))
    if not kept:
        names = ", ".join(c.name for c in cases(dataset))
        raise ConfigError(f"{found[0].name} {NO_ROWS}. Choose one of {names}.")
    return kept


def case_of(method: Method, dataset: Dataset) -> Case:
    """Return the case of a method with its settings, if it sends rows trained by gradients."""
    if method.model.task != "ranking" or not _sends_rows(method, dataset):
        raise ConfigError(f"{_name(method)} {NO_ROWS}.")
    return Case(_name(method), method)


def _method(name: str, model: str | None) -> Method:
    chosen = {} if model is None else {"model": find(*MODELS, model)()}
    made: Method = find(*METHODS, name)(**chosen)
    if made.model.task != "ranking":
        raise ConfigError(
            f"{type(made.model).__name__} is for {made.model.task}; this attack needs a ranking."
        )
    return made


def _all_methods() -> Iterator[Method]:
    for method in methods.all_methods().values():
        made: Method = method()  # type: ignore[call-arg]
        if made.model.task == "ranking":
            yield made
    for model in models.all_models().values():
        if model.task == "ranking" and model is not type(FedAvg().model):
            yield FedAvg(model=model())
    yield FedAvg(model=MF(), loss="bce")


def _name(method: Method) -> str:
    name = f"{type(method).__name__}, {type(method.model).__name__}"
    usual = next((f.default for f in fields(method) if f.name == "loss"), _loss(method))
    return name if _loss(method) == usual else f"{name}, {_loss(method)}"


def _loss(method: Method) -> str:
    return method.loss if isinstance(method, RankingMethod) else "bpr"


def _negatives(method: Method) -> int:
    return method.negatives if isinstance(method, RankingMethod) else 1


def _sends_rows(method: Method, dataset: Dataset) -> bool:
    """Return whether devices send rows of floats with more than one column."""
    plain = type(method).client_train is GradientMethod.client_train
    if plain and not hasattr(method.model, "infer"):
        return False  # a closed form
    fed, ids = opened(dataset, method, 2, 0)
    clock, state, vault = fed.clock.at(1), fed.now.state, fed.now.vault
    cohort = InProcess().cohort(method, vault, ids)
    update, _ = method.client_train(state.public, vault.read(ids), cohort, clock)
    entries = [update.entries.get(name) for name in method.model.tables]
    rows = [e.value for e in entries if isinstance(e, Rows)]
    return any(value.is_floating_point() and value.shape[-1] > 1 for value in rows)


def opened(dataset: Dataset, method: Method, users: int, seed: int) -> tuple[Federation, Tensor]:
    """Start a federation with lenders, and draw observed users who lend nothing. [users]"""
    fed = Federation.start(dataset, method, seed)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(draw_share(fed.now.vault.holdings, groups, fed.clock))
    count = fed.now.vault.holdings.lot("own")[1].cpu()
    ids = ((groups == NOTHING) & (count >= LEAST)).nonzero().squeeze(1)
    if len(ids) < users:
        raise DataError(
            f"cannot observe {users} users: {len(ids)} lend nothing and train on {LEAST} records."
        )
    order = torch.argsort(fed.clock.at(0).bits("watched", ids), stable=True)
    return fed, ids[order[:users]].sort().values


# -- views of the server --------------------------------------------------------------------------


def views(
    fed: Federation, ids: Tensor, wanted: Sequence[Defence], rounds: Sequence[int]
) -> Iterator[tuple[int, Mapping[str, Tensor], dict[str, View]]]:
    """Train with these users alone; yield (round, broadcast parameters, view by defence).

    Views are empty in rounds that were not asked for. The run itself has no defence, so that all
    defences see the same updates.
    """
    method, state, vault, items = fed.method, fed.now.state, fed.now.vault, fed.world.sizes.items
    secret = Clock(secrets.randbits(62))  # pseudo-items must not follow from the seed
    streams: dict[Key, Stream] = {}
    unguarded = {d.stream for d in wanted if not d.guards and d.summed == 1}
    for number in range(1, max(rounds) + 1):
        clock = fed.clock.at(number)
        mail = method.server_mail(state, fed.world, ids, clock)
        cohort = InProcess().cohort(method, vault, ids, mail=mail)
        before = vault.read(ids)
        update, private = method.client_train(state.public, before, cohort, clock)
        for dummies, kept, norm in dict.fromkeys(d.stream for d in wanted):
            mine = update
            if dummies:
                padded = with_dummies(cohort, dummies, secret.at(0 if kept else number))
                mine, _ = method.client_train(state.public, before, padded, clock)
            if norm is not None:
                mine = Clip(norm).each(mine, leaves=True)
            rows, sent = leak.dense_rows(mine, method.model.tables, items)
            votes = torch.zeros_like(sent, dtype=torch.float64)
            if (dummies, kept, norm) in unguarded:
                earlier = streams.get((dummies, kept, norm))
                alone = View(rows, sent, before=None if earlier is None else earlier.sent)
                votes = leak.split(alone, _loss(method), _negatives(method))
            add(streams, (dummies, kept, norm), rows, sent, votes)
        shown = wanted if number in rounds else ()
        made = {d.name: view_through(d, streams[d.stream], number) for d in shown}
        yield number, state.public, made
        state = method.server_step(state, {"train": update.fold(cohort.weight)}, fed.world, clock)
        vault = vault.write([(ids, private)])


# -- results --------------------------------------------------------------------------------------


def measure(
    dataset: Dataset,
    case: Case,
    users: int,
    rounds: Sequence[int],
    wanted: Sequence[Defence],
    delta: float,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Measure one line per defence, number of rounds and attack."""
    if not rounds or min(rounds) < 1 or users < 2:
        got = f"{users} users and rounds {list(rounds)}"
        raise ConfigError(f"this needs two users or more and rounds from 1 on; got {got}.")
    fed, ids = opened(dataset, case.method, users, seed)
    items, tables = fed.world.sizes.items, case.method.model.tables
    width = sum(v[0].numel() for n, v in fed.now.state.public.items() if n in tables)
    if users * items * width > CELLS:
        most = max(2, CELLS // (items * width))
        raise ConfigError(
            f"the updates do not fit into memory. Observe at most {most} (--users {most})."
        )
    truth = _truth(fed, ids)
    lines = []
    judge = Clock(seed + ATTACKER)
    for number, public, seen in views(fed, ids, wanted, rounds):
        for defence in wanted if seen else ():
            view, epsilon = seen[defence.name], _epsilon(defence, delta, number)
            about = {"case": case.name, "defence": defence.name, "rounds": number}
            attacks = _attacks(case.method, public, defence, view, truth.sum(1), judge)
            for attack, score in attacks:
                line = _line(score, truth, view, judge)
                lines.append({**about, "attack": attack, "epsilon": epsilon, **line})
        progress(case.name, number, max(rounds))
    return lines


def _truth(fed: Federation, ids: Tensor) -> Tensor:
    """Return which items these users train on. [users, I] bool"""
    train = InProcess().cohort(fed.method, fed.now.vault, ids).train
    truth = torch.zeros(len(ids), fed.world.sizes.items, dtype=torch.bool)
    truth[train.owner, train.item] = True
    return truth


def _attacks(
    method: Method, public: Params, defence: Defence, view: View, count: Tensor, clock: Clock
) -> Iterator[tuple[str, Tensor]]:
    score = leak.split(view, _loss(method), _negatives(method))
    yield "split", score
    if view.exact:
        yield "split, then popularity", leak.rank_by_popularity(score)
    if defence.dummies:
        yield "split, then least moved", leak.rank_by_smallest_move(score)
    if defence.shadowed and view.rounds == 1:
        yield "IMIA", leak.imia(method, public, view, count, clock)


def _line(score: Tensor, truth: Tensor, view: View, clock: Clock) -> dict[str, Any]:
    right = leak.score_attack(score, truth, clock)
    found = bootstrap(right.found, clock, "leak")
    positives = truth.sum(1).double()
    chance = float((positives / truth.shape[1]).mean())
    return {
        "found": found.mean,
        "low": found.low,
        "high": found.high,
        "people": found.people,
        "chance": chance,
        "rows": float((positives / view.sent.sum(1).clamp(min=positives)).mean()),
        "claimed": {n: float(getattr(right, n).mean()) for n in ("precision", "recall")},
        "times_chance": found.mean / chance,
        "within_bar": found.mean <= BAR * chance,
    }


def _epsilon(defence: Defence, delta: float, rounds: int) -> float | None:
    guard = defence.noise
    return epsilon_of(guard.noise, delta, rounds) if isinstance(guard, Gaussian) else None


def measured(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Read the lines of a case measured before with the same settings, or None."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            kept = json.loads(text)
        except ValueError:  # the last line of an interrupted run
            continue
        if kept["settings"] == settings:
            return list(kept["lines"])
    return None


def remember(path: Path, settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    """Append a measured case to leak.jsonl, so that it is not measured again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"settings": settings, "lines": lines}) + "\n")


def popular_guess(dataset: Dataset, users: int, seed: int) -> float:
    """Measure what naming the most popular items of other users finds, without any update."""
    fed, ids = opened(dataset, FedAvg(), users, seed)
    truth = _truth(fed, ids)
    every = fed.now.vault.holdings.of_clients("own", torch.arange(fed.world.sizes.clients))
    others = torch.bincount(every.item, minlength=truth.shape[1]) - truth.sum(0)
    score = others.double().expand(users, -1)
    return float(leak.score_attack(score, truth, Clock(seed + ATTACKER)).found.mean())


def facts_of(
    dataset: Dataset,
    name: str,
    users: int,
    rounds: Sequence[int],
    delta: float,
    seed: int,
    lines: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the content of leak.json."""
    return {
        "question": "how many of a person's items a server names that sees their single updates",
        "found": "precision at |positives|, which is recall at |positives|; mean over people",
        "interval": f"95 %, percentile bootstrap over people, {DRAWS} draws",
        "bar": f"at most {BAR} times chance",
        "data": name,
        "digest": dataset.digest,
        "people": users,
        "rounds": list(rounds),
        "delta": delta,
        "seed": seed,
        "popular_guess": popular_guess(dataset, users, seed),
        "lines": list(lines),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
