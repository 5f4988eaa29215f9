"""Run a battery on one forgetting: retrains in worker processes, kept on disk, then the checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from rescind.audits import backdoor as trigger
from rescind.audits import canary, durability, relearn, sequence
from rescind.audits.battery import (
    FULL,
    NO_OP,
    PURGE,
    RETRAIN,
    SHIFT,
    STANDARD,
    SUBJECT,
    Check,
    Judged,
    Report,
    pictures,
    report_of,
)
from rescind.audits.case import AUDITOR, Case
from rescind.audits.controls import purged, shifted
from rescind.audits.finding import Finding, overall
from rescind.audits.ulira import PAIRS, shadow
from rescind.audits.ulira import judge as judge_records
from rescind.audits.verdict import FEWEST
from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.records import Event
from rescind.core.request import Request
from rescind.core.settings import to_table
from rescind.errors import ConfigError
from rescind.forgetting.parallel import one_thread, spread
from rescind.forgetting.pipeline import unlearn_and_purge
from rescind.storage.checkpoints import Checkpoints, resume
from rescind.storage.provenance import versions

Level = Literal["standard", "full"]
By = Unlearner | Literal["nothing"] | None
"""The unlearner under audit; None: the federation's own method; "nothing": the no-op."""
SEQUENCE = tuple(c for c in STANDARD if c.name in ("Q1 population", "kept", "Q8 quality"))
Watch = Callable[[int, int], Any]
"""Is told (retrains there, retrains wanted)."""


def examine(
    before: Federation,
    after: Federation,
    event: Event | Request,
    references: Sequence[Federation] = (),
    level: Level = "standard",
    ulira: bool = False,
    *,
    unlearner: By = None,
    seed: int = 0,
    workers: int = 2,
    many: int = FEWEST,
    pairs: int = PAIRS,
    folder: Path | None = None,
    watch: Watch = lambda *_: None,
) -> Report:
    """Judge a federation that forgot, beside models that never had the records.

    references: retrains under other seeds; without them `many` are trained now, or read from
    `folder` where they were kept (one batch of requests needs them once)
    level: "full" also plants canaries and a trigger, lets models relearn and go on, and answers
    fifty small requests; minutes    ulira: shadows for single records, `pairs` x 2 of them
    unlearner: who forgot, for checks that let it forget something else, too; the method if left out
    """
    if level not in ("standard", "full"):
        raise ConfigError(f"an audit is 'standard' or 'full', not '{level}'.")
    before, after = (replace(f, watch=()) for f in (before, after))  # audits report themselves
    event = before.request(event).event
    Case.of(before, event, seed)  # a request that cannot be audited is refused before any training
    refs = list(references) or retrains(before, event, many, seed, workers, folder, watch)
    if len(refs) < FEWEST:
        raise ConfigError(
            f"an audit needs {FEWEST} retrains or more; got {len(refs)}. With fewer, nobody knows "
            f"how much models differ by chance. Leave `references` out to have them trained."
        )
    case = Case.of(before, event, seed, refs)
    report = judge(case, after, FULL if level == "full" else STANDARD)
    more: list[Finding] = []
    if level == "full":
        more += _slowly(case, after, unlearner, workers, folder, watch)
    if ulira:
        more += examine_records(before, event, unlearner, pairs, seed, workers, folder, watch)
    findings = (*report.findings, *more)
    verdict = "VOID" if report.verdict == "VOID" else overall(findings)
    return replace(report, findings=findings, verdict=verdict)


audit = examine
"""The public name of `examine`."""


def judge(case: Case, after: Federation, checks: Sequence[Check] = STANDARD) -> Report:
    """The checks that need no model beyond the retrains, on the subject and its controls."""
    before, refs = case.before, case.references
    models = {SUBJECT: after, NO_OP: before, SHIFT: shifted(before), RETRAIN: refs[0]}
    models[PURGE] = purged(case)
    if not case.ranks:
        case = replace(case, references=tuple(_in_its_graph(before, f) for f in refs))
        models = {name: _in_its_graph(before, model) for name, model in models.items()}
    return report_of([found for check in checks if (found := _judged(check, case, models))])


def _in_its_graph(before: Federation, model: Federation) -> Federation:
    """A model asked about nodes that left: they can be classified among their neighbours only."""
    vault = replace(model.now.vault, holdings=before.now.vault.holdings)
    return model.with_(vault=vault)


def _slowly(
    case: Case,
    after: Federation,
    unlearner: By,
    workers: int,
    folder: Path | None,
    watch: Watch,
) -> list[Finding]:
    """Q2, Q5, Q7, Q9 and Q10, which train models of their own."""
    unlearn = functools.partial(forgotten, unlearner)
    exact = unlearner != "nothing" and (unlearner or case.before.method).exact
    with one_thread():
        found = [canary.one_run(case, unlearn, exact)] if case.ranks else []
        found.append(relearn.relearn(case, after))
        found += [trigger.backdoor(case, unlearn)] if case.ranks else []
        found += durability.durability(case, after)
    lenders = len(torch.unique(case.before.world.shared.client))
    if lenders < sequence.REQUESTS:
        return found
    last, whole = sequence.sequence_case(case, unlearn, sequence.REQUESTS)
    seed = case.clock.seed - AUDITOR
    refs = retrains(case.before, whole, FEWEST, seed, workers, folder, watch)
    report = judge(Case.of(case.before, whole, seed, refs), last, SEQUENCE)
    return found + [
        replace(f, check=f"Q10 {f.check}") for f in report.findings if f.value is not None
    ]


def forgotten(unlearner: By, fed: Federation, event: Event) -> Federation:
    """What a pipeline makes of a request: the unlearner's story, and the platform's purge."""
    if unlearner == "nothing":
        return fed
    return unlearn_and_purge(fed, fed.request(event), unlearner).fed


def _judged(check: Check, case: Case, models: dict[str, Federation]) -> Judged | None:
    """One check on everything; None where it does not apply to this world."""
    # What harms others is no question for a model that nobody would publish.
    skipped = (NO_OP, SHIFT) if check.kind == "harm" else ()
    outcomes = {
        role: found
        for role, fed in models.items()
        if role not in skipped and (found := check.judge(case, fed))
    }
    if SUBJECT not in outcomes:
        return None
    points = tuple(m.point for r in case.references if (m := check.measure(case, r)))
    return Judged(check, outcomes, points, *pictures(check, case, models))


# -- retrains -------------------------------------------------------------------------------------


def seeds_of(seed: int, many: int) -> list[int]:
    """The auditor's seeds for retrains: hashes, so that no run was made with them."""
    bits = Clock(AUDITOR + seed).bits("audit retrains", torch.arange(many))
    return [int(b) & (2**31 - 1) for b in bits.tolist()]


def retrains(
    before: Federation,
    event: Event,
    many: int = FEWEST,
    seed: int = 0,
    workers: int = 2,
    folder: Path | None = None,
    watch: Watch = lambda *_: None,
) -> list[Federation]:
    """Models of the same law, had the records never been there: other seeds, same rounds.

    folder: finished ones are kept there and found again by a digest of all that made them
    """
    before, seeds = _light(before), seeds_of(seed, many)
    empty = remaining(before, event)
    with _room(folder) as room:
        key = _key(before, event)
        found = {s: now for s in seeds if (now := _read(room, key, s, empty))}
        todo = [s for s in seeds if s not in found]
        watch(len(found), many)
        for s, now in _trained(before, event, todo, workers, room, key):
            found[s] = now
            watch(len(found), many)
        return [replace(empty.fork(seed=s), now=found[s]) for s in seeds]


def _light(before: Federation) -> Federation:
    """Without what retrains under other seeds have no use for: watchers, points to go back to."""
    past = before.past and replace(before.past, points=())
    return replace(before, watch=(), keep_every=None, past=past)


def remaining(before: Federation, event: Event) -> Federation:
    """The world after a request, with first values everywhere."""
    return before.apply(event).restart()


def retrain(before: Federation, event: Event, seed: int) -> Federation:
    """One retrain without the records, under another seed."""
    with one_thread():
        if before.past is not None:
            return before.retrained(event, seed=seed)
        return remaining(before.fork(seed=seed), event).run(before.now.state.round)


def _key(before: Federation, event: Event) -> str:
    """What kept retrains belong to: the data, the request, the method, and these libraries."""
    made = sorted((n, v) for n, v in versions().items() if n != "commit")
    parts = [
        before.now.vault.holdings.digest(),
        before.world.digest(),
        event.digest(),
        str(to_table(before.method)),
        str([before.now.state.round, made]),
    ]
    return sha256("/".join(parts).encode()).hexdigest()


def _place(room: Path, key: str, seed: int) -> Path:
    return room / f"retrain-{key[:16]}-{seed}"


def _read(room: Path, key: str, seed: int, empty: Federation) -> Any:
    found = resume(_place(room, key, seed), key, empty)
    return found and found.now


def _trained(
    before: Federation, event: Event, todo: Sequence[int], workers: int, room: Path, key: str
) -> Iterator[tuple[int, Any]]:
    """The retrains still to be made, as they are finished; each is written down at once."""
    empty = remaining(before, event)
    work = functools.partial(_retrain, room=str(room), key=key)
    for s in spread(before, event, todo, workers, work):
        yield s, _read(room, key, s, empty)


def _retrain(before: Federation, event: Event, seed: int, room: str, key: str) -> None:
    now = retrain(before, event, seed).now
    Checkpoints(_place(Path(room), key, seed), 1, key).write(now, None)


# -- shadows (U-LiRA) -----------------------------------------------------------------------------


def examine_records(
    before: Federation,
    event: Event,
    unlearner: By = None,
    pairs: int = PAIRS,
    seed: int = 0,
    workers: int = 2,
    folder: Path | None = None,
    watch: Watch = lambda *_: None,
) -> list[Finding]:
    """Q3: likelihood ratios for single records, from `pairs` x 2 shadows that forgot half of them.

    unlearner: the pipeline under audit; None is the federation's own method, "nothing" the no-op
    folder: what each shadow said is kept there at once, so that a stopped audit goes on
    """
    if pairs < 2:
        raise ConfigError(f"U-LiRA needs two pairs of shadows or more; got {pairs}.")
    before = _light(before)
    case = Case.of(before, event, seed)
    told = "nothing" if unlearner == "nothing" else str(to_table(unlearner or before.method))
    key = sha256(f"{_key(before, event)}/{told}/{pairs}/{seed}".encode()).hexdigest()
    with _room(folder) as room:
        places = [room / f"shadow-{key[:16]}-{n:03d}.safetensors" for n in range(2 * pairs)]
        todo = [n for n, path in enumerate(places) if not path.is_file()]
        watch(len(places) - len(todo), len(places))
        work = functools.partial(_shadow, pairs=pairs, seed=seed, unlearner=unlearner)
        work = functools.partial(work, places=[str(p) for p in places])
        for done, _ in enumerate(spread(before, event, todo, workers, work), 1):
            watch(len(places) - len(todo) + done, len(places))
        return judge_records(case, [params.load(path)[0] for path in places], pairs)


def _shadow(
    before: Federation,
    event: Event,
    number: int,
    pairs: int,
    seed: int,
    unlearner: By,
    places: Sequence[str],
) -> None:
    unlearn = functools.partial(forgotten, unlearner)
    with one_thread():
        told = shadow(Case.of(before, event, seed), number, pairs, unlearn)
    params.save(Path(places[number]), told)


@contextmanager
def _room(folder: Path | None) -> Iterator[Path]:
    """The folder that was given, or one that goes away."""
    if folder is not None:
        yield folder
        return
    with TemporaryDirectory(prefix="rescind-retrains-") as made:
        yield Path(made)
