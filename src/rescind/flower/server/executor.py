"""`FlowerExecutor`: run the clients' work on silos. Only sums come back."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Mail
from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.core.gate import HEALTHY, gate_sum
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Event, Records, Share
from rescind.core.run_state import RoundResult
from rescind.core.tasks import Metric, Question
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.experiments.streams import Announcement
from rescind.flower.run_request import silo_names
from rescind.flower.server.combine import accepted, accepted_measures, check_roles, check_trim
from rescind.flower.server.remote_holdings import (
    RemoteHoldings,
    after_reply,
    from_sizes,
    needed_moments,
    part_for,
    remote_holdings,
    with_pending,
    with_reply,
    without_opening,
)
from rescind.flower.server.requests import open_request, request, vault_request
from rescind.flower.server.secure_round import exchange_round
from rescind.flower.server.tables import check_tables
from rescind.flower.server.transport import FAILED, Transport
from rescind.flower.wire.messages import Letter, metric_table
from rescind.flower.wire.payloads import (
    LIMIT,
    Bounds,
    LeftOut,
    mail_for,
    of_silo,
)
from rescind.flower.wire.secure_aggregation import Masked, check_silos
from rescind.flower.wire.steps import MOMENT
from rescind.storage.events import pack_events
from rescind.storage.packing import Facts, drawer, under

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FlowerExecutor:
    """Runs the clients' work on remote silos, one message per silo and round.

    Clients of missing replies are not in a round's sum and are counted under `refused`. A silo
    whose reply was not accepted keeps its earlier private state.
    """

    line: Transport
    run: str = "run"
    """Name of this run: replies of other runs are refused."""
    least: float = 0.5
    """A round is abandoned if a smaller fraction of the silos asked has replied."""
    limit: float = HEALTHY
    """Sums with a larger norm per client are refused, unless all silos' are large (combine.py)."""
    trim: float = 0.0
    """Fraction of the silos whose largest, and whose smallest, values are left out of each mean
    (combine.py); 0: plain means."""
    device: str = "cpu"
    masked: Masked | None = None
    """Settings of masked sums, of which the server sees only the total; None: not masked."""
    needed: dict[str, list[int]] = field(default_factory=dict)
    """Moments (wire/steps.py) that the server may return to, by their key in messages: "keep" for
    private values, "keep_held" for holdings. Silos remove nothing of a kind that is missing."""
    unmeasured: set[int] = field(default_factory=set)
    """Silos that a measurement did not reach, since whoever measures cleared it."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise ConfigError(f"the fraction of silos must be 0 to 1; got least = {self.least}.")
        check_trim(self.trim, self.masked is not None)
        if self.masked is not None:
            check_silos(self.line.silos)

    # -- before the first round --------------------------------------------------------------------

    def gather(self, seed: int, wait: float = 300.0) -> RemoteHoldings:
        """Wait until every silo has joined. Return the holdings to start a federation with."""
        replies = self.line.wait(self._request("hold", Clock(seed)), wait)
        self.line.first_message = self._request("meet", Clock(seed))  # a restarted silo has data
        facts = [reply.facts for reply in replies.values()]
        check_tables({silo: reply.facts for silo, reply in replies.items()})
        sizes = {n: max(int(f[n]) for f in facts) for n in ("clients", "items")}
        past = max(int(f.get("past_epoch") or 0) for f in facts)
        holdings = from_sizes(self.line.silos, {**facts[0], **sizes, "epoch": past})
        for silo, reply in sorted(replies.items()):
            holdings = with_reply(holdings, silo, reply.facts, drawer("said", reply.tensors))
        return holdings

    def meet(self, wait: float = 300.0) -> None:
        """Wait for the silos of a run that goes on. One is enough: the others catch up later."""
        self.line.wait(self._request("meet", Clock(0)), wait, least=1)

    def lend(self, fed: Federation, ratio: tuple[int, int, int], part: float) -> Share:
        """Return what simulated clients on all silos lend. The event is not applied yet."""
        vault = fed.now.vault
        extra = {"ratio": list(ratio), "part": part, "clients": fed.world.sizes.clients}
        requests = {
            silo: self._vault_request("lend", fed.method, vault, silo, fed.clock, extra, {})
            for silo in range(remote_holdings(vault).silos)
        }
        loans = Records.none()
        for reply in self._ask_all(requests).values():
            loans = loans + Records(**drawer("loan", reply.tensors))
        return Share(loans.sorted())

    def arrivals(self, seed: int) -> Iterator[Announcement]:
        """Yield the blocks that silos announce, one after another. Records stay on the silos."""
        for number in itertools.count(1):
            asked = self._request("next", Clock(seed), {"block": number})
            replies = self._ask_all(dict.fromkeys(range(self.line.silos), asked))
            having = [reply for reply in replies.values() if reply.facts["there"]]
            if not having:
                return
            clients, items = (max(int(r.facts[n]) for r in having) for n in ("clients", "items"))
            trains = torch.zeros(clients, dtype=torch.bool)
            trains[torch.cat([reply.tensors["trains"] for reply in having])] = True
            nothing = torch.zeros(0, dtype=torch.int8)
            yield Announcement(Records.none(), nothing, clients, items, trains)

    # -- the five operations -----------------------------------------------------------------------

    def open(self, method: Method, holdings: Holdings, clock: Clock) -> Vault:
        """Create the devices' initial private values. A missing silo does so when it is back."""
        if not isinstance(holdings, RemoteHoldings):
            raise ConfigError(
                "this executor needs data on silos. Start the federation with the holdings that "
                "`FlowerExecutor.gather` returns."
            )
        requests = {
            silo: open_request(self.run, method, holdings, silo, clock)
            for silo in range(holdings.silos)
        }
        replies, why = self.line.ask(requests)
        if not replies:
            raise DataError(f"no silo could start: {why}. Restart the silos and try again.")
        fresh = replace(holdings, owed=(), left_out=(), letters=(), seed=clock.seed)
        moment = torch.zeros(holdings.silos, dtype=torch.int64)
        for silo, asked in requests.items():
            if silo in replies:
                reply = replies[silo]
                fresh = with_reply(fresh, silo, reply.facts, drawer("said", reply.tensors))
                moment[silo] = int(reply.facts["private"])
            else:
                fresh, moment[silo] = without_opening(fresh, silo, asked)
                log.warning("silo %d has not started again yet: %s", silo, why[silo])
        return Vault(fresh, {MOMENT: moment})

    def train(
        self,
        method: Method,
        public: Params,
        mail: Mail | None,
        vault: Vault,
        ids: Tensor,
        roles: Mapping[int, str] | None,
        clock: Clock,
    ) -> tuple[dict[str, Sum], Vault]:
        """Run one round with one message to every silo concerned. Return (sums by role, vault)."""
        held, requests = remote_holdings(vault), {}
        asked = {silo: ids[ids % held.silos == silo] for silo in range(held.silos)}
        for silo, mine in asked.items():
            if not len(mine):
                continue
            own = {int(c): roles[int(c)] for c in mine.tolist() if c in roles} if roles else {}
            extra: Facts = {"roles": [[c, r] for c, r in own.items()], **self.needed}
            tensors = {"ids": mine, **under("public", public)}
            if mail is not None:
                tensors |= under("mail", mail_for(mail, mine))
            requests[silo] = self._vault_request(
                "train", method, vault, silo, clock, extra, tensors
            )
        keys = request(self.run, "mask", clock, epoch=held.epoch)
        replies, why, total = exchange_round(self.line, requests, keys, self.masked, roles)
        refused = {why[s].partition(":")[0]: 0 for s in why}
        for silo, reason in why.items():
            refused[reason.partition(":")[0]] += len(asked[silo])
            log.warning("silo %d is not in round %d: %s", silo, clock.round, reason)
        failed = [silo for silo, reason in why.items() if reason.startswith(FAILED)]
        # Without the silo of the one who leaves, a round with roles would forget nobody.
        if failed and (roles or len(failed) == len(requests)):
            needs = "a round with roles needs every silo" if replies else "no silo can take part"
            raise DataError(f"{needs} in round {clock.round}. {why[min(failed)]}")
        check_roles(asked, roles, why)
        if requests and len(replies) < self.least * len(requests):
            log.warning("round %d is abandoned: only %d silos replied", clock.round, len(replies))
            return {"train": Sum({}, 0.0, 0, refused=refused)}, vault
        sums: dict[str, Sum] = {}
        # pairs of 2,300 items: a norm of 2,300
        limit = self.limit if method.only_averages else LIMIT * method.unit
        if total is None:
            named = {*roles.values()} if roles else ()
            bounds = {
                silo: Bounds(method, public, mine, named, held.most(method, silo))
                for silo, mine in asked.items()
            }
            sums, bad = accepted(replies, bounds, limit, self.trim)
        else:  # a masked total is checked as a whole
            also = () if method.only_averages else tuple(total.totals)
            sums["train"] = gate_sum(total, public, LIMIT * method.unit, also)
            bad = {} if sums["train"] is total else dict.fromkeys(replies, "")
        for silo, reply in replies.items():
            if silo not in bad:
                vault = after_reply(vault, silo, reply)
            elif bad[silo]:
                refused[bad[silo]] = refused.get(bad[silo], 0) + len(asked[silo])
        self._report(bad, f"in round {clock.round}")
        check_roles(asked, roles, {**why, **bad})
        replies = {silo: reply for silo, reply in replies.items() if silo not in bad}
        if refused or not sums:
            role = next(iter(sums), "train")
            rest = Sum({}, 0.0, 0, refused=refused)
            sums[role] = sums[role] + rest if role in sums else rest
        return (sums if len(replies) == 1 else dict(sorted(sums.items()))), vault

    def measure(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Sum:
        """Return totals over the silos that reply."""
        held, requests = remote_holdings(vault), {}
        for silo in range(held.silos):
            mine = ids[ids % held.silos == silo]
            if len(mine):
                tensors = {"ids": mine, **under("public", public)}
                extra = {"metric": metric_table(metric)}
                requests[silo] = self._vault_request(
                    "measure", method, vault, silo, Clock(held.seed), extra, tensors
                )
        replies, why = self.line.ask(requests)
        if requests and not replies:
            raise DataError(f"no silo could be measured: {why}. Restart the silos and try again.")
        if why:
            log.warning("measured without %s: %s", silo_names(why), "; ".join({*why.values()}))
        asked = {s: int((ids % held.silos == s).sum()) for s in replies}
        most = {silo: n * int(held.heaviest[silo]) for silo, n in asked.items()}
        total, bad = accepted_measures(replies, metric, held.items, most)
        self._report(bad, "measured")
        self.unmeasured.update(why, bad)
        if requests and total is None:
            raise DataError(f"no silo sent valid measures: {bad}. Restart the silos, try again.")
        return total or Sum({}, 0.0, 0)

    def _report(self, bad: Mapping[int, str], what: str) -> None:
        """Count and log the silos whose replies were refused."""
        for silo, reason in bad.items():
            if reason:
                self.line.refused[reason.partition(":")[0]] += 1
                log.warning("silo %d is not %s: %s", silo, what, reason)

    def query(
        self, method: Method, public: Params, vault: Vault, records: Records, ask: Question
    ) -> Tensor:
        """Return an answer for each record, if its silo allows such questions. [n]"""
        held, requests, places = remote_holdings(vault), {}, {}
        out = torch.zeros(len(records), dtype=torch.float64)
        for silo in range(held.silos):
            places[silo] = (records.client % held.silos == silo).nonzero().squeeze(1)
            if len(places[silo]):
                mine = records[places[silo]]
                columns = {"client": mine.client, "item": mine.item, "time": mine.time}
                tensors = {**under("public", public), **under("records", columns)}
                requests[silo] = self._vault_request(
                    "query", method, vault, silo, Clock(held.seed), {"ask": ask}, tensors
                )
        for silo, reply in self._ask_all(requests).items():
            out[places[silo]] = reply.tensors["answer"]
        return out

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        """Send an event to the silos concerned. A missing silo applies it before its next work.

        Raises if all of these refuse it, because a record is not there, say. Silos that missed
        something earlier are asked apart: what they answer says nothing about this event.
        """
        vault = with_pending(vault, event, public)
        held = remote_holdings(vault)
        concerned = [s for s in held.pending_silos if part_for(event, s, held.silos) is not None]
        late = [silo for silo in held.pending_silos if silo not in concerned]
        for silos, needed in ((concerned, True), (late, False)):
            requests = {
                silo: self._vault_request("apply", method, vault, silo, clock, {}, {})
                for silo in silos
            }
            replies, why = self.line.ask(requests, needed) if requests else ({}, {})
            for silo, reply in replies.items():
                vault = after_reply(vault, silo, reply)
            for silo, reason in why.items():
                named = type(event).__name__
                log.warning("silo %d did not acknowledge %s: %s", silo, named, reason)
        if "keep" in self.needed:  # a difference may be asked for from the state before the event
            after = vault.private[MOMENT].tolist()
            self.needed["keep"] = sorted({*self.needed["keep"], *after})
        return vault

    # -- forgetting for good -----------------------------------------------------------------------

    def waiting(self, fed: Federation) -> tuple[int, ...]:
        """Return the silos that have not acknowledged every event yet."""
        return remote_holdings(fed.now.vault).pending_silos

    def settle(self, fed: Federation) -> Federation:
        """Let the silos remove permanently every saved state that this federation does not need.

        Until then the states before an erasure stay on the silos' disks, so that they can be
        compared. A silo that is missing removes them at the next call.
        """
        held, private = needed_moments(fed.now.vault, fed.past)
        origin = fed.past.origin if fed.past else None
        left_out = origin.left_out if isinstance(origin, RemoteHoldings) else ()
        kept = {"keep_held": held, "keep_private": private}
        requests, replies = self._keep_only(fed, kept, left_out)
        vault, past = fed.now.vault, fed.past
        for silo, reply in replies.items():
            vault = after_reply(vault, silo, reply)
        # A request to keep includes all that a silo missed before.
        missed = tuple((silo, asked) for silo, asked in requests.items() if silo not in replies)
        vault = replace(vault, holdings=replace(remote_holdings(vault), letters=missed))
        if past is not None and isinstance(origin, RemoteHoldings):
            left = tuple((s, e) for s, e in left_out if s not in replies)
            owed = tuple(step for step in origin.owed if step.silo not in replies)
            epoch = max(origin.epoch, remote_holdings(vault).epoch)  # silos refuse older epochs
            origin = replace(origin, left_out=left, owed=owed, epoch=epoch, letters=missed)
            past = replace(past, origin=origin)
        return replace(fed, now=replace(fed.now, vault=vault), past=past)

    def drop_earlier_blocks(self, fed: Federation) -> None:
        """Let the silos remove the data of all blocks before the current one.

        Call it when the server cannot return to them. A missing silo does it in its next round.
        """
        self.needed["keep_held"] = remote_holdings(fed.now.vault).moment.tolist()
        self._keep_only(fed, {"keep_held": self.needed["keep_held"]})

    def begin_request(self, fed: Federation) -> None:
        """Let silos keep the current state, from which a killed server resumes the request."""
        self.needed.clear()
        _, self.needed["keep"] = needed_moments(fed.now.vault, fed.past)

    def _keep_only(
        self, fed: Federation, kept: Facts, left_out: LeftOut = ()
    ) -> tuple[dict[int, Letter], dict[int, Letter]]:
        """Let silos remove all other moments. Return the requests, and the replies, by silo."""
        requests = {}
        for silo in range(remote_holdings(fed.now.vault).silos):
            tensors, facts = pack_events("never", of_silo(left_out, silo))
            tensors |= under("public", fed.now.state.public)  # for recommendations on the silo
            requests[silo] = self._vault_request(
                "keep", fed.method, fed.now.vault, silo, fed.clock, {**facts, **kept}, tensors
            )
        replies, why = self.line.ask(requests)
        for silo, reason in why.items():
            log.warning("silo %d has not removed old states yet: %s", silo, reason)
        return requests, replies

    def watch(self, every: int = 1) -> Callable[[RoundResult], None]:
        """Return a callback for each round that updates which private moments silos keep.

        every: rounds between two checkpoints; moments of the last two checkpoints are kept
        """
        checkpoints: list[set[int]] = []

        def on_round(result: RoundResult) -> None:
            _, needed = needed_moments(result.now.vault, result.past)
            best = result.until.best if result.until else None
            private = {*needed, *(best.vault.private[MOMENT].tolist() if best else ())}
            if result.now.state.round % every == 0:
                checkpoints.append(private)
                del checkpoints[:-2]
            self.needed["keep"] = sorted(private.union(*checkpoints))

        return on_round

    # -- messages ----------------------------------------------------------------------------------

    def _request(self, verb: str, clock: Clock, extra: Facts | None = None) -> Letter:
        return request(self.run, verb, clock, extra)

    def _vault_request(self, verb: str, *about: Any) -> Letter:
        return vault_request(self.run, verb, *about)

    def _ask_all(self, requests: Mapping[int, Letter]) -> dict[int, Letter]:
        """Return the replies of all silos asked. Raises `DataError` if one is missing."""
        replies, why = self.line.ask(requests)
        if why:
            reasons = "; ".join(f"silo {silo}: {reason}" for silo, reason in sorted(why.items()))
            raise DataError(
                f"every silo must reply to this request. Missing: {reasons}. Restart the silos "
                f"and try again."
            )
        return replies
