"""A run as a holder: its model is replaced in its folder by one that forgot.

The draft of the receipt goes into the ledger before the new model does into the folder, so a kill
between the two is answered by forgetting again: unlearners are deterministic.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rescind.core.federation import Federation
from rescind.core.method import Unlearner
from rescind.core.params import digest, nbytes
from rescind.core.records import Erase, Event, Records, Unshare, Withdraw
from rescind.data.blocklist import Blocklist
from rescind.errors import DataError
from rescind.experiments.cell import FILTERS
from rescind.experiments.open_run import open_run
from rescind.experiments.validation import measured_users, quality
from rescind.forgetting.forget import FEWEST, Evidence, forget
from rescind.forgetting.parallel import one_thread
from rescind.forgetting.purge import kept_list
from rescind.home import Ledger, Refused, Request
from rescind.privacy.accountant import guarantee
from rescind.privacy.gaussian import DELTA
from rescind.receipts.of_run import Found, check_fit
from rescind.requests.graphs import graph_event
from rescind.requests.holders import CannotForget, Held, Holder, Progress, named
from rescind.requests.members import AskedBefore
from rescind.storage.events import event_text
from rescind.storage.federations import save_federation
from rescind.storage.learning import clear_made_with, settle
from rescind.storage.provenance import version_of, versions
from rescind.storage.run_folder import has_model, read_facts, working_on, write_facts

GRAPH = ("nodes", "edges", "labels")


class Run(Holder):
    """A folder with a model that `rescind run` learnt."""

    model = True

    @property
    def folder(self) -> Path:
        return Path(self.copy.address)

    @property
    def there(self) -> bool:
        return has_model(self.folder)

    @cached_property
    def fed(self) -> Federation:
        """Load the federation as it stands now."""
        settle(self.folder)
        return open_run(self.folder, repeatable=False, fitting=False)

    def client(self, user: str) -> int | None:
        """Return the number of a user; None if they are not in this run."""
        with suppress(DataError):
            number = self.fed.labels.client(user, self.fed.world.sizes.clients)
            if bool(self.fed.world.members[number]):
                return number
        return None

    def held(self, request: Request) -> Held:
        found = dict[str, frozenset[str]]()
        if request.kind in GRAPH:
            return found
        records = self.fed.world.shared if request.kind == "unshare" else None
        records = self.fed.now.vault.holdings.records if records is None else records
        for user in request.records:
            if (client := self.client(user)) is not None:
                mine = torch.unique(records.item[records.client == client]).tolist()
                found[user] = frozenset(self.fed.labels.item_id(item) for item in mine)
        return found

    def has(self, request: Request) -> bool:
        if request.kind in GRAPH:
            return self._has_parts(request)
        if request.kind == "leave":  # of a graph, or who has no records, too
            return any(self.client(user) is not None for user in request.records)
        return super().has(request)

    def _has_parts(self, request: Request) -> bool:
        try:
            self.event(request)
        except Refused:
            return False
        return True

    def check(self, request: Request) -> None:
        """Raise unless this run has all that a request names, and its people."""
        if request.kind in GRAPH:
            return
        members, held = AskedBefore.read(self.folder), self.held(request)
        for user, items in request.records.items():
            members.client(user, self.fed.labels, self.fed.world.sizes.clients)
            has = held.get(user, frozenset())
            if request.kind == "unshare" and not (has if items is None else has & {*items}):
                raise Refused("nothing-lent", f"'{user}' lends nothing that the request names.")
            if missing := sorted({*(items or ())} - has):
                raise Refused("not-held", f"'{user}' has no '{missing[0]}' in this run.")

    def event(self, request: Request) -> Event:
        """Return what a request means to this run, in its own numbers."""
        if request.kind in GRAPH:
            return graph_event(self.fed, request)
        if request.kind == "leave":
            return Withdraw(next(c for u in request.records if (c := self.client(u)) is not None))
        users, items = list[int](), list[int]()
        for user, held in self.held(request).items():
            client = self.fed.labels.client(user, self.fed.world.sizes.clients)
            for item in sorted(named(request, user, held)):
                users.append(client)
                items.append(self.fed.labels.item(item, self.fed.world.sizes.items))
        named_records = Records.of(users, items)
        source = self.fed.now.vault.holdings.records
        if request.kind == "unshare":
            source = self.fed.world.shared
        if request.everything:
            who = torch.tensor(sorted({*users}), dtype=torch.int64)
            named_records = source[torch.isin(source.client, who)]
        return Erase(named_records) if request.kind == "erase" else Unshare(named_records)

    def unlearn(self, ledger: Ledger, request: Request, progress: Progress) -> dict[str, Any]:
        facts = read_facts(self.folder) or {}
        with working_on(self.folder) as scratch, one_thread():
            before, event = self.fed, self.event(request)
            _check_can_forget(before)
            if self.step not in ledger.steps(request):  # else it may have been killed half way
                check_fit(self.folder, Found.of(before))
            records = before.request(event)
            before.apply(event)  # fail before anything is written if the request is not valid
            if request.audit != "none" and records.count >= FEWEST:
                progress(f"auditing {self.folder}: models are trained to compare with")
            after, evidence = forget(
                before, event, _unlearner(request.options), request.audit,  # type: ignore[arg-type]
                data=_public_data(facts), folder=scratch,
                workers=int(request.options.get("workers", 2)),
                not_covered=[*_chosen(facts), *_copies(facts)],
                also_kept=lambda _: [kept_list("of the data", 32 * records.count)],
                away=request.options.get("away", ()), case=request.case, key=request.key,
            )  # fmt: skip
            draft = evidence.draft
            listed = _listed(before, after, event, records.records)
            if request.dataset.startswith("run:"):
                listed.add_to(request.dataset)
            known = {
                "draft": draft.to_text(),
                "event": event_text(event, before.labels),
                "audit": [f.facts() for f in evidence.report.findings] if evidence.report else [],
                "unshared": sorted(listed.unshared),
                "model": digest(after.now.state.public),
                "data": after.now.vault.holdings.digest(),
                "run.json": _facts(facts, after, evidence),
            }
            ledger.done(request, self.step, known)
            save_federation(replace(after, watch=()), self.folder / "model")
            self.finish(known)
        del self.fed
        return known

    @property
    def step(self) -> str:
        """Return the name under which the ledger notes what this run did."""
        return f"unlearnt {self.copy.id}"

    def finish(self, known: dict[str, Any]) -> None:
        """Write what is known of the new model; a kill may have come before."""
        write_facts(self.folder, known["run.json"])

    def purge(self, request: Request) -> None:
        if self.there:
            clear_made_with(self.folder)

    def delete(self) -> None:
        """Delete the model: it cannot forget, and nothing else may keep the records."""
        with working_on(self.folder):
            shutil.rmtree(self.folder / "model")
            clear_made_with(self.folder)
        del self.fed


def _check_can_forget(fed: Federation) -> None:
    """Raise if a model has neither a way to forget nor a history to train again."""
    if not fed.method.answers or (fed.past is None and not fed.method.additive):
        raise CannotForget(f"this run of {type(fed.method).__name__} cannot forget by itself.")


def _unlearner(options: Mapping[str, Any]) -> Unlearner | None:
    """Return the unlearner that an experimenter chose for one request."""
    if not options.get("method"):
        return None
    from rescind.experiments.unlearners import chosen_unlearner

    return chosen_unlearner(options["method"], options.get("set", ()))


def _listed(before: Federation, after: Federation, event: Event, records: Records) -> Blocklist:
    """Return the list of what this request removed."""
    graph, left = before.now.vault.holdings.graph, after.now.vault.holdings.graph
    if graph is None or left is None:
        return Blocklist().after(event, records, before.labels)
    listed = Blocklist().with_lost(graph, left)
    if isinstance(event, Withdraw):
        listed = listed.with_withdrawn(before.labels.user_id(event.client))
    return listed


def _public_data(facts: dict[str, Any]) -> str:
    """Return the digest of a published dataset; '' for imported data, which may be private."""
    data = facts.get("data", {})
    return "" if data.get("source") == "imported" else str(data.get("digest", ""))


def _copies(facts: dict[str, Any]) -> list[str]:
    """Name the copies of the data that a request does not reach."""
    data = facts["data"]
    if data.get("source", "") in ("", "generated", "imported"):
        return []
    return [f"The published files of '{data['name']}': other runs may learn these rows."]


def _chosen(facts: dict[str, Any]) -> list[str]:
    """Name what the records decided before the first round, which no unlearner reaches."""
    data = (facts.get("configuration") or {}).get("data") or {}
    filters = [f"{name} = {data[name]}" for name in FILTERS if isinstance(data.get(name), int)]
    limits = []
    if filters:
        limits.append(
            f"Which users and items are in this run at all ({', '.join(filters)}): that was "
            f"decided while the records were there."
        )
    if data.get("variant", "none") != "none":
        limits.append(
            f"Where the blocks of time begin (variant = {data['variant']}): that was decided "
            f"while the records were there."
        )
    return limits


def _facts(facts: dict[str, Any], after: Federation, evidence: Evidence) -> dict[str, Any]:
    """Return run.json of a run that forgot."""
    state, vault, cost = after.now.state, after.now.vault, evidence.cost
    assert cost is not None
    k = tuple(int(name.split("@")[1]) for name in facts["metrics"]["test"] if name.startswith("HR"))
    if "matrix" in facts:
        from rescind.experiments.stream_run import measured_again

        measured = measured_again(facts, after)
    else:
        measured = {"metrics": quality(after, k), **measured_users(after)}
    data = facts["data"]
    if data.get("source") == "imported":  # a digest of all of it would tell erased rows
        held = vault.holdings
        data = {**data, "digest": held.digest(), "rows": len(held.records)}
    privacy = dict(facts.get("privacy", {}))
    if after.spent is not None:  # the old model was published, so its rounds count
        privacy |= guarantee(after, privacy.get("delta", DELTA))
    return {
        **facts,
        **measured,
        "data": data,
        "shared": len(after.world.shared),
        "versions": versions() | version_of(after.method),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "round": state.round,
        "per_round": [],
        "seconds": {"wall": cost.wall, "cpu": cost.cpu},  # of forgetting alone
        "kept_bytes": {
            "server": nbytes(state.public) + nbytes(state.own) + state.memory.nbytes,
            "devices": vault.nbytes,
        },
        "model": {"public": digest(state.public), "private": digest(vault.private)},
        "privacy": privacy | after.method.promise(after),
        "published": after.method.published(after),
    }
