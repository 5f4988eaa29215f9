"""Forget from request to receipt: unlearn, purge, look for traces, audit, sign."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch

from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.claims import CASE, ITEMS, one_line
from rescind.core.federation import Federation
from rescind.core.method import Method, Unlearner
from rescind.core.named import Named
from rescind.core.records import Event, Unshare, Withdraw
from rescind.core.request import Request
from rescind.core.settings import chosen, fields_of, to_table
from rescind.errors import ConfigError
from rescind.forgetting.exactness import Exactness, checked, exactness
from rescind.forgetting.pipeline import (
    CostMeter,
    Forgotten,
    check_answers,
    retrains,
    subtracts,
    unlearn_and_purge,
    vouched,
)
from rescind.forgetting.purge import inventory
from rescind.methods.unlearning.retrain import Retrain
from rescind.privacy.keys import about_signer, new_secret, signing_key
from rescind.receipts.receipt import (
    Done,
    Draft,
    Issued,
    Kept,
    Receipt,
    finish,
    opened,
    prepare,
)  # fmt: skip
from rescind.receipts.words import NO_REPEAT, learns_on_devices
from rescind.storage.provenance import version_of

if TYPE_CHECKING:
    from rescind.audits.battery import Report

Audits = Literal["standard", "full", "none"]
AUDITS = ("standard", "full", "none")
FEWEST = 100
"""Least number of records to audit. With fewer, no check can detect a no-op, and numbers about
single records in a receipt would help an attacker to test guesses."""
WRONG = (
    "claims to be exact, but its result differs from that of training the rounds again: {}. That "
    "retraining was used; the costs of both are counted."
)
UNPROVEN = (
    f"is approximate, and the request has too few records to audit it ({FEWEST} are needed), so "
    f"the rounds were trained again instead."
)
TOO_FEW = "The request has too few records"


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of a forgetting.

    Of an additive learner, without an audit, it is drafted when it is first read, which takes
    longer than forgetting one person. Until then the federation as it was stays in memory.
    """

    make: Callable[[Draft], Issued] = field(repr=False)
    drafted: Callable[[], Draft] = field(repr=False)
    report: Report | None = None
    """The audit with its curves; None if there was none."""
    cost: CostMeter | None = None
    """What forgetting cost, without audit and receipt; None if the request was answered before."""

    @cached_property
    def issued(self) -> Issued:
        """Return the receipt with its key."""
        return self.make(self.draft)

    @cached_property
    def draft(self) -> Draft:
        """Return what the receipt states."""
        made = self.drafted()
        object.__setattr__(self, "drafted", lambda: made)  # lets go of the federation as it was
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evidence):
            return NotImplemented
        return (self.issued, self.report) == (other.issued, other.report)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def receipt(self) -> Receipt:
        return self.issued.receipt

    @property
    def key(self) -> bytes:
        """Return the key for the requester only: it matches the receipt with the records."""
        return self.issued.key

    @property
    def exact(self) -> Receipt:
        """Return the receipt with exact numbers, as the requester sees it."""
        return opened(self.receipt, self.key) if self.key else self.receipt


def forget(
    fed: Federation,
    event: Event | Named,
    method: Unlearner | None = None,
    audits: Audits = "standard",
    *,
    previous: bytes | None = None,
    data: str = "",
    folder: Path | None = None,
    workers: int = 2,
    progress: Callable[[int, int], Any] = lambda *_: None,
    away: Sequence[str | int] = (),
    not_covered: Sequence[str] = (),
    also_kept: Callable[[Federation], Sequence[Kept]] = lambda _: (),
    case: str = "",
    key: bytes = b"",
) -> tuple[Federation, Evidence]:
    """Forget the records of an Unshare, Erase or Withdraw; return the model and the evidence.

    method: an unlearner. Default: the federation's method
    previous: the bytes of the last receipt, to chain the new one to    data: digest of a public
    dataset    folder: where the audit keeps its retrained models    progress: called with
    (finished, total) reference models    away: original ids of users who cannot be reached; what
    they hold stays, as the receipt states    not_covered: what else it must name, such as copies
    also_kept: what is kept beside the federation that forgot, which it is called with    case: your
    number of the request, which strangers cannot read    key: the requester's. Default: a new one

    If the audit of an approximate unlearner does not pass, `Retrain` is used instead; for fewer
    than FEWEST records, which cannot be audited, it is used at once. An unlearner that claims to be
    exact is compared with `Retrain`, which is used if they differ. What fails of an exact answer is
    audited again with other models (`second_look`). The receipt states this. With
    audits = "none" the given unlearner is always used, its claims are not checked, and an
    approximate result counts as not shown (level L1). Controls (`Nothing`) cannot answer.
    """
    if audits not in AUDITS:
        raise ConfigError(f"audits must be one of {', '.join(AUDITS)}; got '{audits}'.")
    check_answers(method or fed.method)
    numbered = {CASE: one_line(case, "the case")} if case else {}
    request = fed.request(event, away)
    no_folder = audits == "none" or folder is not None
    with nullcontext("") if no_folder else TemporaryDirectory(prefix="rescind-retrains-") as made:
        kept = folder or Path(made)
        # Two audits of one request use the same retrained models, and the same attack by lot.
        if audits != "none":
            from rescind.forgetting.examine import committed, examine
            from rescind.forgetting.second_look import SEED, confirmed

            audit = functools.partial(
                examine, fed, event=request, level="full" if audits == "full" else "standard",
                workers=workers, folder=kept, progress=progress, lot=committed(kept),
            )  # fmt: skip
        done, said, shown = _answered(fed, request, method or fed.method, audits)
        stale = done.fed.method.pending(done.fed) > 0  # the published release still has the records
        enough = audits != "none" and len(request.records) >= FEWEST and not stale
        report = audit(done.fed, unlearner=done.unlearner) if enough else None
        if report and not done.unlearner.exact and report.verdict != "PASS":
            said, first = [_failed(done.unlearner, report, fed.past is not None)], done
            if fed.past is not None:
                done = unlearn_and_purge(fed, replace(request, away=()), Retrain()).check()
                done.cost.add(first.cost)
                shown = None
                report = audit(done.fed, unlearner=done.unlearner)
        if report and report.verdict == "FAIL" and done.unlearner.exact:
            shown = shown or exactness(done)
            if shown.shown:
                again = functools.partial(audit, done.fed, unlearner=done.unlearner)
                report, looked = confirmed(report, functools.partial(again, seed=SEED))
                said.append(looked)

    # A key that cannot be used is told now.
    at, signer, secret = datetime.now(UTC), signing_key(), key or new_secret()
    audited = report.findings if report else (_unaudited(audits, stale, done.unlearner),)
    verdict = report.verdict if report else "UNAUDITED"

    def findings(shown: Exactness) -> list[Finding]:
        claimed = [shown.finding] if done.unlearner.exact else []
        return [*said, *claimed, *audited]

    def drafted() -> Draft:
        known, claims = shown or exactness(done), done.fed.method.claims(fed, done.fed)
        level = _level(fed, request, done, known.shown, verdict)
        return prepare(
            request.event,
            _done(fed, request, done, data, level),
            [*inventory(done.fed), *also_kept(done.fed)],
            findings(known),
            secret,
            records=request.count,
            not_covered=[*_limits(fed, request), *claims.not_covered, *not_covered],
            claims={**claims.plain, **known.claims, **about_signer()},
            bound_claims={**claims.bound, **numbered, **_items(fed, request)},
            sealed_claims=claims.sealed,
            at=at,
            labels=fed.labels,
            code=version_of(fed.method, done.unlearner),
        )

    make = functools.partial(finish, key=secret, previous=previous, signer=signer)
    if report:
        shown = shown or exactness(done)
        report = replace(report, findings=tuple(findings(shown)))
    evidence = Evidence(make, drafted, report, done.cost)
    if audits != "none" or not subtracts(done.unlearner):
        evidence.draft  # noqa: B018 - audits and retraining take longer
    return done.fed, evidence


def _answered(
    fed: Federation, request: Request, unlearner: Unlearner, audits: Audits
) -> tuple[Forgotten, list[Finding], Exactness | None]:
    """Forget as asked, or by retraining where a claim is wrong or could not be audited.

    Exactness is None if it was not checked yet.
    """
    said: list[Finding] = []
    if audits != "none" and fed.past is not None:
        if unlearner.exact and not vouched(unlearner):
            done, shown, wrong = checked(fed, request, unlearner)
            return (
                done.check(),
                [_escalated(unlearner, WRONG.format(", ".join(wrong)))] if wrong else [],
                shown,
            )
        if not unlearner.exact and len(request.records) < FEWEST:
            unlearner, said = Retrain(), [_escalated(unlearner, UNPROVEN)]
    return unlearn_and_purge(fed, request, unlearner).check(), said, None


def _escalated(unlearner: Unlearner, text: str) -> Finding:
    """Report in the receipt what was asked for or tried first, and why it was not used."""
    return Finding("escalation", "SHOWN", note=f"{type(unlearner).__name__} {text}")


def _failed(unlearner: Unlearner, report: Report, again: bool) -> Finding:
    """Report what an audit rejected. again: the rounds can be trained again"""
    checks = ", ".join(f.check for f in report.findings if f.verdict == "FAIL")
    why = f"it failed its audit ({checks})" if checks else f"its audit was {report.verdict}"
    what = (
        "The rounds were trained again instead; the costs of both are counted."
        if again
        else "There is no history to train again: it is not shown that the influence was removed."
    )
    return _escalated(unlearner, f"was tried first, and {why}. {what}")


def _done(fed: Federation, request: Request, done: Forgotten, data: str, level: str) -> Done:
    return Done(
        method=to_table(fed.method),
        unlearning=NO_REPEAT if _unchanged(fed, request, done) else _by(done.unlearner),
        level=level,
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
    """Return how it was forgotten, with settings that differ from the defaults.

    Only where the platform's own code does it, in words ("Retrain"); else by the name of the class.
    """
    name = unlearner.unlearning if vouched(unlearner) else type(unlearner).__name__
    own = settings_of_forgetting(type(unlearner))
    changed = [f"{key} = {value}" for key, value in chosen(unlearner).items() if key in own]
    return f"{name} ({', '.join(changed)})" if changed else name


def settings_of_forgetting(cls: type[Unlearner]) -> list[str]:
    """Return the fields that decide how an unlearner forgets: those not inherited from a learner.

    An exact unlearner has none, because only one result is correct.
    """
    if cls.exact:
        return []
    learners = [base for base in cls.__mro__[1:] if issubclass(base, Method) and base.exact]
    learnt = {name for base in learners for name in fields_of(base)}
    return [name for name in fields_of(cls) if name not in learnt]


def _level(fed: Federation, request: Request, done: Forgotten, shown: bool, verdict: str) -> str:
    """Return the level of forgetting of the model that is in use now: only what is shown counts.

    shown: the platform vouches for an exact result; what a method says of itself does not count
    verdict: of the audit. An approximate result needs a PASS, and a FAIL contradicts an exact one
    """
    if not done.fed.method.settled(done.fed) or _unchanged(fed, request, done):
        return "L1"
    if shown and verdict != "FAIL":
        return "L2" if _earlier(fed, request) else "L3"
    return "L2" if verdict == "PASS" else "L1"


def _unchanged(fed: Federation, request: Request, done: Forgotten) -> bool:
    """Return whether a model that learnt from the records in an earlier block is as it was."""
    if not retrains(done.unlearner) or done.cost.rounds or not _earlier(fed, request):
        return False
    return params.digest(fed.now.state.public) == params.digest(done.fed.now.state.public)


def _earlier(fed: Federation, request: Request) -> bool:
    """Return whether a request concerns blocks whose data was deleted."""
    past = fed.past
    if past is None or past.base is None:
        return past is None
    holdings = fed.now.vault.holdings
    old = holdings.records[holdings.block < holdings.now]
    return isinstance(request.event, Withdraw) or bool(request.records.among(old).any())


def _items(fed: Federation, request: Request) -> dict[str, str]:
    """Return the claim of how many items the records are. A graph has no items."""
    if fed.now.vault.holdings.graph is not None:
        return {}
    return {ITEMS: str(len(torch.unique(request.records.pairs())))}


def _only_the_loan(fed: Federation, request: Request) -> bool:
    """Return whether the model still learns from the records, on devices."""
    unshared = isinstance(request.event, Unshare)
    return unshared and learns_on_devices(to_table(fed.method))


def _limits(fed: Federation, request: Request) -> list[str]:
    """Return what this request does not cover, in sentences."""
    limits = []
    if _earlier(fed, request):
        limits.append(
            "What the model learnt from the records in earlier blocks: their data was deleted, so "
            "those rounds cannot be trained again."
        )
    elif fed.world.block:
        limits.append(
            "Data of the same people in earlier blocks, which this request does not name: only the "
            "rounds of the present block were trained again."
        )
    if isinstance(request.event, Unshare):
        learns = ", and trains on them" if _only_the_loan(fed, request) else ""
        limits.append(f"The records themselves: the device keeps them{learns}.")
    hosted = torch.tensor([number for number, _ in fed.world.hosted])
    if torch.any(torch.isin(request.people, hosted)):
        limits.append("A client that the server hosts.")
    return limits


def _unaudited(audits: Audits, stale: bool, unlearner: Unlearner) -> Finding:
    if stale:
        why = "The published model was released before the request. Audit one made after it."
    elif audits == "none":
        why = "No audit was requested."
    else:
        why = (
            f"{TOO_FEW}: no check could tell whether they were forgotten. At least {FEWEST} are "
            f"needed."
        )
    if not unlearner.exact:
        why += (
            f" {type(unlearner).__name__} is approximate, so it is not shown that the influence of "
            f"the records is gone from the model."
        )
    return Finding("audit", "UNAUDITED", note=why)
