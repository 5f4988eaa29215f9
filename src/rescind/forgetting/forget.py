"""Forgetting, from the request to the receipt: unlearn, purge, look for traces, audit, sign."""

from __future__ import annotations

import functools
import time
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
from rescind.core.method import Method
from rescind.core.records import Erase, Event, Unshare, Withdraw, concerned
from rescind.core.run_state import RoundResult
from rescind.core.settings import chosen, fields_of, to_table
from rescind.errors import BoundaryError, ConfigError
from rescind.forgetting.claims import claims_of
from rescind.forgetting.examine import examine
from rescind.forgetting.purge import inventory, purge, requested, traces
from rescind.forgetting.receipt import Done, Receipt, issue
from rescind.methods.additive._exchange import outstanding
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.releases import waiting
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


@dataclass
class CostMeter:
    """A watcher that counts what unlearning costs."""

    rounds: int = 0
    client_rounds: int = 0
    who: set[int] = field(default_factory=set)

    def __call__(self, moment: RoundResult) -> None:
        self.rounds += 1
        for role, total in moment.sums.items():
            if role != "host":
                self.client_rounds += total.clients
                self.who |= set(total.who.tolist())


def forget(
    fed: Federation,
    event: Event,
    method: Method | None = None,
    audits: Audits = "standard",
    *,
    previous: bytes | None = None,
    data: str = "",
    folder: Path | None = None,
    workers: int = 2,
    watch: Callable[[int, int], Any] = lambda *_: None,
    away: Sequence[int] = (),
) -> tuple[Federation, Evidence]:
    """Forget the records of an Unshare, Erase or Withdraw; the model and what proves it.

    method: an unlearner; by default the federation's own, which is exact unless it says otherwise
    previous: the bytes of the last receipt, to be chained    data: digest of a public dataset
    folder: where the audit keeps its retrains    watch: told (retrains there, retrains wanted)
    away: clients whose devices cannot be reached; what they kept stays, and the receipt says so

    An approximate unlearner whose audit fails, or could not have failed, is followed by an exact
    one; a request of fewer than FEWEST records, which no audit can judge, goes there at once. The
    receipt says so. Whoever asks for no audit gets the unlearner they named.
    """
    if not isinstance(event, Unshare | Erase | Withdraw):
        raise ConfigError(
            f"{type(event).__name__} asks for nothing to be forgotten. "
            f"Give an Unshare, an Erase or a Withdraw."
        )
    if audits not in AUDITS:
        raise ConfigError(f"audits is one of {', '.join(AUDITS)}; got '{audits}'.")
    spent, many = CostMeter(), len(requested(fed, event))
    with TemporaryDirectory(prefix="rescind-retrains-") as room:
        # Two audits of one request compare with the same retrains.
        audit = functools.partial(
            examine, fed, event=event, level="full" if audits == "full" else "standard",
            workers=workers, folder=folder or Path(room), watch=watch,
        )  # fmt: skip
        unlearner, tried = method or fed.method, None
        if audits != "none" and many < FEWEST and not unlearner.exact and fed.past is not None:
            unlearner, tried = Retrain(), _unproven(unlearner, many)
        after, seconds = _forgotten(fed, event, unlearner, spent, away)
        stale = waiting(after) > 0  # devices are still sent a release that has the records
        enough = audits != "none" and many >= FEWEST and not stale
        report = audit(after, unlearner=unlearner) if enough else None
        if report and not unlearner.exact and (report.verdict == "FAIL" or _blind(report)):
            tried, unlearner = _failed(unlearner, report), Retrain()
            after, more = _forgotten(fed, event, unlearner, spent)
            seconds, report = seconds + more, audit(after, unlearner=unlearner)
        if report and tried:
            report = replace(report, findings=(tried, *report.findings))
    done = _done(fed, after, unlearner, event, spent, seconds, data)
    alone = [tried] if tried else []
    findings = report.findings if report else [*alone, _unaudited(audits, many, stale)]
    claims = claims_of(fed, after)
    issued = issue(
        event,
        done,
        inventory(after),
        findings,
        records=many,
        not_covered=[*_limits(fed, event), *claims.not_covered],
        claims=claims.plain,
        sealed_claims=claims.sealed,
        previous=previous,
    )
    return after, Evidence(issued.receipt, issued.key, report)


def _forgotten(
    fed: Federation, event: Event, unlearner: Method, spent: CostMeter, away: Sequence[int] = ()
) -> tuple[Federation, float]:
    """Unlearnt and purged, and in how many seconds; whoever leaves a trace gets no receipt."""
    begun = time.perf_counter()
    watched = replace(fed, watch=(*fed.watch, spent))
    if not away:
        after = unlearner.unlearn(watched, event)
    elif isinstance(unlearner, Gram):
        after = unlearner.forget(watched, event, away)
    else:
        raise ConfigError(
            f"{type(unlearner).__name__} forgets by rounds in which devices may be missing anyway; "
            f"only Gram takes a list of devices that are away."
        )
    after = purge(fed, replace(after, watch=fed.watch), event, unlearner.exact)
    seconds = time.perf_counter() - begun
    left = traces(after, event, fed, made=not unlearner.exact)
    if left:
        raise BoundaryError(
            f"{type(unlearner).__name__} left traces of the request: "
            + ", ".join(f"{count} in {place}" for place, count in left.items())
            + ". This is a defect of the method; retrain instead."
        )
    return after, seconds


def _blind(report: Report) -> bool:
    """Whether no check of an audit could have noticed that nothing was done."""
    forgetting = [j for j in report.judged if j.check.kind == "forgetting"]
    return bool(forgetting) and not any(j.powered for j in forgetting)


def _failed(unlearner: Method, report: Report) -> Finding:
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


def _unproven(unlearner: Method, many: int) -> Finding:
    """For the receipt: why the unlearner that was asked for was not even tried."""
    return Finding(
        "escalation",
        "SHOWN",
        note=f"{type(unlearner).__name__} was asked for. It is approximate, and of {many} records "
        f"no audit could tell what it leaves ({FEWEST} are needed), so the rounds were made again "
        f"without the records instead. Requests that come together in one file are audited as one.",
    )


def _done(
    fed: Federation,
    after: Federation,
    unlearner: Method,
    event: Event,
    spent: CostMeter,
    seconds: float,
    data: str,
) -> Done:
    people = set(concerned(event).tolist())
    return Done(
        method=to_table(fed.method),
        unlearning=_by(unlearner),
        level=_level(fed, after, unlearner, event),
        world_before=fed.world.digest(),
        world_after=after.world.digest(),
        model_before=params.digest(fed.now.state.public),
        model_after=params.digest(after.now.state.public),
        rounds=spent.rounds,
        client_rounds=spent.client_rounds,
        online={"requester": len(people & spent.who), "others": len(spent.who - people)},
        seconds=seconds,
        data=data,
    )


def _by(unlearner: Method) -> str:
    """The name of an unlearner, with what was chosen otherwise than it usually is."""
    name = unlearner.unlearning if unlearner.exact else type(unlearner).__name__
    own = settings_of_forgetting(type(unlearner))
    said = [f"{key} = {value}" for key, value in chosen(unlearner).items() if key in own]
    return f"{name} ({', '.join(said)})" if said else name


def settings_of_forgetting(cls: type[Method]) -> list[str]:
    """The fields that decide how an unlearner forgets: those that no learner below it has.

    Who is exact forgets as it learnt: there is one right result.
    """
    if cls.exact:
        return []
    learners = [base for base in cls.__mro__[1:] if issubclass(base, Method) and base.exact]
    learnt = {name for base in learners for name in fields_of(base)}
    return [name for name in fields_of(cls) if name not in learnt]


def _level(fed: Federation, after: Federation, unlearner: Method, event: Event) -> str:
    """How far the forgetting went, for what people are served now."""
    if waiting(after) or (isinstance(after.method, Gram) and outstanding(after.now.state.own)):
        return "L1"
    return "L3" if unlearner.exact and not _earlier(fed, event) else "L2"


def _earlier(fed: Federation, event: Event) -> bool:
    """Whether a request reaches into blocks whose data nobody has any more."""
    past = fed.past
    if past is None or past.base is None:
        return past is None
    holdings, wanted = fed.now.vault.holdings, requested(fed, event)
    old = holdings.records[holdings.block < holdings.now]
    return isinstance(event, Withdraw) or bool(wanted.among(old).any())


def _limits(fed: Federation, event: Event) -> list[str]:
    """What this request in particular does not reach."""
    said = []
    if _earlier(fed, event):
        said.append(
            "What the model learnt from the records in earlier blocks: their data is gone, so "
            "those rounds cannot be made again."
        )
    elif fed.world.block:
        said.append(
            "What the people concerned gave in earlier blocks, which this request does not name: "
            "the rounds of the present block were made again, those before it were not."
        )
    if isinstance(event, Unshare):
        said.append("The records themselves: the device keeps its own, and trains on them.")
    if torch.any(torch.isin(concerned(event), torch.tensor([n for n, _ in fed.world.hosted]))):
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
