"""Trials of unlearners: a request, answered by one of them, and measured beside retrains.

A cell of a recipe that names an unlearner is a trial. What several trials need is made once and
kept in the recipe's folder: `learned/` holds federations by their settings and seed, `retrains/`
models that never had the records (the same for every unlearner that answers the request).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from rescind.audits import mait
from rescind.audits.case import Case
from rescind.audits.controls import shifted
from rescind.audits.finding import overall
from rescind.audits.verdict import FEWEST
from rescind.core import files, params
from rescind.core.executor import InProcess
from rescind.core.federation import Federation
from rescind.core.holdings import TRAIN
from rescind.core.method import Unlearner
from rescind.core.params import Params
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.core.request import Request
from rescind.data import Dataset, GraphDataset
from rescind.data.simulated_lending import draw_regret
from rescind.errors import ConfigError, ConsentError
from rescind.experiments import learning_run as experiment
from rescind.experiments.cell import NO_OP, OTHER_SEED, SHIFT, Cell, ForgetSettings
from rescind.experiments.learning_run import Result, Watch
from rescind.forgetting.examine import By, examine_records, judge, retrains
from rescind.forgetting.parallel import one_thread
from rescind.forgetting.pipeline import CostMeter, unlearn_and_purge
from rescind.storage.federations import load_federation
from rescind.storage.provenance import versions
from rescind.storage.run_folder import read_facts, write_facts

Facts = dict[str, Any]
SAME = 0.05
"""Two learners whose parameters differ by less, relatively, learnt the same: sums in another order
move them by less, another seed by more than one."""


@dataclass(frozen=True)
class TrialCache:
    """Where a recipe keeps what its trials share, and who is told of progress."""

    home: Path
    again: bool = True
    workers: int = 2
    watch: tuple[Watch, ...] = ()
    told: Callable[[int, int], Any] = lambda *_: None
    """Told (retrains there, retrains wanted)."""
    last: dict[str, tuple[Federation, Facts]] = field(default_factory=dict)
    """The last federation that kept logs, which is too large to be written."""


def run_cell(
    cell: Cell, folder: Path, room: TrialCache, dataset: Dataset | GraphDataset | None = None
) -> Result:
    """Answer a cell's request by its unlearner, and write `folder/run.json`.

    Figures are the unlearner's own: nothing is escalated, but whether it would be is said.
    """
    wanted = cell.forget
    if wanted is None:
        raise ConfigError(f"cell '{cell.name}' names no unlearner, so it is no trial.")
    dataset = dataset or experiment.obtained(cell)
    plain = replace(cell, forget=None)
    base, facts = learned(plain, dataset, room)
    before = base
    if wanted.learner is not None:
        before, facts = learned(replace(plain, method=wanted.learner), dataset, room)
    after, facts = answered(cell, before, base, facts, room)
    files.make_folder(folder)
    write_facts(folder, facts)
    return Result(after, facts, folder)


def answered(
    cell: Cell, before: Federation, base: Federation, facts: Facts, room: TrialCache
) -> tuple[Federation, Facts]:
    """Every request of a cell, answered; the first's federation, and what run.json says.

    before: the federation that forgets    base: what the method alone learnt    facts: of `before`
    """
    found = [_trial(cell, before, base, event, room) for event in events(cell, base)]
    after, told = found[0][0], mean_of([facts for _, facts in found])
    if len(found) > 1:  # a mean over leavers hides the worst of them
        told["each"] = each_of([facts for _, facts in found])
    return after, {
        **facts,
        "cell": cell.name,
        "configuration": cell.configuration,
        "digest": cell.digest,
        "settings": cell.settings,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "per_round": [],
        "groups": {},
        "metrics": told.pop("metrics"),
        "seconds": told.pop("seconds"),
        "forget": told,
        "round": after.now.state.round,
        "model": {"public": params.digest(after.now.state.public)},
    }


# -- what trials share ----------------------------------------------------------------------------


def learned(
    cell: Cell, dataset: Dataset | GraphDataset, room: TrialCache
) -> tuple[Federation, dict[str, Any]]:
    """The federation of a cell and what its run wrote down; trained once, then read.

    Who logs updates or sums keeps up to gigabytes, which are not written: only the last is held.
    """
    name = sha256(f"{cell.digest}/{cell.run.seed}/{dataset.digest}".encode()).hexdigest()[:16]
    if cell.method.logs or cell.method.individual or getattr(cell.method, "keep_sums", False):
        if name not in room.last:
            room.last.clear()
            room.last[name] = _with_logs(cell, dataset, room)
        return room.last[name]
    folder = room.home / "learned" / f"{name}-seed-{cell.run.seed}"
    done = read_facts(folder)
    if (
        done is None
        or not cell.made(done)
        or _libraries(done["versions"]) != _libraries(versions())
    ):
        done = experiment.run_cell(cell, folder, room.again, room.watch, dataset).facts
    return load_federation(folder / "model", InProcess(device=cell.run.device)), done


def _with_logs(
    cell: Cell, dataset: Dataset | GraphDataset, room: TrialCache
) -> tuple[Federation, dict[str, Any]]:
    cell = replace(cell, run=replace(cell.run, keep_every=None))
    meter, fed = experiment.Meter(), experiment.start(cell, dataset)
    until = experiment.stopping(cell)
    fed = fed.run(cell.run.rounds, until=until, watch=(meter, *room.watch))
    return fed, experiment._facts(cell, dataset, fed, None, meter)


def _libraries(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """What a result was made with, less the commit: that is the line's own."""
    return {name: version for name, version in made_with.items() if name != "commit"}


def events(cell: Cell, fed: Federation) -> list[Event]:
    """The requests of a cell, each on its own."""
    wanted = cell.forget
    assert wanted is not None
    if wanted.draw is None:
        return [Withdraw(client) for client in wanted.clients]
    whose = fed.world.shared if wanted.of == "lenders" else _kept_apart(fed)
    records = draw_regret(whose, fed.clock, wanted.draw)
    if not len(records):
        does = "lends anything" if wanted.of == "lenders" else "keeps all to themselves"
        raise ConsentError(
            f"cell '{cell.name}': nobody {does}, so nobody can take it back. Change "
            f'[sharing], or let somebody leave: event = "withdraw", client = 3.'
        )
    return [Erase(records) if wanted.event == "erase" else Unshare(records)]


def _kept_apart(fed: Federation) -> Records:
    """What people who lend nothing train on."""
    held = fed.now.vault.holdings
    mine = held.records[held.split == TRAIN]
    return mine[~torch.isin(mine.client, fed.world.shared.client)]


def _exact(base: Federation, event: Event, room: TrialCache) -> Params:
    """The parameters of the same run without the records, made once."""
    said = [base.world.digest(), base.now.vault.holdings.digest(), event.digest()]
    said += [params.digest(base.now.state.public)]
    name = sha256("/".join(said).encode()).hexdigest()[:16]
    path = room.home / "retrains" / f"exact-{name}.safetensors"
    if path.is_file():
        return params.to(params.load(path)[0], base.world.members.device)
    with one_thread():
        public = replace(base, watch=room.watch).retrained(event).now.state.public
    params.save(path, dict(public))
    return public


# -- one request ----------------------------------------------------------------------------------


def _trial(
    cell: Cell, before: Federation, base: Federation, event: Event, room: TrialCache
) -> tuple[Federation, Facts]:
    """What one request cost, what it left, and what is left of it."""
    wanted, k = cell.forget, cell.run.k
    assert wanted is not None
    audited = wanted.audits != "none"
    moved = _apart(before.now.state.public, base.now.state.public)
    same = moved < SAME
    beside = base if same else before
    many = FEWEST + (wanted.name == OTHER_SEED)
    references: Sequence[Federation] = ()
    if audited or wanted.name == OTHER_SEED:
        kept = room.home / "retrains"
        references = retrains(beside, event, many, 0, room.workers, kept, room.told)
    request = before.request(event)
    after, costs = _answered(wanted.name, before, request, wanted.unlearner, references, room)
    stay = before.apply(event).world.members.nonzero().squeeze(1)
    facts: Facts = {
        **costs,
        "event": request.kind,
        "records": len(request.records),
        "people": len(request.people),
        "metrics": {s: after.evaluate(s, k, stay) for s in ("valid", "test")},
        "before": {s: before.evaluate(s, k, stay) for s in ("valid", "test")},
        "learnt_as_the_method": same,
        "learnt_apart": moved,
        "kept": kept_for_forgetting(before),
    }
    nodes = before.world.task == "nodes"
    if not audited and not nodes:  # a distance costs a retraining
        return after, facts
    exact = _exact(beside, event, room)
    far = _apart(before.now.state.public, exact)
    facts["distance"] = _ratio(_apart(after.now.state.public, exact), far)
    if audited:
        others = [_apart(r.now.state.public, exact) for r in references[:FEWEST]]
        facts["floor"] = _ratio(statistics.fmean(others), far)
        facts |= _judged(before, after, event, references[:FEWEST], wanted, room)
    if isinstance(event, Withdraw) and nodes:
        facts["leaver"] = _of_a_leaver(before, after, exact, event.client)
    return after, facts


def _answered(
    name: str,
    before: Federation,
    request: Request,
    unlearner: Unlearner | None,
    references: Sequence[Federation],
    room: TrialCache,
) -> tuple[Federation, Facts]:
    """The federation after a request, and what that took."""
    if name in (NO_OP, SHIFT, OTHER_SEED):
        cost, left, exact = CostMeter(), {}, False
        after = {
            NO_OP: lambda: before,
            SHIFT: lambda: shifted(before),
            OTHER_SEED: lambda: references[FEWEST],
        }[name]()
    else:
        with one_thread():
            done = unlearn_and_purge(before, request, unlearner, room.watch)
        after, cost, left, exact = done.fed, done.cost, done.traces, done.unlearner.exact
    return after, {
        "seconds": {"wall": cost.wall, "cpu": cost.cpu},
        "rounds": cost.rounds,
        "client_rounds": cost.client_rounds,
        "online": cost.online(request),
        "exact": exact,
        "traces": sum(left.values()),
    }


def _judged(
    before: Federation,
    after: Federation,
    event: Event,
    references: Sequence[Federation],
    wanted: ForgetSettings,
    room: TrialCache,
) -> Facts:
    """Every check of the audit: its value, the retrains' mean, and what it says."""
    case = Case.of(before, event, 0, references)
    with one_thread():
        begun = time.process_time()
        report = judge(case, after)
        seconds = time.process_time() - begun
    findings = list(report.findings)
    if wanted.audits == "ulira":
        kept = room.home / "retrains"
        asked: By = "nothing" if wanted.name == NO_OP else wanted.unlearner
        findings += examine_records(
            before, event, asked, wanted.pairs, workers=room.workers, folder=kept, watch=room.told
        )
    verdict = "VOID" if report.verdict == "VOID" else overall(findings)
    found = [f for f in findings if f.value is not None]
    exact = wanted.unlearner.exact if wanted.unlearner else wanted.name == "own"
    return {
        "verdict": verdict,
        "why": report.why,
        "escalates": verdict == "FAIL" and not exact,
        "failed": ", ".join(f.check for f in found if f.verdict == "FAIL") or "none",
        "value": {f.check: f.value for f in found},
        "retrains": {f.check: f.reference for f in found},
        "margin": {f.check: f.margin for f in found if f.margin is not None},
        "verdicts": {f.check: f.verdict for f in found},
        "audit_seconds": seconds,
    }


def kept_for_forgetting(fed: Federation) -> dict[str, int]:
    """Bytes that learning kept to be able to forget, as they are written to disk.

    Snapshots and logs of the server, and what devices log of their own updates.
    """
    server = [len(params.to_bytes(s.values)) for s in fed.now.state.memory]
    rows = [r for _, _, r in fed.now.vault.log.entries]
    parts = [{"owner": r.owner, "index": r.index, "value": r.value} for r in rows]
    return {"server": sum(server), "client": sum(len(params.to_bytes(p)) for p in parts)}


def _of_a_leaver(before: Federation, after: Federation, exact: Params, client: int) -> Facts:
    """How a model does on the nodes of who left, in their old graph, and the paper's attack."""
    state = replace(before.now.state, public=exact)
    retrained = before.with_(state=state)
    asked = before.with_(state=after.now.state)
    ids = (before.world.members.new_ones(before.world.sizes.clients)).nonzero().squeeze(1)
    found: Facts = dict(asked.evaluate(clients=ids[ids == client]))
    rate = mait.rate(before, after, retrained, client)
    found |= {"loss AUC": mait.loss_auc(before, after, client)}
    return {**found, "MIA": rate.unlearnt, "MIA gap": rate.gap}


# -- numbers --------------------------------------------------------------------------------------


def _apart(mine: Params, theirs: Params) -> float:
    """||w - w'|| / ||w'|| over the parameters both have."""
    names = [n for n in theirs if n in mine and mine[n].shape == theirs[n].shape]
    gap = {n: mine[n].double() - theirs[n].double() for n in names}
    return params.norm(gap) / max(params.norm({n: theirs[n] for n in names}), 1e-12)


def _ratio(part: float, whole: float) -> float | None:
    """None where nothing moved at all."""
    return part / whole if whole > 0 else None


def mean_of(found: Sequence[Mapping[str, Any]]) -> Facts:
    """Facts of several requests as one: means of numbers, words with how often they occur."""
    return {key: _one([f[key] for f in found if key in f]) for key in found[0]}


def each_of(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """What every single request left: quality for those who stay, and of the leaver."""
    parts = {"test": [f["metrics"]["test"] for f in found]}
    parts["leaver"] = [f["leaver"] for f in found if "leaver" in f]
    return {
        part: {name: [round(row[name], 6) for row in rows] for name in rows[0]}
        for part, rows in parts.items()
        if rows
    }


def _one(values: Sequence[Any]) -> Any:
    given = [v for v in values if v is not None]
    if not given:
        return None
    if isinstance(given[0], Mapping):
        return mean_of(given)
    if len(set(map(json.dumps, given))) == 1:
        return given[0]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in given):
        return statistics.fmean(given)
    words = [("yes" if v else "no") if isinstance(v, bool) else str(v) for v in given]
    return ", ".join(f"{word} {words.count(word)}" for word in dict.fromkeys(words))
