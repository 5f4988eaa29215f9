"""Run a cell of a recipe: sharing, training, evaluation, and the files of the run."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rescind.core import files, params
from rescind.core.doing import step
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.records import Share
from rescind.core.run_state import EarlyStop, RoundResult
from rescind.data import Dataset, GraphDataset
from rescind.data.blocklist import Blocklist
from rescind.data.partition import subgraphs
from rescind.data.simulated_lending import GROUPS, draw_groups, draw_share, groups_of
from rescind.errors import ConfigError, DataError
from rescind.experiments.needs import Sizes, must_fit, must_have_order
from rescind.experiments.prepared_data import (
    AnyData,
    answered_alone,
    obtained,
    parts_of,
    tell_misses,
    withheld_from,
)
from rescind.experiments.recipe import Cell, Recipe
from rescind.experiments.registering import artefact, departures_of, finish
from rescind.experiments.results import ALONE, append_line, only_numbers
from rescind.experiments.validation import measured_users, quality, stopping
from rescind.privacy import accountant, gaussian
from rescind.storage.checkpoints import Checkpoints, Resumed, resume
from rescind.storage.federations import save_federation
from rescind.storage.learning import begin_learning, learning_in
from rescind.storage.provenance import version_of, versions

log = logging.getLogger(__name__)

Watch = Callable[[RoundResult], Any]


@dataclass
class Meter:
    """Counts bytes, client-rounds and time of a run, across a resume."""

    up: int = 0
    down: int = 0
    client_rounds: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    took_part: list[int] = field(default_factory=list)
    """Per client, the number of sums its update went into."""
    repeated: int = 0
    """Rounds that may have run twice after a resume. All clients may have been in them."""
    wall: float = 0.0
    cpu: float = 0.0
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.process_time)

    def __call__(self, moment: RoundResult) -> None:
        for role, total in moment.sums.items():
            if role != "host":  # clients hosted by the server send nothing
                self.took_part = accountant.count(self.took_part, total.who)
            self.up += total.up
            self.down += total.down
            self.client_rounds += total.clients
            for reason, count in total.refused.items():
                self.refused[reason] = self.refused.get(reason, 0) + count

    def most_often(self, ids: Tensor | None = None) -> int:
        """Return an upper bound on the rounds of any client (or any of `ids`)."""
        return accountant.most_often(self.took_part, ids) + self.repeated

    def ledger(self, fed: Federation) -> Federation:
        """Return the federation with these counts as its ledger, if guards protected its rounds."""
        if fed.spent is None:
            return fed
        counted = torch.tensor(self.took_part, dtype=torch.int64)
        spent = torch.zeros(fed.world.sizes.clients, dtype=torch.int64)
        spent[: len(counted)] = counted
        return replace(fed, spent=spent + self.repeated)

    def read(self) -> dict[str, Any]:
        """Return the current counters."""
        wall = self.wall + time.perf_counter() - self._wall
        cpu = self.cpu + time.process_time() - self._cpu
        counted = {name: value for name, value in vars(self).items() if name[0] != "_"}
        return {**counted, "wall": wall, "cpu": cpu}

    def costs(self) -> dict[str, Any]:
        """Return the counters as run.json has them."""
        now = self.read()
        return {
            "seconds": {"wall": now["wall"], "cpu": now["cpu"]},
            "bytes": {"up": self.up, "down": self.down},
            "client_rounds": self.client_rounds,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class Result:
    """A finished run: the federation and the content of run.json."""

    fed: Federation
    facts: dict[str, Any]
    folder: Path

    @property
    def metrics(self) -> dict[str, float]:
        """Return the final metrics on the test set."""
        return dict(self.facts["metrics"]["test"])


def start(
    cell: Cell,
    dataset: AnyData,
    withheld: Blocklist | None = None,
    complete: Dataset | None = None,
) -> Federation:
    """Return a federation before its first round, with the simulated loans.

    withheld: loans that were taken back, and what a graph lost
    complete: the data with its erased rows. Loans are drawn from it, so that no client lends other
    records instead
    """
    guards = cell.guards.guards if cell.guards else ()
    executor = InProcess(device=cell.run.device, guards=guards)
    keep, seed = cell.run.keep_every, cell.run.seed
    if isinstance(dataset, GraphDataset):
        part = parts_of(cell.data, dataset)
        held = subgraphs(dataset, part, clients=cell.data.clients, seed=seed)
        held = withheld.without_erased(held) if withheld else held
        return Federation.start(held, cell.method, seed, executor, keep_every=keep)
    must_have_order(cell.method, dataset)
    fed = Federation.start(dataset, cell.method, seed, executor, keep_every=keep)
    if cell.sharing is None:
        return fed
    full, some, none = cell.sharing.ratio
    groups = draw_groups(fed.world.sizes.clients, fed.clock, (full, some, none))
    holdings = fed.now.vault.holdings
    before = complete.on_devices(seed) if complete else holdings
    loan = draw_share(before, groups, fed.clock, cell.sharing.part)
    if withheld:
        records = loan.records[loan.records.among(holdings.records)]
        loan = withheld.left_of_loan(Share(records), fed.labels)
    return fed.apply(loan)


def run_cell(
    cell: Cell,
    folder: Path,
    again: bool = False,
    watch: tuple[Watch, ...] = (),
    dataset: AnyData | None = None,
) -> Result:
    """Train and measure one cell; writes `folder/run.json` and `folder/model/`.

    A finished run in the folder stays until the new one is complete.
    again: resume from the newest checkpoint in the folder, if there is one
    Records that were erased or taken back, by the ledger of the home, are left out.
    """
    with learning_in(folder):
        return _run_cell(cell, folder, again, watch, dataset)


def _run_cell(
    cell: Cell,
    folder: Path,
    again: bool,
    watch: tuple[Watch, ...],
    dataset: AnyData | None,
) -> Result:
    counted = departures_of(cell.data.name)
    with step(f"reading {cell.data.name}"):
        dataset = dataset or obtained(cell, erased_too=True, folder=folder)
    withheld, complete = withheld_from(dataset, folder), None
    if withheld and isinstance(dataset, Dataset):
        dataset, complete = withheld.left_of(dataset), dataset
    if isinstance(dataset, Dataset):
        must_fit(cell.method, Sizes.of(dataset))
        tell_misses(dataset)
    fed = start(cell, dataset, withheld, complete)
    if not int(fed.now.vault.holdings.lot("test")[1].sum()):
        raise DataError(
            f"'{dataset.name}' has {len(dataset)} rows and none of them is held out for testing, "
            f"so nothing can be measured. Use more data, or a dataset with its own split."
        )
    settings, meter = cell.run, Meter()
    key = run_key(cell, dataset)
    until = stopping(cell, fed)
    checkpoints = Checkpoints(folder / "checkpoints", settings.checkpoint_every, key, meter.read)
    found = resume(checkpoints.folder, key, fed, until) if again else None
    if found is None:
        tidy(folder)
    model = begin_learning(folder)
    if found is not None:
        fed, until = restored(fed, found), found.until
        meter = Meter(**found.extra)
        meter.repeated += settings.checkpoint_every * (1 + len(found.skipped))
        checkpoints.extra = meter.read
        log.info("going on after round %d", found.now.state.round)
    seen = Last(until)
    trained, stopped = _train(cell, fed, seen, meter, (meter, seen, checkpoints, *watch))
    _check_summed(cell, meter)
    facts = _facts(cell, dataset, trained, seen.until, meter)
    facts |= cell.as_used(trained.method)
    facts["privacy"]["stopped"] = stopped
    if withheld and not isinstance(dataset, Dataset):  # parts of a graph are missing
        facts["data"]["digest"] = trained.now.vault.holdings.digest()
    if answered_alone(dataset, folder):
        facts[ALONE] = True
    trained = meter.ledger(trained)
    facts["artefact"] = artefact(folder)
    save_federation(trained, model)
    finish(folder, facts, counted)
    tidy(folder)
    return Result(trained, facts, folder)


def run_key(cell: Cell, dataset: AnyData) -> str:
    """Return the identity of a run: configuration, seed, data, and the text of an own method."""
    return "/".join((cell.digest, str(cell.run.seed), dataset.digest, *cell.code.values()))


def _check_summed(cell: Cell, meter: Meter) -> None:
    """Raise an error if updates came and none of them was summed: the model is as it began."""
    if meter.refused and not meter.client_rounds:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in meter.refused.items())
        raise ConfigError(
            f"every update of {type(cell.method).__name__} was refused ({reasons}), so nothing was "
            f"learnt and no result is written. Change what its client_train returns, or its rate."
        )


def restored(fed: Federation, at: Resumed) -> Federation:
    """Return the federation at a checkpoint."""
    past = fed.past
    if past is not None and at.first is not None:
        past = replace(past, first=at.first)
    return replace(fed, now=at.now, past=past)


def _train(
    cell: Cell, fed: Federation, seen: Last, meter: Meter, watch: tuple[Watch, ...]
) -> tuple[Federation, str | None]:
    """Train a cell. Return (federation, why the privacy budget stopped it)."""
    guards, left = cell.guards, cell.run.rounds - fed.now.state.round
    if guards is None or guards.epsilon is None or guards.gaussian is None:
        return fed.run(left, until=seen.until, watch=watch), None
    most = gaussian.rounds_within(guards.gaussian, guards.at_delta, guards.epsilon)
    trained, last = accountant.run_within(
        fed, left, seen.until, watch, lambda ids: meter.most_often(ids) < most
    )
    if last is None:
        return trained, None
    stopped = (
        f"stopped after round {last}: the next would exceed the budget of epsilon "
        f"{guards.epsilon:g} at delta {guards.at_delta:g} for a client. Allow a larger epsilon, "
        f"more noise, or fewer clients per round."
    )
    log.warning(stopped)
    return trained, stopped


def tidy(folder: Path) -> None:
    """Remove what a finished run does not need: checkpoints, and partial files of killed runs."""
    try:
        Checkpoints(folder / "checkpoints", every=1, key="").clear()
        files.sweep(folder)
        files.sweep(folder / "model")
    except OSError as error:
        why = f"cannot remove {error.filename}: {error.strerror}"
        raise DataError(f"{why}. Allow writing in {folder}.") from None


@dataclass
class Last:
    """Keeps the stopping rule after the last round."""

    until: EarlyStop | None

    def __call__(self, moment: RoundResult) -> None:
        self.until = moment.until


def server_bytes(fed: Federation) -> int:
    """Return the size of what the server keeps."""
    state = fed.now.state
    return params.nbytes(state.public) + params.nbytes(state.own) + state.memory.nbytes


def _facts(
    cell: Cell, dataset: AnyData, fed: Federation, until: EarlyStop | None, meter: Meter
) -> dict[str, Any]:
    """Return the content of run.json."""
    state, vault = fed.now.state, fed.now.vault
    return {
        **cell.stated,
        "data": about(dataset),
        "shared": len(fed.world.shared),
        "versions": versions() | cell.code | version_of(fed.method),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": until.history[-1][0] if until and until.history else state.round,
        "round": state.round,
        "per_round": [{"round": r, **only_numbers(v)} for r, v in until.history] if until else [],
        "metrics": quality(fed, cell.run.k),
        **measured_users(fed),
        "groups": _by_group(fed, cell.run.k) if len(fed.world.shared) else {},
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **meter.costs(),
        "privacy": replace(cell, method=fed.method).promise(
            meter.most_often(), fed.world.sizes.clients
        )
        | fed.method.promise(fed),
        "published": fed.method.published(fed),
        "kept_bytes": {"server": server_bytes(fed), "devices": vault.nbytes},
        "model": {"public": params.digest(state.public), "private": params.digest(vault.private)},
    }


def about(dataset: AnyData) -> dict[str, Any]:
    """Return name, digest, source and size of a dataset."""
    named: dict[str, Any] = {n: getattr(dataset, n) for n in ("name", "digest", "source")}
    if isinstance(dataset, Dataset):
        return named | dataset.size
    return {**named, "rows": len(dataset)}


def _by_group(fed: Federation, k: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Return test metrics of people who lend all, a part or nothing (groups that exist)."""
    groups = groups_of(fed.now.vault.holdings).to(fed.world.members.device)
    found = {n: ((groups == g) & fed.world.members).nonzero().squeeze(1) for n, g in GROUPS.items()}
    return {name: fed.evaluate("test", k, ids) for name, ids in found.items() if len(ids)}


def append_facts(recipe: Recipe, facts: dict[str, Any]) -> None:
    """Add the line of a finished run to the recipe's results, if it is not there yet."""
    append_line(recipe.results, _line(facts))


def _used(facts: dict[str, Any]) -> dict[str, str]:
    """Return the method that was used, if its settings leave it open until the data is known."""
    used, asked = (facts[part]["method"]["name"] for part in ("configuration", "settings"))
    return {"method": used} if used != asked else {}


def _line(facts: dict[str, Any]) -> dict[str, Any]:
    epsilon = (facts.get("privacy") or {}).get("epsilon")
    return {
        "cell": facts["cell"],
        "seed": facts["seed"],
        "test": {k: round(v, 6) for k, v in facts["metrics"]["test"].items()},
        "valid": {k: round(v, 6) for k, v in only_numbers(facts["metrics"]["valid"]).items()},
        "groups": {
            group: {k: round(v, 6) for k, v in found.items()}
            for group, found in facts.get("groups", {}).items()
        },
        "round": facts["round"],
        "seconds": {k: round(v, 2) for k, v in facts["seconds"].items()},
        "bytes": facts["bytes"],
        "kept_bytes": facts["kept_bytes"],
        **({"forget": facts["forget"]} if "forget" in facts else {}),
        **({"privacy": {"epsilon": epsilon}} if epsilon is not None else {}),
        **({ALONE: True} if facts.get(ALONE) else {}),
        **_used(facts),
        "digest": facts["digest"],
        "settings": facts["settings"],
        "data": facts["data"]["digest"],
        "versions": facts["versions"],
        "date": facts["date"],
    }
