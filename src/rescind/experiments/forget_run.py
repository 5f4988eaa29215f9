"""Answer a request to a run on disk, and purge the old run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.params import digest, nbytes
from rescind.core.records import Event, Withdraw
from rescind.core.request import Request
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.experiments.beyond_run import told_of_rows
from rescind.experiments.cell import FILTERS
from rescind.experiments.counterfactual import open_run
from rescind.experiments.learning_run import measured_users
from rescind.experiments.left_behind import Rows, copies, later_runs, of_people, rows_asked
from rescind.experiments.read_request import DRAW, Kind, NamedRecords, Source, read_request
from rescind.experiments.stream_run import measured_again
from rescind.experiments.validation import quality
from rescind.forgetting.asked_before import AskedBefore
from rescind.forgetting.forget import Audits, Evidence, forget
from rescind.forgetting.parallel import one_thread
from rescind.forgetting.purge import kept_list
from rescind.forgetting.receipt import Issued, Kept, parse, write_keys
from rescind.forgetting.receipt_html import page
from rescind.forgetting.run_chain import check_not_outlived
from rescind.forgetting.run_receipt import facts_about
from rescind.forgetting.succession import (
    KEY,
    RECEIPT,
    begin,
    commit,
    draft,
    last_receipt,
    moved_request,
    settle,
)  # fmt: skip
from rescind.privacy.accountant import guarantee
from rescind.privacy.gaussian import DELTA
from rescind.privacy.keys import erasure_key, read_secret
from rescind.storage.federations import save_federation
from rescind.storage.provenance import version_of, versions
from rescind.storage.run_folder import (
    FORGOT,
    check_finished,
    first_of_its_name,
    has_model,
    read_facts,
    working_on,
    write_facts,
)


@dataclass(frozen=True)
class Answer:
    """An answered request."""

    fed: Federation | None
    """The model after; None if a later request has replaced it."""
    evidence: Evidence
    folder: Path
    """The new run."""
    key_file: Path
    """The requester's key."""
    later_runs: str = ""
    """What the request does to later runs on the same dataset, in a sentence."""


def check_requests(run: Path, kind: Kind, sources: Sequence[Source]) -> None:
    """Refuse several requests together if one of them names somebody who is not there.

    Otherwise the ones before it would have been answered when it is found.
    """
    if len(sources) < 2 or settle(run) is not None:
        return
    fed, before = open_run(run, repeatable=False), AskedBefore.read(run)
    for source in sources:
        fed.request(read_request(fed, kind, source, before))


def answer(
    run: Path,
    kind: Kind,
    source: Source,
    method: Unlearner | None = None,
    audits: Audits = "standard",
    out: Path | None = None,
    workers: int = 2,
    watch: tuple[Callable[..., Any], ...] = (),
    on_retrain: Callable[[int, int], Any] = lambda *_: None,
    on_start: Callable[[Federation, Event, int], Any] = lambda *_: None,
    away: Sequence[str] = (),
    everywhere: bool | None = None,
    case: str = "",
    parts: bool = False,
    known_as: str = "",
) -> Answer:
    """Answer a request to a run: write a new run without the records, purge the old, sign.

    A request that was interrupted is finished first (`succession`); the same request again gives
    its answer. on_retrain: called with (finished, total) reference models    on_start: called with
    the run, the request and its number of records    away: ids of users whose devices cannot be
    reached    everywhere: also leave the rows out of every other run on this dataset from now on.
    Default: of imported data, except for requests that were drawn    case: the operator's number
    of the request    parts: whether each of several people gets their part of the request
    known_as: the digest by which the request is known. Default: that of these words
    """
    asked = known_as or request_digest(kind, source)
    done = settle(run)
    if done is not None and done.is_dir() and asked == moved_request(run):
        said = _listed_afterwards(read_facts(done) or {}, kind, source) if everywhere else ""
        return replace(answered_in(done), later_runs=said)
    check_finished(run)
    with working_on(run) as scratch:
        check_finished(run)  # another command may have replaced it before the lock was free
        facts = read_facts(run) or {}
        fed = open_run(run, repeatable=False)
        with _told_of_rows(facts, fed, source):
            event = read_request(fed, kind, source, AskedBefore.read(run))
            request = fed.request(event)
            fed.apply(event)  # fail before any output if the request is invalid
        check_not_outlived(run)  # not first: what was erased before has its receipt
        new = out or _next(run)
        if new.exists() and any(new.iterdir()):
            raise ConfigError(f"{new} is not empty. Choose another folder with --out.")
        previous = last_receipt(run)
        listed = is_listed(facts, source, everywhere)
        rows = rows_asked(facts, fed, request)
        on_start(fed, event, request.count)
        watched = replace(fed, watch=(*fed.watch, *watch))
        with one_thread():  # as the run learned
            after, evidence = forget(
                watched, event, method, audits,
                previous=previous, data=_public_data(facts), folder=scratch, workers=workers,
                progress=on_retrain,
                not_covered=[*copies(facts, event, listed, rows), *_chosen(facts)],
                also_kept=lambda after: _lists(run, facts, listed, _withheld(fed, after, request)),
                away=away, case=case,
            )  # fmt: skip
        after = replace(after, watch=())
        folder = begin(run, new, asked)
        save_federation(after, folder / "model")
        withheld = _withheld(fed, after, request)
        (Blocklist.read(run) | withheld).write(folder)
        if listed:
            withheld.add_to_dataset(facts["data"]["name"])
        write_facts(folder, _facts(facts, after, evidence))
        write_keys(evidence.key, folder / RECEIPT)
        findings = evidence.report.findings if evidence.report else None
        shown = page(evidence.receipt, findings, key=evidence.key, parts=parts)
        draft(folder, run, new, evidence.receipt, shown.encode())
        commit(run, new)
    return Answer(after, evidence, new, new / KEY, later_runs(facts, event, listed, rows))


@contextmanager
def _told_of_rows(facts: dict[str, Any], fed: Federation, source: Source) -> Iterator[None]:
    """Add to a refusal that the data has rows which the run has not learnt, if it has."""
    try:
        yield
    except (ConsentError, DataError) as error:
        if more := told_of_rows(facts, fed, source):
            error.args = (f"{error} {more}", *error.args[1:])
        raise


def _withheld(before: Federation, after: Federation, request: Request) -> Blocklist:
    """Return the list of what this request removed."""
    event, graph = request.event, before.now.vault.holdings.graph
    left = after.now.vault.holdings.graph
    if graph is None or left is None:
        return Blocklist().after(event, request.records, before.labels)
    listed = Blocklist().with_lost(graph, left)
    if isinstance(event, Withdraw):
        listed = listed.with_withdrawn(before.labels.user_id(event.client))
    return listed


def _lists(run: Path, facts: dict[str, Any], listed: bool, withheld: Blocklist) -> list[Kept]:
    """Name the lists of what must not be learnt again, as they are after this request."""
    kept = [kept_list("of this run", (Blocklist.read(run) | withheld).nbytes)]
    if listed:
        known = Blocklist.of_dataset(facts["data"]["name"])
        kept.append(kept_list("of the data", (known | withheld).nbytes))
    return kept


def request_digest(kind: Kind, source: Source) -> str:
    """Return a digest of a request under a secret, to recognise it when it is repeated."""
    if isinstance(source, NamedRecords):
        source = "\0".join((source.user, *sorted(source.items)))
    named = kind != "withdraw" and Path(source).is_file()
    try:
        content = Path(source).read_bytes() if named else source.encode()
    except OSError:
        content = b""  # `read_request` tells what is wrong with the file
    hashed = hashlib.blake2b(f"{kind}\n".encode() + content, key=erasure_key(), digest_size=32)
    return hashed.hexdigest()


def is_listed(facts: dict[str, Any], source: Source, everywhere: bool | None) -> bool:
    """Return whether other runs on the dataset must leave the rows out, too.

    Imported data is private: its people asked for it. Public data stays as it was published, so
    that a trial does not change the results of later runs.
    """
    if everywhere is not None:
        return everywhere and of_people(facts)
    drawn = isinstance(source, str) and source.startswith(DRAW)
    return facts["data"].get("source") == "imported" and not drawn


def _listed_afterwards(facts: dict[str, Any], kind: Kind, source: Source) -> str:
    """Let other runs leave out what was forgotten by one run only until now; say so."""
    name = facts["data"]["name"]
    if not of_people(facts):
        return ""
    if isinstance(source, NamedRecords) and kind == "erase":
        listed = Blocklist().with_erased([source.user] * len(source.items), source.items)
    elif isinstance(source, str) and kind == "withdraw":
        listed = Blocklist().with_withdrawn(source)
    else:
        raise ConfigError(
            f"this request was answered for this run only, and its file cannot be added to the "
            f"list of '{name}' afterwards. Give `rescind forget RUN --withdraw USER --everywhere` "
            f"or `--user USER --item ITEM --everywhere` to another run, or of imported data "
            f"`rescind data erase {name} --user USER`."
        )
    listed.add_to_dataset(name)
    return later_runs(facts, None, listed=True, rows=Rows())


def _chosen(facts: dict[str, Any]) -> list[str]:
    """Name what the records decided before the first round, which no unlearner reaches."""
    asked = (facts.get("configuration") or {}).get("data") or {}
    given = [f"{name} = {asked[name]}" for name in FILTERS if isinstance(asked.get(name), int)]
    said = []
    if given:
        said.append(
            f"Which users and items are in this run at all ({', '.join(given)}): that was decided "
            f"while the records were there. A run that is learnt again decides without them."
        )
    if asked.get("variant", "none") != "none":
        said.append(
            f"Where the blocks of time begin (variant = {asked['variant']}): that was decided "
            f"while the records were there."
        )
    return said


def answered_in(new: Path) -> Answer:
    """Return the answer of a request that was finished before."""
    receipt = parse((new / RECEIPT).read_bytes())
    key = read_secret(new / KEY) if (new / KEY).is_file() else b""
    evidence = Evidence(lambda: Issued(receipt, key))
    fed = open_run(new, repeatable=False) if has_model(new) else None
    return Answer(fed, evidence, new, new / KEY)


def _public_data(facts: dict[str, Any]) -> str:
    """Return the digest of a published dataset; '' for imported data, which may be private."""
    data = facts.get("data", {})
    return "" if data.get("source") == "imported" else str(data.get("digest", ""))


def _next(run: Path) -> Path:
    """Return the next free name: seed-0, seed-0-forgot-1, seed-0-forgot-2, ..."""
    name, count = first_of_its_name(run).name, 1
    while (run.parent / f"{name}{FORGOT}{count}").exists():
        count += 1
    return run.parent / f"{name}{FORGOT}{count}"


def _facts(facts: dict[str, Any], after: Federation, evidence: Evidence) -> dict[str, Any]:
    state, vault = after.now.state, after.now.vault
    k = tuple(int(name.split("@")[1]) for name in facts["metrics"]["test"] if name.startswith("HR"))
    asked, done, cost = evidence.exact.asked, evidence.exact.done, evidence.cost
    assert cost is not None
    forgotten = {
        "kind": asked.kind,
        "records": asked.records,
        "people": asked.people,
        "by": done.unlearning,
        "level": done.level,
        "verdict": evidence.receipt.verdict,
        "rounds": done.rounds,
        "client_rounds": done.client_rounds,
        "seconds": done.seconds,
    }
    found: dict[str, Any] = {"metrics": quality(after, k), **measured_users(after)}
    if "matrix" in facts:
        found = measured_again(facts, after)
    return {
        **facts,
        **found,
        "data": _data_left(facts["data"], after),
        "shared": len(after.world.shared),
        "versions": versions() | version_of(after.method),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "round": state.round,
        "per_round": [],  # the old model is deleted
        "seconds": {"wall": cost.wall, "cpu": cost.cpu},  # of forgetting alone
        "kept_bytes": {
            "server": nbytes(state.public) + nbytes(state.own) + state.memory.nbytes,
            "devices": vault.nbytes,
        },
        "model": {"public": digest(state.public), "private": digest(vault.private)},
        "receipt": facts_about(evidence.receipt, after),
        "forgotten": [*facts.get("forgotten", []), forgotten],
        "privacy": _privacy(facts, after),
        "published": after.method.published(after),
    }


def _data_left(data: dict[str, Any], after: Federation) -> dict[str, Any]:
    """Return what run.json says of private data: a digest of all of it would tell erased rows."""
    if data.get("source") != "imported":
        return data
    held = after.now.vault.holdings
    return {**data, "digest": held.digest(), "rows": len(held.records)}


def _privacy(facts: dict[str, Any], after: Federation) -> dict[str, Any]:
    """Return the guarantee after forgetting: the old model was published, so its rounds count."""
    stated = dict(facts.get("privacy", {}))
    if after.spent is not None:
        stated |= guarantee(after, stated.get("delta", DELTA))
    return stated | after.method.promise(after)
