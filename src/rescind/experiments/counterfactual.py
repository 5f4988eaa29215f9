"""Worlds in which one person decided otherwise about lending, each trained anew and written down.

Seed, rounds and everybody else stay as they were, so that nothing but the decision differs.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.cohort import Cohort, Lot
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.core.params import Params
from rescind.core.records import Event, Share, Unshare
from rescind.core.settings import from_table
from rescind.core.tasks.metrics import top_k
from rescind.errors import ConfigError, DataError
from rescind.experiments.recipe import GuardSettings
from rescind.storage.federations import load_federation
from rescind.storage.provenance import versions
from rescind.storage.run_folder import check_finished, read_facts

UNCHANGED = -1
"""The world in which nobody decides otherwise: the run itself, trained once more."""

Trained = dict[str, Any]
"""A trained world: whose decision changed, the values of drawn people, digests of the model."""


# -- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EachPerson:
    """HR and NDCG of every person apart, as `Ranking` defines them.

    For measuring a simulation: a deployment would learn single people's quality from it.
    """

    clients: int
    k: int = 20
    split: str = "test"
    mask: tuple[str, ...] = ("own",)
    block: int | None = None

    def totals(self, scores: Tensor, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """By metric: [clients], 0 for people outside the cohort."""
        if cohort.held is None:
            raise ConfigError("a ranking needs a cohort with held-out items.")
        held = cohort.held
        top = top_k(scores, masked, self.k)
        there = torch.zeros((len(cohort), cohort.items + 1), dtype=torch.bool, device=top.device)
        there[held.owner, held.item] = True
        hit = there.gather(1, torch.where(top < 0, cohort.items, top)).double()
        discount = 1 / torch.log2(torch.arange(self.k, device=top.device).double() + 2)
        best = held.count.clamp(1, self.k).long() - 1
        each = {
            f"HR@{self.k}": (hit.sum(1) > 0).double(),
            f"NDCG@{self.k}": (hit * discount).sum(1) / torch.cumsum(discount, 0)[best],
            "held": held.count.double(),
        }
        empty = scores.new_zeros(self.clients, dtype=torch.float64)
        return {n: empty.index_copy(0, cohort.ids, v) for n, v in each.items()}, len(cohort)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """The means over people with held-out items."""
        counted = totals["held"] > 0
        return {n: float(v[counted].mean()) for n, v in totals.items() if n != "held"}


def each_person(fed: Federation, k: int = 20, ids: Tensor | None = None) -> dict[str, Tensor]:
    """By metric: [clients], NaN for people without held-out items or not asked about."""
    metric = EachPerson(fed.world.sizes.clients, k)
    ids = fed.world.members.nonzero().squeeze(1) if ids is None else ids
    now = fed.now
    found = fed.executor.measure(fed.method, now.state.public, now.vault, ids, metric).totals
    known = found["held"] > 0
    return {n: torch.where(known, v, torch.nan).cpu() for n, v in found.items() if n != "held"}


# -- other worlds ---------------------------------------------------------------------------------


def otherwise(fed: Federation, client: int) -> Event:
    """What a person would have decided otherwise: to keep all they lend, or to lend all."""
    lent = fed.world.shared[fed.world.shared.client == client]
    if len(lent):
        return Unshare(lent)
    held = fed.now.vault.holdings
    mine = (held.records.client == client) & (held.split == TRAIN) & (held.block == held.now)
    return Share(held.records[mine])


def retrained(fed: Federation, client: int = UNCHANGED) -> Federation:
    """The run once more from its first values, with one person's decision changed."""
    world = fed if client == UNCHANGED else fed.apply(otherwise(fed, client))
    return world.restart().run(fed.now.state.round)


def open_run(folder: Path) -> Federation:
    """The federation of a finished run, with the guards and on the device of its training."""
    check_finished(folder)
    settings = (read_facts(folder) or {})["configuration"]
    guards = from_table(GuardSettings, settings.get("guards", {}), {})
    if guards.gaussian is not None or guards.laplace is not None:
        raise ConfigError(
            f"{folder} was trained with noise, which no seed repeats: two trainings of one world "
            f"differ, and what one person's decision changes would drown. Run the recipe "
            f"without guards.gaussian and guards.laplace for this question."
        )
    return load_federation(
        folder / "model", InProcess(device=settings["run"]["device"], guards=guards.guards)
    )


def train_world(fed: Federation, client: int, people: Sequence[int], k: int) -> Trained:
    """Train one world and measure these people in it."""
    with _one_thread():
        after = retrained(fed, client)
        found = each_person(after, k, torch.tensor(people, device=fed.world.members.device))
    values = {str(p): {n: float(v[p]) for n, v in found.items()} for p in people}
    model = [params.digest(after.now.state.public), params.digest(after.now.vault.private)]
    return {"world": client, "values": values, "model": model}


@functools.lru_cache(maxsize=1)
def _opened(folder: str) -> Federation:
    """Read once by a worker, however many worlds it trains."""
    return open_run(Path(folder))


def _train_in_worker(folder: str, client: int, people: Sequence[int], k: int) -> Trained:
    return train_world(_opened(folder), client, people, k)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The same arithmetic in every process, whatever else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- the diary of finished worlds -----------------------------------------------------------------


def _read_worlds(path: Path, key: str) -> dict[int, Trained]:
    """The worlds that were finished for this very run; a torn last line is left out."""
    found: dict[int, Trained] = {}
    if not path.is_file():
        return found
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and line.get("key") == key:
            found[int(line["world"])] = line
    return found


def _note(path: Path, line: Mapping[str, Any]) -> None:
    """Write one finished world down at once."""
    try:
        with open(path, "ab") as file:
            # A line that was cut off by a kill must not swallow this one.
            file.write(b"\n" + json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}. Free some space and go on."
        ) from None


def _key(fed: Federation, k: int) -> str:
    """What finished worlds belong to: this model on this data, and these libraries."""
    made = {n: v for n, v in versions().items() if n != "commit"}
    state, vault = fed.now.state, fed.now.vault
    parts = [
        params.digest(state.public),
        params.digest(vault.private),
        vault.holdings.digest(),
        str([state.round, fed.clock.seed, k, sorted(made.items())]),
    ]
    return sha256("/".join(parts).encode()).hexdigest()


def all_worlds(
    folder: Path,
    fed: Federation,
    people: Sequence[int],
    k: int,
    processes: int = 1,
    watch: Callable[[int, int], Any] = lambda *_: None,
) -> dict[int, Trained]:
    """The unchanged world and one for each person, from the folder's diary or trained now.

    watch: is told (worlds there, worlds wanted)
    """
    path, key, many = folder / "value.jsonl", _key(fed, k), len(people) + 1
    known = _read_worlds(path, key)
    control = known.get(UNCHANGED)
    measured = set() if control is None else {int(p) for p in control["values"]}
    if set(people) <= known.keys() & measured:
        watch(many, many)
        return known
    watch(len(known.keys() & set(people)), many)
    # Code may have changed since: the unchanged world is trained again, and if it comes out
    # otherwise, so would the worlds of the diary.
    again = {**train_world(fed, UNCHANGED, people, k), "key": key}
    if control is not None and control["model"] != again["model"]:
        known = {}
        path.unlink(missing_ok=True)
    known[UNCHANGED] = again
    _note(path, again)
    watch(1 + len(known.keys() & set(people)), many)
    todo = [p for p in people if p not in known]
    for line in _trained(folder, fed, todo, people, k, processes):
        known[line["world"]] = {**line, "key": key}
        _note(path, known[line["world"]])
        watch(1 + len(known.keys() & set(people)), many)
    return known


def _trained(
    folder: Path,
    fed: Federation,
    todo: Sequence[int],
    people: Sequence[int],
    k: int,
    processes: int,
) -> Iterator[Trained]:
    """The worlds still to be trained, as they are finished."""
    if processes == 1 or len(todo) < 2:
        for client in todo:
            yield train_world(fed, client, people, k)
        return
    # Fresh processes: threads that torch has running do not survive a fork.
    pool = ProcessPoolExecutor(min(processes, len(todo)), get_context("spawn"))
    try:
        asked = [pool.submit(_train_in_worker, str(folder), c, people, k) for c in todo]
        for done in as_completed(asked):
            yield done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
