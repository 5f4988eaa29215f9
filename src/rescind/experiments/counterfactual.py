"""Counterfactual worlds: retrain with the lending decision of one user changed.

Seed, rounds and all other users stay the same, so that only the decision differs.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.cohort import Cohort, Lot
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.core.params import Params
from rescind.core.records import Event, Share, Unshare
from rescind.core.tasks.metrics import Scores, top_k
from rescind.errors import ConfigError, DataError
from rescind.experiments.open_run import open_run
from rescind.forgetting.parallel import one_thread, worker_pool
from rescind.storage.provenance import version_of, versions

UNCHANGED = -1
"""The world without a changed decision: the run itself, retrained."""

Trained = dict[str, Any]
"""A trained world: the user, the values of the sampled users, digests of the model."""
Worlds = Mapping[int, Trained]


@dataclass(frozen=True)
class EachPerson:
    """HR and NDCG of each user, as `Ranking` defines them.

    For simulations only: in a deployment the server would learn the quality of single users.
    """

    clients: int
    k: int = 20
    split: str = "test"
    mask: tuple[str, ...] = ("own",)
    block: int | None = None
    only_lists: ClassVar[bool] = True

    def totals(self, scores: Scores, cohort: Cohort, masked: Lot) -> tuple[Params, int]:
        """Return by metric: [clients], 0 for users outside the cohort."""
        if cohort.held is None:
            raise ConfigError("a ranking metric needs a cohort with held-out items.")
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
        empty = top.new_zeros(self.clients, dtype=torch.float64)
        return {n: empty.index_copy(0, cohort.ids, v) for n, v in each.items()}, len(cohort)

    def finish(self, totals: Params, weight: float) -> dict[str, float]:
        """Return the means over users with held-out items."""
        counted = totals["held"] > 0
        return {n: float(v[counted].mean()) for n, v in totals.items() if n != "held"}


def each_person(fed: Federation, k: int = 20, ids: Tensor | None = None) -> dict[str, Tensor]:
    """Measure by metric: [clients], NaN for users without held-out items or not in `ids`."""
    metric, now = EachPerson(fed.world.sizes.clients, k), fed.now
    ids = fed.world.members.nonzero().squeeze(1) if ids is None else ids
    found = fed.executor.measure(fed.method, now.state.public, now.vault, ids, metric).totals
    known = found["held"] > 0
    return {n: torch.where(known, v, torch.nan).cpu() for n, v in found.items() if n != "held"}


def otherwise(fed: Federation, client: int) -> Event:
    """Return the opposite decision of a user: keep all records they lend, or lend all."""
    lent = fed.world.shared[fed.world.shared.client == client]
    if len(lent):
        return Unshare(lent)
    held = fed.now.vault.holdings
    mine = (held.records.client == client) & (held.split == TRAIN) & (held.block == held.now)
    return Share(held.records[mine])


def retrained(fed: Federation, client: int = UNCHANGED) -> Federation:
    """Retrain the run from its initial values, with one user's decision changed."""
    world = fed if client == UNCHANGED else fed.apply(otherwise(fed, client))
    return world.restart().run(fed.now.state.round)


def train_world(fed: Federation, client: int, people: Sequence[int], k: int) -> Trained:
    """Train one world and measure these users in it."""
    with one_thread():
        after = retrained(fed, client)
        found = each_person(after, k, torch.tensor(people, device=fed.world.members.device))
    values = {str(p): {n: float(v[p]) for n, v in found.items()} for p in people}
    return {"world": client, "values": values, "model": model_digests(after)}


def model_digests(fed: Federation) -> list[str]:
    """Return the digests of the public and the private parameters."""
    return [params.digest(fed.now.state.public), params.digest(fed.now.vault.private)]


_load_once = functools.lru_cache(maxsize=1)(open_run)
"""Loads the run once per worker process."""


def _train_in_worker(folder: Path, client: int, people: Sequence[int], k: int) -> Trained:
    return train_world(_load_once(folder), client, people, k)


def _read_worlds(path: Path, key: str) -> dict[int, Trained]:
    """Read the worlds finished for this run; an incomplete last line is skipped."""
    found: dict[int, Trained] = {}
    written = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for text in written.splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and line.get("key") == key:
            found[int(line["world"])] = line
    return found


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with open(path, "ab") as file:
            # Start on a new line, in case the last line was cut off by a kill.
            file.write(b"\n" + json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"cannot write {path}: {why}. Free some space and run again.") from None


def _key(fed: Federation, k: int) -> str:
    """Compute the key of finished worlds: model, data, settings and library versions."""
    known = versions() | version_of(fed.method)
    made = sorted((n, v) for n, v in known.items() if n != "commit")
    rest = str([fed.now.state.round, fed.clock.seed, k, made])
    parts = [*model_digests(fed), fed.now.vault.holdings.digest(), rest]
    return sha256("/".join(parts).encode()).hexdigest()


def all_worlds(
    folder: Path,
    fed: Federation,
    people: Sequence[int],
    k: int,
    processes: int = 1,
    progress: Callable[[int, int], Any] = lambda *_: None,
) -> dict[int, Trained]:
    """Return the unchanged world and one per user, from the folder or trained now.

    progress: called with (finished, total) worlds
    """
    path, key, total = folder / "value.jsonl", _key(fed, k), len(people) + 1
    known = _read_worlds(path, key)
    control = known.get(UNCHANGED)
    measured = set() if control is None else {int(p) for p in control["values"]}
    if set(people) <= known.keys() & measured:
        progress(total, total)
        return known
    progress(len(known.keys() & set(people)), total)
    # Code may have changed: the unchanged world is trained again, and if the result differs,
    # the worlds on disk are not valid any more.
    unchanged = train_world(fed, UNCHANGED, people, k)
    if control is not None and control["model"] != unchanged["model"]:
        known = {}
        path.unlink(missing_ok=True)
    todo = [p for p in people if p not in known]
    trained = _train_missing(folder, fed, todo, people, k, processes)
    for line in itertools.chain([unchanged], trained):
        known[line["world"]] = {**line, "key": key}
        _append(path, known[line["world"]])
        progress(1 + len(known.keys() & set(people)), total)
    return known


def _train_missing(
    folder: Path, fed: Federation, todo: list[int], people: Sequence[int], k: int, processes: int
) -> Iterator[Trained]:
    """Train the missing worlds and yield each when it is finished."""
    if processes == 1 or len(todo) < 2:
        for client in todo:
            yield train_world(fed, client, people, k)
        return
    with worker_pool(min(processes, len(todo)), fed.method) as pool:
        futures = [pool.submit(_train_in_worker, folder, c, people, k) for c in todo]
        for done in as_completed(futures):
            yield done.result()
