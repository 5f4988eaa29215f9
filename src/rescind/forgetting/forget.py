"""Forgetting, from the request to the receipt: unlearn, purge, look for traces, audit, sign."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from rescind.audits.battery import Report
from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.method import Method, Unlearner
from rescind.core.records import Event, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.settings import chosen, fields_of, to_table
from rescind.errors import ConfigError
from rescind.forgetting.examine import examine
from rescind.forgetting.pipeline import Forgotten, unlearn_and_purge
from rescind.forgetting.purge import inventory
from rescind.forgetting.receipt import Done, Receipt, issue
from rescind.methods.unlearning.retrain import Retrain

Audits = Literal["standard", "full", "none"]
AUDITS = ("standard", "full", "none")
FEWEST = 100
"""Records that an audit needs. Of fewer, no check could notice that nothing was done, and numbers
about single records in a receipt would let guesses be tried."""


@dataclass(frozen=True)
class Evidence:
    """What there is to show for a forgetting."""

    receipt: Receipt
    key: bytes = field(repr=False)
    """Goes to the requester alone: with it the receipt can be matched with the records."""
    report: Report | None = None
    """The audit with its curves; None if none was asked for."""


def forget(
    fed: Federation,
    event: Event,
    method: Unlearner | None = None,
    audits: Audits = "standard",
    *,
    previous: bytes | None = None,
    data: str = "",
    folder: Path | None = None,
    workers: int = 2,
    watch: Callable[[int, int], Any] = lambda *_: None,
    away: Sequence[int] = (),
) -> tuple[Federation, Evidence]:
    """Forget the records of an Unshare, Erase or Withdraw; return the model and the evidence.

    method: an unlearner. Default: the federation's own method, which is exact unless it says
    otherwise    previous: the bytes of the last receipt, to be chained    data: digest of a public
    dataset    folder: where the audit keeps its retrains    watch: progress callback, called with
    (finished, total) reference models    away: clients whose devices cannot be reached; what they
    kept stays, and the receipt says so

    An approximate unlearner whose audit fails, or could not have failed, is followed by an exact
    one; a request of fewer than FEWEST records, which no audit can judge, goes there at once. The
    receipt says so. With audits = "none" the unlearner that was asked for is used.
    """
    if audits not in AUDITS:
        raise ConfigError(f"audits is one of {', '.join(AUDITS)}; got '{audits}'.")
    request = fed.request(event, away)
    count, unlearner = len(request.records), method or fed.method
    tried: Finding | None = None
    with TemporaryDirectory(prefix="rescind-retrains-") as room:
        # Two audits of one request compare with the same retrains.
        audit = functools.partial(
            examine, fed, event=request, level="full" if audits == "full" else "standard",
            workers=workers, folder=folder or Path(room), watch=watch,
        )  # fmt: skip
        if audits != "none" and count < FEWEST and not unlearner.exact and fed.past is not None:
            unlearner, tried = Retrain(), _unproven(unlearner, count)
        done = unlearn_and_purge(fed, request, unlearner).check()
        stale = done.fed.method.pending(done.fed) > 0  # the release in service has the records
        enough = audits != "none" and count >= FEWEST and not stale
        report = audit(done.fed, unlearner=unlearner) if enough else None
        if report and not unlearner.exact and (report.verdict == "FAIL" or _blind(report)):
            tried, first = _failed(unlearner, report), done
            done = unlearn_and_purge(fed, replace(request, away=()), Retrain()).check()
            done.cost.add(first.cost)
            report = audit(done.fed, unlearner=done.unlearner)
        if report and tried:
            report = replace(report, findings=(tried, *report.findings))
    alone = [tried] if tried else []
    findings = report.findings if report else [*alone, _unaudited(audits, count, stale)]
    claims = done.fed.method.claims(fed, done.fed)
    issued = issue(
        request.event,
        _done(fed, request, done, data),
        inventory(done.fed),
        findings,
        records=count,
        not_covered=[*_limits(fed, request), *claims.not_covered],
        claims=claims.plain,
        sealed_claims=claims.sealed,
        previous=previous,
    )
    return done.fed, Evidence(issued.receipt, issued.key, report)


def _blind(report: Report) -> bool:
    """Whether no check of an audit could have noticed that nothing was done."""
    forgetting = [j for j in report.judged if j.check.kind == "forgetting"]
    return bool(forgetting) and not any(j.powered for j in forgetting)


def _failed(unlearner: Unlearner, report: Report) -> Finding:
    """For the receipt: what was tried first, and why it was not enough."""
    checks = ", ".join(f.check for f in report.findings if f.verdict == "FAIL")
    why = f"failed its audit ({checks})" if checks else "no check of its audit could have failed"
    name = type(unlearner).__name__
    return Finding(
        "escalation",
        "SHOWN",
        note=f"{name} was tried first: {why}. Its model was thrown away, and the rounds were made "
        f"again without the records. Costs are those of both.",
    )


def _unproven(unlearner: Unlearner, many: int) -> Finding:
    """For the receipt: why the unlearner that was asked for was not even tried."""
    return Finding(
        "escalation",
        "SHOWN",
        note=f"{type(unlearner).__name__} was asked for. It is approximate, and of {many} records "
        f"no audit could tell what it leaves ({FEWEST} are needed), so the rounds were made again "
        f"without the records instead. Requests that come together in one file are audited as one.",
    )


def _done(fed: Federation, request: Request, done: Forgotten, data: str) -> Done:
    return Done(
        method=to_table(fed.method),
        unlearning=_by(done.unlearner),
        level=_level(fed, request, done),
        world_before=fed.world.digest(),
        world_after=done.fed.world.digest(),
        model_before=params.digest(fed.now.state.public),
        model_after=params.digest(done.fed.now.state.public),
        rounds=done.cost.rounds,
        client_rounds=done.cost.client_rounds,
        online=done.cost.online(request),
        seconds=done.cost.wall,
        data=data,
    )


def _by(unlearner: Unlearner) -> str:
    """The name of an unlearner, with what was chosen otherwise than it usually is."""
    name = unlearner.unlearning if unlearner.exact else type(unlearner).__name__
    own = settings_of_forgetting(type(unlearner))
    said = [f"{key} = {value}" for key, value in chosen(unlearner).items() if key in own]
    return f"{name} ({', '.join(said)})" if said else name


def settings_of_forgetting(cls: type[Unlearner]) -> list[str]:
    """Return the fields that decide how an unlearner forgets: those that no learner below it has.

    An exact one has none: there is one right result.
    """
    if cls.exact:
        return []
    learners = [base for base in cls.__mro__[1:] if issubclass(base, Method) and base.exact]
    learnt = {name for base in learners for name in fields_of(base)}
    return [name for name in fields_of(cls) if name not in learnt]


def _level(fed: Federation, request: Request, done: Forgotten) -> str:
    """Return how far the forgetting went, for what people are served now."""
    if not done.fed.method.settled(done.fed):
        return "L1"
    return "L3" if done.unlearner.exact and not _earlier(fed, request) else "L2"


def _earlier(fed: Federation, request: Request) -> bool:
    """Return whether a request reaches into blocks whose data is gone."""
    past = fed.past
    if past is None or past.base is None:
        return past is None
    holdings = fed.now.vault.holdings
    old = holdings.records[holdings.block < holdings.now]
    return isinstance(request.event, Withdraw) or bool(request.records.among(old).any())


def _limits(fed: Federation, request: Request) -> list[str]:
    """Return what this request in particular does not reach, in sentences."""
    said = []
    if _earlier(fed, request):
        said.append(
            "What the model learnt from the records in earlier blocks: their data is gone, so "
            "those rounds cannot be made again."
        )
    elif fed.world.block:
        said.append(
            "What the people concerned gave in earlier blocks, which this request does not name: "
            "the rounds of the present block were made again, those before it were not."
        )
    if isinstance(request.event, Unshare):
        said.append("The records themselves: the device keeps its own, and trains on them.")
    hosted = torch.tensor([number for number, _ in fed.world.hosted])
    if torch.any(torch.isin(request.people, hosted)):
        said.append("A client that the server hosts.")
    return said


def _unaudited(audits: Audits, many: int, stale: bool) -> Finding:
    if stale:
        why = (
            "The model in service is a release from before the request: audited is what the next "
            "release brings."
        )
        return Finding("audit", "UNAUDITED", note=why)
    why = (
        "No audit was asked for."
        if audits == "none"
        else f"So few records ({many}) that no check could notice doing nothing; it takes "
        f"{FEWEST}. Audit requests in batches."
    )
    return Finding("audit", "UNAUDITED", note=why)
