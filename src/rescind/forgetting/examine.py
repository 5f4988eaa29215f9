"""Audit one forgetting: train reference models in worker processes, then run the checks."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from rescind.audits import backdoor as trigger
from rescind.audits import battery, canary, durability, layout, relearn, sequence
from rescind.audits.battery import FULL, NO_OP, SHIFT, STANDARD, SUBJECT, Check, Judged, Report
from rescind.audits.case import AUDITOR, Case
from rescind.audits.controls import purged, shifted
from rescind.audits.finding import Finding, overall
from rescind.audits.hold_out import HoldOut
from rescind.audits.ulira import PAIRS, shadow
from rescind.audits.ulira import judge as judge_records
from rescind.audits.verdict import FEWEST
from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.doing import Step, step
from rescind.core.federation import Federation
from rescind.core.files import make_folder
from rescind.core.method import Unlearner
from rescind.core.named import Named
from rescind.core.records import Event
from rescind.core.request import Request
from rescind.core.settings import to_table
from rescind.errors import ConfigError
from rescind.forgetting.parallel import one_thread, spread
from rescind.forgetting.pipeline import check_unlearner, unlearn_and_purge
from rescind.forgetting.pipeline import retrains as trains_again
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.provenance import version_of, versions

log = logging.getLogger(__name__)

Level = Literal["standard", "full"]
By = Unlearner | Literal["nothing"] | None
"""The unlearner under audit. None: not told. "nothing": the no-op."""
SEQUENCE = tuple(c for c in STANDARD if c.name in ("Q1 population", "kept", "Q8 quality"))
COMMITMENTS = "hold-out.txt"
"""One line per audit: when its hold-out attack was drawn, and the digest of the draw."""
Progress = Callable[[int, int], Any]
"""Called with (finished, total) reference models."""


def examine(
    before: Federation,
    after: Federation,
    event: Event | Named | Request,
    references: Sequence[Federation] = (),
    level: Level = "standard",
    ulira: bool = False,
    *,
    unlearner: By = None,
    seed: int = 0,
    workers: int = 2,
    count: int = FEWEST,
    pairs: int = PAIRS,
    folder: Path | str | None = None,
    progress: Progress = lambda *_: None,
    lot: HoldOut | None = None,
) -> Report:
    """Compare a federation after forgetting with models that never had the records.

    references: retrained models under other seeds. Default: `count` of them are trained, or read
    from `folder`    level: "full" also plants a backdoor, trains on, and answers fifty small
    requests (minutes)    ulira: also train `pairs` x 2 shadow models for single records
    unlearner: also run on planted records. Default: who made `after` by `unlearn`, else the
    federation's method    lot: the hold-out attack (`committed`), to be drawn before the unlearner
    runs. Default: drawn now
    """
    if level not in ("standard", "full"):
        raise ConfigError(f"level must be 'standard' or 'full', got '{level}'.")
    if unlearner not in (None, "nothing"):
        check_unlearner(unlearner, "audit")
    folder = None if folder is None else Path(folder)
    # Audits report their own progress.
    before, after = replace(before, watch=()), replace(after, watch=())
    event = before.request(event).event
    Case.of(before, event, seed)  # fail before any training if the request cannot be audited
    unlearner = unlearner or _answered_by(after)
    refs = list(references) or retrains(before, event, count, seed, workers, folder, progress)
    if len(refs) < FEWEST:
        raise ConfigError(
            f"an audit needs at least {FEWEST} retrained models, got {len(refs)}. With fewer, "
            f"it is unknown how much models differ by chance. Leave `references` out to train them."
        )
    case = Case.of(before, event, seed, refs)
    report = examine_case(case, after, unlearner, lot, level)
    more: list[Finding] = []
    if level == "full":
        more += _full(case, after, unlearner, workers, folder, progress)
    if ulira:
        more += examine_records(before, event, unlearner, pairs, seed, workers, folder, progress)
    return _with(report, more)


def examine_case(
    case: Case,
    after: Federation,
    unlearner: By = None,
    lot: HoldOut | None = None,
    level: Level = "standard",
) -> Report:
    """Run the checks of one request on one answer to it.

    What is known of the reference models and the controls stays in the case, for further answers.
    """
    checks = [*(FULL if level == "full" else STANDARD), battery.drawn(lot or HoldOut())]
    with one_thread():
        found = canary.judged(case, functools.partial(forgotten, unlearner)) if case.ranks else None
    report = judge(case, after, checks, [found] if found else [])
    return _with(report, [layout.compared(after, case.references)])


def _answered_by(after: Federation) -> By:
    """Return who made an answer; None and a warning if it does not tell."""
    by = after.forgot_by
    if by is None:
        log.warning(
            "The model does not tell who made it forget, so planted records are forgotten by "
            "%s, the method of the federation. If something else made it, say so: unlearner=...",
            type(after.method).__name__,
        )
    return by


def _with(report: Report, more: Sequence[Finding]) -> Report:
    """Return the report with more findings."""
    findings = (*report.findings, *more)
    verdict = "VOID" if report.verdict == "VOID" else overall(findings)
    return replace(report, findings=findings, verdict=verdict)


audit = examine
"""The public name of `examine`."""


def committed(folder: Path) -> HoldOut:
    """Draw the hold-out attack of an audit, and write its digest down before any model is made."""
    lot = HoldOut()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / COMMITMENTS).open("a", encoding="utf-8") as file:
        file.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {lot.digest}\n")
        file.flush()
        os.fsync(file.fileno())
    return lot


def judge(
    case: Case,
    after: Federation,
    checks: Sequence[Check] = STANDARD,
    planted: Sequence[Judged] = (),
) -> Report:
    """Run the checks that need only the retrained models, on the subject and its controls.

    planted: outcomes on records of the auditor, which need the unlearner (`canary.judged`)
    """
    before, refs = case.before, case.references
    shift = case.cached("shifted", before, lambda: shifted(before))
    purge = case.cached("purged", before, lambda: purged(case))
    models = {SUBJECT: after, NO_OP: before, SHIFT: shift, battery.RETRAIN: refs[0]}
    models[battery.PURGE] = purge
    if not case.ranks:
        case = replace(case, references=tuple(_in_its_graph(before, f) for f in refs))
        models = {name: _in_its_graph(before, model) for name, model in models.items()}
    checks = [check for check in checks if check.applies(case)]
    answers = len(checks) * (len(models) + len(case.references))
    with step("asking all models, and resampling their answers", answers, "answers") as shown:
        found = [_judged(check, case, models, shown) for check in checks]
    return battery.report_of([*(one for one in found if one), *planted])


def _in_its_graph(before: Federation, model: Federation) -> Federation:
    """Put a model on the graph before the request: removed nodes need their neighbours."""
    vault = replace(model.now.vault, holdings=before.now.vault.holdings)
    return model.with_(vault=vault)


def _full(
    case: Case, after: Federation, by: By, workers: int, folder: Path | None, progress: Progress
) -> list[Finding]:
    """Run Q5, Q7, Q9 and Q10, which train further models."""
    unlearn = functools.partial(forgotten, by)
    with one_thread():
        found = [relearn.relearn(case, after)]
        found += [trigger.backdoor(case, unlearn)] if case.ranks else []
        found += durability.durability(case, after)
    lenders = len(torch.unique(case.before.world.shared.client))
    if lenders < sequence.REQUESTS:
        return found
    last, whole = sequence.sequence_case(case, unlearn, sequence.REQUESTS)
    seed = case.clock.seed - AUDITOR
    refs = retrains(case.before, whole, FEWEST, seed, workers, folder, progress)
    report = judge(Case.of(case.before, whole, seed, refs), last, SEQUENCE)
    measured = [f for f in report.findings if f.value is not None]
    return found + [replace(f, check=f"Q10 {f.check}") for f in measured]


def forgotten(unlearner: By, fed: Federation, event: Event) -> Federation:
    """Return the federation after unlearning a request and purging its traces."""
    if unlearner == "nothing":
        return fed
    rounds = fed.now.state.round if trains_again(unlearner or fed.method) else 0
    with step("forgetting", rounds, "rounds") as shown:
        return unlearn_and_purge(fed, fed.request(event), unlearner, (shown.count,)).fed


def _judged(check: Check, case: Case, models: dict[str, Federation], shown: Step) -> Judged | None:
    """Run one check on all models; None if it does not apply to this world.

    shown: counts the models that have been asked
    """
    # Harm to other users is not measured on controls, which would never be published.
    skipped = (NO_OP, SHIFT) if check.kind == "harm" else ()
    for role, fed in [*models.items(), *(("", other) for other in case.references)]:
        if role not in skipped:
            check.measure(case, fed)  # the case keeps it for the verdicts below
        shown.count()
    outcomes = {
        role: found
        for role, fed in models.items()
        if role not in skipped and (found := check.judge(case, fed))
    }
    if SUBJECT not in outcomes:
        return None
    points = tuple(m.point for r in case.references if (m := check.measure(case, r)))
    return Judged(check, outcomes, points, *battery.pictures(check, case, models))


# -- retrains -------------------------------------------------------------------------------------


def seeds_of(seed: int, count: int) -> list[int]:
    """Return the auditor's seeds for retraining: hashes, so that no run has used them."""
    bits = Clock(AUDITOR + seed).bits("audit retrains", torch.arange(count))
    return [int(b) & (2**31 - 1) for b in bits.tolist()]


def retrains(
    before: Federation,
    event: Event,
    count: int = FEWEST,
    seed: int = 0,
    workers: int = 2,
    folder: Path | None = None,
    progress: Progress = lambda *_: None,
) -> list[Federation]:
    """Train models without the records, for the same rounds under other seeds.

    folder: finished models are kept there, and reused by a digest of everything that decides them
    """
    before, seeds = _light(before), seeds_of(seed, count)
    empty = remaining(before, event)
    with _cache(folder) as cache:
        key = _key(before, event)
        found = {s: now for s in seeds if (now := _read(cache, key, s, empty))}
        todo = [s for s in seeds if s not in found]
        progress(len(found), count)
        with step("training models for the audit", count, "models", len(found)) as shown:
            for s, now in _trained(before, event, todo, workers, cache, key):
                found[s] = now
                shown.count()
                progress(len(found), count)
        return [replace(empty.fork(seed=s), now=found[s]) for s in seeds]


def _light(before: Federation) -> Federation:
    """Drop what retraining under another seed cannot use: watchers and restore points."""
    past = before.past and replace(before.past, points=())
    return replace(before, watch=(), keep_every=None, past=past)


def remaining(before: Federation, event: Event) -> Federation:
    """Return the world after a request, with initial values everywhere."""
    return before.apply(event).restart()


def retrain(before: Federation, event: Event, seed: int) -> Federation:
    """Retrain once without the records, under another seed."""
    with one_thread():
        if before.past is not None:
            return before.retrained(event, seed=seed)
        return remaining(before.fork(seed=seed), event).run(before.now.state.round)


def _key(before: Federation, event: Event) -> str:
    """Return the cache key of retrained models: data, request, method and library versions."""
    known = versions() | version_of(before.method)
    libraries = sorted((n, v) for n, v in known.items() if n != "commit")
    parts = [
        before.now.vault.holdings.digest(),
        before.world.digest(),
        event.digest(),
        str(to_table(before.method)),
        str([before.now.state.round, libraries]),
    ]
    return sha256("/".join(parts).encode()).hexdigest()


def _place(cache: Path, key: str, seed: int) -> Path:
    return cache / f"retrain-{key[:16]}-{seed}"


def _read(cache: Path, key: str, seed: int, empty: Federation) -> Any:
    found = resume(_place(cache, key, seed), key, empty)
    return found and found.now


def _trained(
    before: Federation, event: Event, todo: Sequence[int], workers: int, cache: Path, key: str
) -> Iterator[tuple[int, Any]]:
    """Train the missing models; yield each when it is finished and saved."""
    empty = remaining(before, event)
    work = functools.partial(_retrain, cache=str(cache), key=key)
    for s in spread(before, event, todo, workers, work, cache):
        yield s, _read(cache, key, s, empty)


def _retrain(before: Federation, event: Event, seed: int, cache: str, key: str) -> None:
    now = retrain(before, event, seed).now
    Checkpoints(_place(Path(cache), key, seed), 1, key).write(now, None)


# -- shadows (U-LiRA) -----------------------------------------------------------------------------


def examine_records(
    before: Federation,
    event: Event,
    unlearner: By = None,
    pairs: int = PAIRS,
    seed: int = 0,
    workers: int = 2,
    folder: Path | None = None,
    progress: Progress = lambda *_: None,
) -> list[Finding]:
    """Run Q3: likelihood ratios of single records, from `pairs` x 2 shadows that forgot half.

    folder: the answers of each shadow are saved there, so that a stopped audit can resume
    """
    if pairs < 2:
        raise ConfigError(f"U-LiRA needs at least two pairs of shadows, got {pairs}.")
    before = _light(before)
    case = Case.of(before, event, seed)
    by = "nothing" if unlearner == "nothing" else str(to_table(unlearner or before.method))
    key = sha256(f"{_key(before, event)}/{by}/{pairs}/{seed}".encode()).hexdigest()
    with _cache(folder) as cache:
        places = [cache / f"shadow-{key[:16]}-{n:03d}.safetensors" for n in range(2 * pairs)]
        todo = [n for n, path in enumerate(places) if not path.is_file()]
        progress(len(places) - len(todo), len(places))
        names = [str(path) for path in places]
        work = functools.partial(_shadow, pairs=pairs, seed=seed, by=unlearner, places=names)
        ready = len(places) - len(todo)
        with step("training shadows for the audit", len(places), "models", ready) as shown:
            for _ in spread(before, event, todo, workers, work, cache):
                shown.count()
                progress(shown.done, len(places))
        return judge_records(case, [params.load(path)[0] for path in places], pairs)


def _shadow(
    before: Federation, event: Event, number: int, pairs: int, seed: int, by: By, places: list[str]
) -> None:
    unlearn = functools.partial(forgotten, by)
    with one_thread():
        answers = shadow(Case.of(before, event, seed), number, pairs, unlearn)
    params.save(Path(places[number]), answers)


@contextmanager
def _cache(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        make_folder(folder)
        yield folder
        return
    with TemporaryDirectory(prefix="rescind-retrains-") as temporary:
        yield Path(temporary)
