"""Run cells with an unlearner: answer the request and compare with retrained models.

Trials of a recipe share a cache in its folder: `learned/` has trained federations, `retrains/`
models that never had the records (the same for every unlearner).
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
from rescind.core import files, named, params
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
from rescind.experiments import stream_run
from rescind.experiments.cell import NO_OP, OTHER_SEED, SHIFT, Cell, ForgetSettings
from rescind.experiments.learning_run import Result, Watch
from rescind.experiments.prepared_data import obtained
from rescind.experiments.validation import quality, stopping
from rescind.forgetting.examine import By, examine_records, judge, retrains
from rescind.forgetting.parallel import one_thread
from rescind.forgetting.pipeline import CostMeter, unlearn_and_purge
from rescind.storage.federations import load_federation
from rescind.storage.provenance import versions
from rescind.storage.run_folder import read_facts, write_facts

Facts = dict[str, Any]
SAME = 0.05
"""Relative distance of parameters below which two learners count as the same: another order of
sums changes them by less, another seed by more than 1."""


@dataclass(frozen=True)
class TrialCache:
    """Where a recipe keeps what its trials share, and its progress callbacks."""

    home: Path
    resume: bool = True
    workers: int = 2
    watch: tuple[Watch, ...] = ()
    progress: Callable[[int, int], Any] = lambda *_: None
    """Called with (finished, total) reference models."""
    last: dict[str, tuple[Federation, Facts]] = field(default_factory=dict)
    """The last federation with logs, which are too large to save."""


def run_cell(
    cell: Cell, folder: Path, cache: TrialCache, dataset: Dataset | GraphDataset | None = None
) -> Result:
    """Answer a cell's request with its unlearner, and write `folder/run.json`.

    A failed audit is reported, but does not lead to retraining as in `forget`.
    """
    settings = cell.forget
    if settings is None:
        raise ConfigError(
            f"cell '{cell.name}' has no unlearner, so there is no request to run. Add [forget]."
        )
    dataset = dataset or obtained(cell)
    plain = replace(cell, forget=None)
    base, facts = learned(plain, dataset, cache)
    before = base
    if settings.learner is not None:
        before, facts = learned(replace(plain, method=settings.learner), dataset, cache)
    after, facts = answered(cell, before, base, facts, cache)
    files.make_folder(folder)
    write_facts(folder, facts)
    return Result(after, facts, folder)


def answered(
    cell: Cell, before: Federation, base: Federation, facts: Facts, cache: TrialCache
) -> tuple[Federation, Facts]:
    """Answer all requests of a cell. Return the first's federation and the content of run.json.

    before: the federation that forgets    base: trained by the method alone    facts: of `before`
    """
    found = [_trial(cell, before, base, event, cache) for event in events(cell, base)]
    after, mean = found[0][0], mean_of([facts for _, facts in found])
    if len(found) > 1:  # a mean hides the worst request
        mean["each"] = each_of([facts for _, facts in found])
    return after, {
        **facts,
        **cell.stated,
        "versions": versions() | cell.code,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "per_round": [],
        "groups": {},
        "metrics": mean.pop("metrics"),
        "seconds": mean.pop("seconds"),
        "forget": mean,
        "round": after.now.state.round,
        "model": {"public": params.digest(after.now.state.public)},
    }


# -- shared by trials -----------------------------------------------------------------------------


def learned(
    cell: Cell, dataset: Dataset | GraphDataset, cache: TrialCache
) -> tuple[Federation, dict[str, Any]]:
    """Return the federation of a cell and its run.json; trained once, then read.

    Logs of updates or sums can take gigabytes. They are not saved; only the last is kept in memory.
    """
    name = sha256(f"{cell.digest}/{cell.run.seed}/{dataset.digest}".encode()).hexdigest()[:16]
    if cell.method.logs or cell.method.individual or getattr(cell.method, "keep_sums", False):
        if name not in cache.last:
            cache.last.clear()
            cache.last[name] = _with_logs(cell, dataset, cache)
        return cache.last[name]
    folder = cache.home / "learned" / f"{name}-seed-{cell.run.seed}"
    done = read_facts(folder)
    made_with = versions() | cell.code
    same = done and cell.made(done) and _libraries(done["versions"]) == _libraries(made_with)
    if done is None or not same:
        done = experiment.run_cell(cell, folder, cache.resume, cache.watch, dataset).facts
    return load_federation(folder / "model", InProcess(device=cell.run.device)), done


def _with_logs(
    cell: Cell, dataset: Dataset | GraphDataset, cache: TrialCache
) -> tuple[Federation, dict[str, Any]]:
    cell = replace(cell, run=replace(cell.run, keep_every=None))
    meter, fed = experiment.Meter(), experiment.start(cell, dataset)
    fed = fed.run(cell.run.rounds, until=stopping(cell, fed), watch=(meter, *cache.watch))
    return fed, experiment._facts(cell, dataset, fed, None, meter)


def _libraries(made_with: Mapping[str, Any]) -> dict[str, Any]:
    return {name: version for name, version in made_with.items() if name != "commit"}


def events(cell: Cell, fed: Federation) -> list[Event]:
    """Return the requests of a cell, to be answered separately."""
    settings = cell.forget
    assert settings is not None
    if settings.draw is None:
        return [fed.event_of(named.Withdraw(user)) for user in settings.clients]
    candidates = fed.world.shared if settings.of == "lenders" else _not_shared(fed)
    records = draw_regret(candidates, fed.clock, settings.draw)
    if not len(records):
        does = "shares records" if settings.of == "lenders" else "keeps all records private"
        raise ConsentError(
            f"cell '{cell.name}': no user {does}; nothing to forget. Change [sharing]."
        )
    return [Erase(records) if settings.event == "erase" else Unshare(records)]


def _not_shared(fed: Federation) -> Records:
    held = fed.now.vault.holdings
    mine = held.records[held.split == TRAIN]
    return mine[~torch.isin(mine.client, fed.world.shared.client)]


def _exact(base: Federation, event: Event, cache: TrialCache) -> Params:
    """Return the parameters of the same run without the records; trained once, then read."""
    parts = [base.world.digest(), base.now.vault.holdings.digest(), event.digest()]
    parts += [params.digest(base.now.state.public)]
    name = sha256("/".join(parts).encode()).hexdigest()[:16]
    path = cache.home / "retrains" / f"exact-{name}.safetensors"
    if path.is_file():
        return params.to(params.load(path)[0], base.world.members.device)
    public = replace(base, watch=cache.watch).retrained(event).now.state.public
    params.save(path, dict(public))
    return public


# -- one request ----------------------------------------------------------------------------------


def _trial(
    cell: Cell, before: Federation, base: Federation, event: Event, cache: TrialCache
) -> tuple[Federation, Facts]:
    """Answer one request; return the federation, and cost, quality and audit as facts."""
    settings, k = cell.forget, cell.run.k
    assert settings is not None
    audited = settings.audits != "none"
    moved = _distance(before.now.state.public, base.now.state.public)
    same = moved < SAME
    compared = base if same else before
    count = FEWEST + (settings.name == OTHER_SEED)
    references: Sequence[Federation] = ()
    if audited or settings.name == OTHER_SEED:
        kept = cache.home / "retrains"
        references = retrains(compared, event, count, 0, cache.workers, kept, cache.progress)
    request = before.request(event)
    after, costs = _answered(settings.name, before, request, settings.unlearner, references, cache)
    stay = before.apply(event).world.members.nonzero().squeeze(1)
    facts: Facts = {
        **costs,
        "event": request.kind,
        "records": len(request.records),
        "people": len(request.people),
        "metrics": quality(after, k, stay),
        "before": quality(before, k, stay),
        "learnt_as_the_method": same,
        "learnt_apart": moved,
        "kept": kept_for_forgetting(before),
    }
    nodes = before.world.task == "nodes"
    if not audited and not nodes:  # a distance needs a retrained model
        return after, facts
    exact = _exact(compared, event, cache)
    far = _distance(before.now.state.public, exact)
    facts["distance"] = _ratio(_distance(after.now.state.public, exact), far)
    if audited:
        others = [_distance(r.now.state.public, exact) for r in references[:FEWEST]]
        facts["floor"] = _ratio(statistics.fmean(others), far)
        facts |= _audit(before, after, event, references[:FEWEST], settings, cache)
    if isinstance(event, Withdraw) and nodes:
        facts["leaver"] = _leaver(before, after, exact, event.client)
    return after, facts


def _answered(
    name: str,
    before: Federation,
    request: Request,
    unlearner: Unlearner | None,
    references: Sequence[Federation],
    cache: TrialCache,
) -> tuple[Federation, Facts]:
    if name in (NO_OP, SHIFT, OTHER_SEED):
        cost, left, exact = CostMeter(), {}, False
        after = references[FEWEST] if name == OTHER_SEED else before
        after = shifted(before) if name == SHIFT else after
    else:
        done = unlearn_and_purge(before, request, unlearner, cache.watch)
        after, cost, left, exact = done.fed, done.cost, done.traces, done.unlearner.exact
    return after, {
        "seconds": {"wall": cost.wall, "cpu": cost.cpu},
        "rounds": cost.rounds,
        "client_rounds": cost.client_rounds,
        "online": cost.online(request),
        "exact": exact,
        "traces": sum(left.values()),
    }


def _audit(
    before: Federation,
    after: Federation,
    event: Event,
    references: Sequence[Federation],
    settings: ForgetSettings,
    cache: TrialCache,
) -> Facts:
    case = Case.of(before, event, 0, references)
    start = time.process_time()
    report = judge(case, after)
    seconds = time.process_time() - start
    findings = list(report.findings)
    if settings.audits == "ulira":
        by: By = "nothing" if settings.name == NO_OP else settings.unlearner
        findings += examine_records(
            before, event, by, settings.pairs,
            workers=cache.workers, folder=cache.home / "retrains", progress=cache.progress,
        )  # fmt: skip
    verdict = "VOID" if report.verdict == "VOID" else overall(findings)
    found = [f for f in findings if f.value is not None]
    exact = settings.unlearner.exact if settings.unlearner else settings.name == "own"
    return {
        "verdict": verdict,
        "why": report.why,
        "escalates": verdict != "PASS" and not exact,
        "failed": ", ".join(f.check for f in found if f.verdict == "FAIL") or "none",
        "value": {f.check: f.value for f in found},
        "retrains": {f.check: f.reference for f in found},
        "margin": {f.check: f.margin for f in found if f.margin is not None},
        "verdicts": {f.check: f.verdict for f in found},
        "audit_seconds": seconds,
    }


def kept_for_forgetting(fed: Federation) -> dict[str, int]:
    """Return the bytes kept for forgetting: snapshots of the server, and logs of devices."""
    server = [len(params.to_bytes(s.values)) for s in fed.now.state.memory]
    rows = [r for _, _, r in fed.now.vault.log.entries]
    parts = [{"owner": r.owner, "index": r.index, "value": r.value} for r in rows]
    return {"server": sum(server), "client": sum(len(params.to_bytes(p)) for p in parts)}


def _leaver(before: Federation, after: Federation, exact: Params, client: int) -> Facts:
    """Measure a model on the nodes of the removed client, in the old graph, and attack it."""
    retrained = before.with_(state=replace(before.now.state, public=exact))
    unlearnt = before.with_(state=after.now.state)
    mine = torch.tensor([client], device=before.world.members.device)
    found: Facts = dict(unlearnt.evaluate(clients=mine))
    rate = mait.rate(before, after, retrained, client)
    found |= {"loss AUC": mait.loss_auc(before, after, client)}
    return {**found, "MIA": rate.unlearnt, "MIA gap": rate.gap}


# -- numbers --------------------------------------------------------------------------------------


def _distance(mine: Params, theirs: Params) -> float:
    """Return ||w - w'|| / ||w'|| over the parameters both have."""
    names = [n for n in theirs if n in mine and mine[n].shape == theirs[n].shape]
    gap = {n: mine[n].double() - theirs[n].double() for n in names}
    return params.norm(gap) / max(params.norm({n: theirs[n] for n in names}), 1e-12)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def mean_of(found: Sequence[Mapping[str, Any]]) -> Facts:
    """Combine facts of several requests: means of numbers, counts of words."""
    return {key: _one([f[key] for f in found if key in f]) for key in found[0]}


def each_of(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the quality after each request: for remaining clients, and for the removed one."""
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


def run_one(cell: Cell, folder: Path, cache: TrialCache, resume: bool = True) -> Result:
    """Run a cell of any kind: a trial of an unlearner, a stream of blocks, or plain training.

    In one thread: more threads would add in another order, and the last bits would depend on the
    number of cores.
    """
    with one_thread():
        if cell.forget is not None:
            return run_cell(cell, folder, cache)
        runner = stream_run if cell.data.variant else experiment
        return runner.run_cell(cell, folder, resume, cache.watch)
