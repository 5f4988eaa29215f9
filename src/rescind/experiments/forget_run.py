"""Read a request to a run on disk, answer it, and purge the old run."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.params import digest, nbytes
from rescind.core.records import (
    Erase,
    EraseEdges,
    EraseLabels,
    Event,
    Records,
    Unshare,
    Withdraw,
)
from rescind.core.request import Request
from rescind.data.blocklist import Blocklist
from rescind.data.simulated_lending import draw_regret
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.experiments.counterfactual import open_run
from rescind.experiments.stream_run import measured_again
from rescind.forgetting.forget import Audits, Evidence, forget
from rescind.forgetting.parallel import one_thread
from rescind.forgetting.receipt import Issued, parse, write_keys
from rescind.forgetting.receipt_html import page
from rescind.forgetting.run_receipt import facts_about
from rescind.forgetting.succession import (
    KEY,
    RECEIPT,
    begin,
    commit,
    draft,
    moved_request,
    settle,
)  # fmt: skip
from rescind.privacy.accountant import DELTA, statement
from rescind.privacy.keys import erasure_key, read_secret
from rescind.storage.federations import save_federation
from rescind.storage.provenance import versions
from rescind.storage.run_folder import check_finished, read_facts, working_on, write_facts

Kind = Literal["erase", "unshare", "withdraw", "nodes", "edges", "labels"]
DRAW = "draw:"
FORGOT = "-forgot-"
"""Between the name of a run and the number of answered requests."""


@dataclass(frozen=True)
class Answer:
    """An answered request."""

    fed: Federation
    evidence: Evidence
    folder: Path
    """The new run."""
    key_file: Path
    """The requester's key."""


def read_request(
    fed: Federation, kind: Kind, source: str, withheld: Blocklist | None = None
) -> Event:
    """Return the event of a request. source: a CSV file, `draw:0.3`, or a user id to withdraw.

    Of a graph, nodes, edges and labels can be named: `12,40`, of edges `12-40,12-55`, or a CSV file
    with a column `node` and, for edges, `other`.

    The file has a column `user` and optionally `item`, with original ids. Without items, it means
    all records that a user holds (erase) or shares (unshare). `draw:0.3` takes all shared records
    of a random 30 % of the sharing users, for experiments.

    withheld: digests of earlier requests, to detect users who have left
    """
    withheld = withheld or Blocklist()
    if kind == "withdraw":
        return Withdraw(_client(fed, source, withheld))
    if kind in ("nodes", "edges", "labels"):
        return _of_graph(fed, kind, source)
    if source.startswith(DRAW):
        records = draw_regret(fed.world.shared, fed.clock, _fraction(source))
    else:
        records = _from_file(fed, Path(source), kind, withheld)
    if not len(records):
        raise ConsentError(
            f"the request names no records that can be {kind}d. "
            f"Give ids of users and items in the run (`rescind recommend` shows ids)."
        )
    return Erase(records) if kind == "erase" else Unshare(records)


def _fraction(source: str) -> float:
    try:
        return float(source.removeprefix(DRAW))
    except ValueError:
        raise ConfigError(f"'{source}' is not a fraction. Write draw:0.3 for 30 %.") from None


def _client(fed: Federation, user: str, withheld: Blocklist) -> int:
    """Return the number of a user; raise without suggesting other names if the user has left."""
    if withheld.left(user, fed.labels):
        raise ConsentError(
            f"user '{user}' has left this run, so there is nothing to forget. See the receipt of "
            f"the earlier request."
        )
    return fed.labels.client(user, fed.world.sizes.clients)


def _of_graph(fed: Federation, kind: Kind, source: str) -> Event:
    """Return the event of a request about a graph; the client of a node is looked up."""
    graph = fed.now.vault.holdings.graph
    if graph is None:
        raise ConfigError(
            f"--{kind} names parts of a graph, and this run has none: it learnt "
            f"'{fed.world.task}'. Use --erase FILE, --unshare FILE or --withdraw USER."
        )
    owner = dict(zip(graph.index.tolist(), graph.owner.tolist(), strict=True))
    known = dict(zip(graph.index.tolist(), (graph.label >= 0).tolist(), strict=True))
    rows = _numbers(source, ("node", "other") if kind == "edges" else ("node",))
    for node in (n for row in rows for n in row):
        if node not in owner:
            raise ConsentError(
                f"there is no node {node} in this run: it was never there, or is erased already. "
                f"It has {len(owner):,} nodes. Nothing was changed."
            )
    client = [owner[row[0]] for row in rows]
    if kind == "edges":
        ends = [sorted(row) for row in rows]
        return EraseEdges(Records.of(client, [low for low, _ in ends], [high for _, high in ends]))
    if unlabelled := [row[0] for row in rows if not known[row[0]]]:
        raise ConsentError(
            f"node {unlabelled[0]} has no label in this run: it has none, or it is erased already. "
            f"Only nodes with a label are records. Nothing was changed."
        )
    records = Records.of(client, [row[0] for row in rows])
    return Erase(records) if kind == "nodes" else EraseLabels(records)


def _numbers(source: str, columns: tuple[str, ...]) -> list[list[int]]:
    """Read distinct rows of node numbers: from a CSV file, or from text such as `12,40`."""
    if Path(source).is_file():
        names, table = _table(Path(source))
        if missing := [name for name in columns if name not in names]:
            raise DataError(f"{source} has no column '{missing[0]}'; it has {', '.join(names)}.")
        rows = [[(row[name] or "").strip() for name in columns] for row in table]
    else:
        rows = [part.strip().split("-") for part in source.split(",")]
    good = [row for row in rows if len(row) == len(columns) and all(map(str.isdecimal, row))]
    if len(good) < len(rows) or not rows:
        bad = "-".join(next((row for row in rows if row not in good), [""]))
        form = "12,40" if len(columns) == 1 else "12-40,12-55"
        raise DataError(
            f"'{bad}' is not {' and '.join(columns)} by number. Write {form}, or the path of a CSV "
            f"file with {' and '.join(columns)} in its first line."
        )
    return [list(row) for row in dict.fromkeys(tuple(map(int, row)) for row in good)]


def _table(path: Path) -> tuple[tuple[str, ...], list[dict[str, str | None]]]:
    """Return the header and the rows of a CSV file."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            return tuple(table.fieldnames or ()), list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a request: {error}.") from None


def _from_file(fed: Federation, path: Path, kind: Kind, withheld: Blocklist) -> Records:
    names, rows = _table(path)
    if "user" not in names:
        raise DataError(
            f"{path} has no column 'user' (its first line is "
            f"'{', '.join(map(str, names))}'). Write a header 'user,item' or 'user' and original "
            f"ids below."
        )
    if not rows:
        raise DataError(f"{path} names no users: it has no line below its header.")
    sizes, held = fed.world.sizes, fed.now.vault.holdings.records
    whole = fed.world.shared if kind == "unshare" else held
    pairs, people = [], []
    for number, row in enumerate(rows, 2):
        user, item = (row.get("user") or "").strip(), (row.get("item") or "").strip()
        if "item" in names and not item:  # a damaged line must not erase a whole user
            raise DataError(
                f"{path}, line {number}: user '{user}' has no item. Add one, or write a file with "
                f"only the column 'user' to name all records of a user."
            )
        try:
            client = _client(fed, user, withheld)
            if item:
                pairs.append((client, fed.labels.item(item, sizes.items)))
            else:
                people.append(client)
        except (ConsentError, DataError) as error:
            raise type(error)(f"{path}, line {number}: {error}") from None
    named = Records.of([c for c, _ in pairs], [i for _, i in pairs])
    everything = whole[torch.isin(whole.client, torch.tensor(people, dtype=torch.int64))]
    return named + everything[~everything.among(named)]


def answer(
    run: Path,
    kind: Kind,
    source: str,
    method: Unlearner | None = None,
    audits: Audits = "standard",
    out: Path | None = None,
    workers: int = 2,
    watch: tuple[Callable[..., Any], ...] = (),
    on_retrain: Callable[[int, int], Any] = lambda *_: None,
    on_start: Callable[[Federation, Event, int], Any] = lambda *_: None,
    away: Sequence[str] = (),
) -> Answer:
    """Answer a request to a run: write a new run without the records, purge the old, sign.

    A request that was interrupted is finished first (`succession`); the same request again gives
    its answer. on_retrain: called with (finished, total) reference models    on_start: called with
    the run, the request and its number of records    away: ids of users whose devices cannot be
    reached
    """
    asked = _request_digest(kind, source)
    done = settle(run)
    if done is not None and done.is_dir() and asked == moved_request(run):
        return _answered(done)
    check_finished(run)
    with working_on(run) as scratch:
        check_finished(run)  # another command may have replaced it before the lock was free
        facts = read_facts(run) or {}
        fed = open_run(run, repeatable=False)
        event = read_request(fed, kind, source, Blocklist.read(run))
        request = fed.request(event)
        new = out or _next(run)
        if new.exists() and any(new.iterdir()):
            raise ConfigError(f"{new} is not empty. Choose another folder with --out.")
        previous = (run / RECEIPT).read_bytes() if (run / RECEIPT).is_file() else None
        fed.apply(event)  # fail before any output if the request is invalid
        on_start(fed, event, request.count)
        watched = replace(fed, watch=(*fed.watch, *watch))
        with one_thread():  # as the run learned
            after, evidence = forget(
                watched, event, method, audits,
                previous=previous, data=_public_data(facts), folder=scratch, workers=workers,
                progress=on_retrain, not_covered=_copies(facts, event),
                away=away,
            )  # fmt: skip
        after = replace(after, watch=())
        folder = begin(run, new, asked)
        save_federation(after, folder / "model")
        withheld = _withheld(fed, after, request)
        (Blocklist.read(run) | withheld).write(folder)
        if _of_people(facts) and not source.startswith(DRAW):
            withheld.add_to_dataset(facts["data"]["name"])
        write_facts(folder, _facts(facts, after, evidence))
        write_keys(evidence.key, folder / RECEIPT)
        findings = evidence.report.findings if evidence.report else None
        shown = page(evidence.receipt, findings, key=evidence.key)
        draft(folder, run, new, evidence.receipt, shown.encode())
        commit(run, new)
    return Answer(after, evidence, new, new / KEY)


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


def _request_digest(kind: Kind, source: str) -> str:
    """Return a digest of a request under a secret, to recognise it when it is repeated."""
    named = kind != "withdraw" and Path(source).is_file()
    try:
        content = Path(source).read_bytes() if named else source.encode()
    except OSError:
        content = b""  # `read_request` tells what is wrong with the file
    hashed = hashlib.blake2b(f"{kind}\n".encode() + content, key=erasure_key(), digest_size=32)
    return hashed.hexdigest()


def _of_people(facts: dict[str, Any]) -> bool:
    """Return whether a run learnt from data about people, and not from generated data."""
    return facts["data"].get("source", "") not in ("", "generated")


def _copies(facts: dict[str, Any], event: Event) -> list[str]:
    """Name the copies of the data that this request does not delete."""
    data = facts["data"]
    if not _of_people(facts) or isinstance(event, Unshare):
        return []
    if data["source"] == "imported":
        return [
            f"The imported copy of '{data['name']}': its rows are left out of every run from now "
            f"on, and `rescind data erase` deletes them. The file it was imported from."
        ]
    return [
        f"The published files of '{data['name']}' on this machine: their rows are left out of "
        f"every run from now on."
    ]


def _answered(new: Path) -> Answer:
    """Return the answer of a request that was finished before."""
    receipt = parse((new / RECEIPT).read_bytes())
    key = read_secret(new / KEY) if (new / KEY).is_file() else b""
    evidence = Evidence(lambda: Issued(receipt, key))
    return Answer(open_run(new, repeatable=False), evidence, new, new / KEY)


def _public_data(facts: dict[str, Any]) -> str:
    """Return the digest of a published dataset; '' for imported data, which may be private."""
    data = facts.get("data", {})
    return "" if data.get("source") == "imported" else str(data.get("digest", ""))


def _next(run: Path) -> Path:
    """Return the next free name: seed-0, seed-0-forgot-1, seed-0-forgot-2, ..."""
    stem, _, number = run.name.rpartition(FORGOT)
    name = stem if stem and number.isdigit() else run.name
    count = 1
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
    quality: dict[str, Any] = {"metrics": {s: after.evaluate(s, k) for s in ("valid", "test")}}
    if "matrix" in facts:
        quality = measured_again(facts, after)
    return {
        **facts,
        **quality,
        "shared": len(after.world.shared),
        "versions": versions(),
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


def _privacy(facts: dict[str, Any], after: Federation) -> dict[str, Any]:
    """Return the guarantee after forgetting: the old model was published, so its rounds count."""
    stated = dict(facts.get("privacy", {}))
    if after.spent is not None:
        guards, delta = getattr(after.executor, "guards", ()), stated.get("delta", DELTA)
        times, clients = int(after.spent.max()), after.world.sizes.clients
        stated |= statement(guards, after.method.individual, times, delta, clients)
    return stated | after.method.promise(after)
