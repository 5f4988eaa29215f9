"""`FlowerExecutor`: the clients' work is done on silos; only sums come back."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Mail
from rescind.core.executor import Vault
from rescind.core.federation import Federation
from rescind.core.gate import gate_sum
from rescind.core.history import History
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Event, Records, Share
from rescind.core.run_state import RoundResult
from rescind.core.settings import to_table
from rescind.core.tasks import Metric, Question
from rescind.core.update import Sum
from rescind.errors import ConfigError, DataError
from rescind.experiments.streams import Announcement
from rescind.flower.server.remote_holdings import RemoteHoldings, after, elsewhere, heard, unseen
from rescind.flower.server.secure_round import exchanged
from rescind.flower.server.transport import FAILED, Transport
from rescind.flower.wire.messages import Letter, metric_table
from rescind.flower.wire.payloads import (
    Nevers,
    accepted,
    letters_for,
    of_silo,
    packed_steps,
    sums_of,
)
from rescind.flower.wire.secure_aggregation import Masked, check_silos
from rescind.flower.wire.steps import MOMENT
from rescind.storage.events import pack_events
from rescind.storage.packing import Facts, drawer, under

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FlowerExecutor:
    """Silos on a network, asked one after another's letter in one exchange.

    Missing replies shrink a round's sum and are counted under `refused`; a silo whose reply was
    not accepted stays, for the server, at the private state it had before.
    """

    line: Transport
    run: str = "run"
    """A name for this run: replies of any other are refused."""
    least: float = 0.5
    """A round with replies from less than this share of the silos asked is abandoned."""
    limit: float = 1e6
    """Sums of a larger norm per client are refused (gate.py)."""
    device: str = "cpu"
    masked: Masked | None = None
    """How silos mask their sums, so that only the total is seen; None: they do not."""
    alive: dict[str, list[int]] = field(default_factory=dict)
    """The moments that the server may come back to, by the name letters have for them: "keep" for
    private ones, "keep_held" for holdings. A kind that is missing is not removed from silos."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise ConfigError(f"a share of silos is between 0 and 1; got least = {self.least}.")
        if self.masked is not None:
            check_silos(self.line.silos)

    # -- before the first round --------------------------------------------------------------------

    def gather(self, seed: int, wait: float = 300.0) -> RemoteHoldings:
        """Wait until every silo is there; the holdings to start a federation with."""
        letter = self._letter("hold", Clock(seed))
        replies = self.line.wait(letter, wait)
        self.line.first_message = self._letter("meet", Clock(seed))  # who comes back has its data
        told = [reply.facts for reply in replies.values()]
        if len({(t["task"], t["features"], t["classes"], t["block"]) for t in told}) > 1:
            raise DataError("the silos hold data of different kinds; give all the same recipe.")
        sizes = {n: max(int(t[n]) for t in told) for n in ("clients", "items")}
        holdings = unseen(self.line.silos, {**told[0], **sizes})
        for silo, reply in sorted(replies.items()):
            holdings = heard(holdings, silo, reply.facts, drawer("said", reply.tensors))
        return holdings

    def meet(self, wait: float = 300.0) -> None:
        """Wait until every silo is there; what it holds stays as it is. For a run that goes on."""
        self.line.wait(self._letter("meet", Clock(0)), wait)

    def lend(self, fed: Federation, ratio: tuple[int, int, int], part: float) -> Share:
        """What the simulated people on all silos lend; the event is still to be applied."""
        extra = {"ratio": list(ratio), "part": part, "clients": fed.world.sizes.clients}
        replies = self._everybody("lend", fed.method, fed.now.vault, fed.clock, extra)
        loans = Records.none()
        for reply in replies.values():
            loans = loans + Records(**drawer("loan", reply.tensors))
        return Share(loans.sorted())

    def arrivals(self, seed: int) -> Iterator[Announcement]:
        """Blocks as the silos say they have them, one after another; their records stay there."""
        for number in itertools.count(1):
            letter = self._letter("next", Clock(seed), {"block": number})
            replies = self._all(dict.fromkeys(range(self.line.silos), letter))
            told = [reply for reply in replies.values() if reply.facts["there"]]
            if not told:
                return
            clients, items = (max(int(t.facts[n]) for t in told) for n in ("clients", "items"))
            trains = torch.zeros(clients, dtype=torch.bool)
            trains[torch.cat([reply.tensors["trains"] for reply in told])] = True
            nothing = torch.zeros(0, dtype=torch.int8)
            yield Announcement(Records.none(), nothing, clients, items, trains)

    # -- the five verbs ----------------------------------------------------------------------------

    def open(self, method: Method, holdings: Holdings, clock: Clock) -> Vault:
        """Devices with their first private values. Every silo must be there."""
        if not isinstance(holdings, RemoteHoldings):
            raise ConfigError(
                "on a network the data is on the silos. Start the federation with the holdings "
                "that `FlowerExecutor.gather` gives."
            )
        letters = {}
        for silo in range(holdings.silos):
            tensors, told = pack_events("never", of_silo(holdings.nevers, silo))
            owed, steps = packed_steps("owed", holdings.owed, silo)
            extra = {**told, **owed, "clients": holdings.clients, "items": holdings.items}
            extra |= {"held": int(holdings.moment[silo]), "method": to_table(method)}
            carried = {**tensors, **steps}
            letters[silo] = self._letter("open", clock, extra, carried, holdings.epoch)
        replies = self._all(letters)
        fresh = replace(holdings, owed=(), nevers=(), seed=clock.seed)
        moment = torch.zeros(holdings.silos, dtype=torch.int64)
        for silo, reply in replies.items():
            fresh = heard(fresh, silo, reply.facts, drawer("said", reply.tensors))
            moment[silo] = int(reply.facts["private"])
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
        """One letter to every silo with a client in the round; the sums of those who answer."""
        held, letters = elsewhere(vault), {}
        asked = {silo: ids[ids % held.silos == silo] for silo in range(held.silos)}
        for silo, mine in asked.items():
            if not len(mine):
                continue
            theirs = {int(c): roles[int(c)] for c in mine.tolist() if c in roles} if roles else {}
            extra: Facts = {"roles": [[c, r] for c, r in theirs.items()], **self.alive}
            tensors = {"ids": mine, **under("public", public)}
            if mail is not None:
                tensors |= under("mail", letters_for(mail, mine))
            letters[silo] = self._about("train", method, vault, silo, clock, extra, tensors)
        between = self._letter("mask", clock, epoch=held.epoch)
        replies, why, hidden = exchanged(self.line, letters, between, self.masked, roles)
        refused = {why[s].partition(":")[0]: 0 for s in why}
        for silo, reason in why.items():
            refused[reason.partition(":")[0]] += len(asked[silo])
            log.warning("silo %d is not in round %d: %s", silo, clock.round, reason)
        if letters and not replies and all(r.startswith(FAILED) for r in why.values()):
            raise DataError(f"no silo can take part in round {clock.round}. {why[min(why)]}")
        if letters and len(replies) < self.least * len(letters):
            log.warning("round %d is abandoned: %d answered", clock.round, len(replies))
            return {"train": Sum({}, 0.0, 0, refused=refused)}, vault
        sums: dict[str, Sum] = {}
        own = not method.only_averages
        if hidden is not None:
            also = tuple(hidden.totals) if own else ()
            sums["train"] = gate_sum(hidden, public, self.limit, also)
            replies = replies if sums["train"] is hidden else {}
        for silo, reply in replies.items():
            alone = hidden is None  # else the total was looked at as a whole
            mine = asked[silo]
            found = accepted(method, public, mine, reply, own, self.limit) if alone else {}
            if isinstance(found, str):
                refused[found] = refused.get(found, 0) + len(asked[silo])
                self.line.refused[found] += 1
                continue
            for role, total in found.items():
                sums[role] = sums[role] + total if role in sums else total
            vault = _moved(vault, silo, reply)
        if refused or not sums:
            role = next(iter(sums), "train")
            rest = Sum({}, 0.0, 0, refused=refused)
            sums[role] = sums[role] + rest if role in sums else rest
        return (sums if len(replies) == 1 else dict(sorted(sums.items()))), vault

    def measure(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Sum:
        """Totals over the silos that answer."""
        held, letters = elsewhere(vault), {}
        for silo in range(held.silos):
            mine = ids[ids % held.silos == silo]
            if len(mine):
                tensors = {"ids": mine, **under("public", public)}
                extra = {"metric": metric_table(metric)}
                letters[silo] = self._about(
                    "measure", method, vault, silo, Clock(held.seed), extra, tensors
                )
        replies, why = self.line.ask(letters)
        if letters and not replies:
            raise DataError(f"no silo answered when asked to measure: {why}.")
        if why:
            log.warning("measured without silos %s: %s", sorted(why), why)
        total = Sum({}, 0.0, 0)
        for number, reply in enumerate(replies.values()):
            one = sums_of(reply)["measure"]
            total = one if number == 0 else total + one
        return total

    def query(
        self, method: Method, public: Params, vault: Vault, records: Records, ask: Question
    ) -> Tensor:
        """An answer per record, from silos that answer such questions. [n]"""
        held, letters, places = elsewhere(vault), {}, {}
        out = torch.zeros(len(records), dtype=torch.float64)
        for silo in range(held.silos):
            places[silo] = (records.client % held.silos == silo).nonzero().squeeze(1)
            if len(places[silo]):
                mine = records[places[silo]]
                columns = {"client": mine.client, "item": mine.item, "time": mine.time}
                tensors = {**under("public", public), **under("records", columns)}
                letters[silo] = self._about(
                    "query", method, vault, silo, Clock(held.seed), {"ask": ask}, tensors
                )
        for silo, reply in self._all(letters).items():
            out[places[silo]] = reply.tensors["answer"]
        return out

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        """Tell the silos concerned. Who is away owes it, and catches up before anything else."""
        vault = after(vault, event, public)
        concerned = sorted({step.silo for step in elsewhere(vault).owed})
        letters = {
            silo: self._about("apply", method, vault, silo, clock, {}, {}) for silo in concerned
        }
        replies, why = self.line.ask(letters)
        for silo, reply in replies.items():
            vault = _moved(vault, silo, reply)
        for silo, reason in why.items():
            log.warning("silo %d has yet to hear of a %s: %s", silo, type(event).__name__, reason)
        return vault

    # -- forgetting for good -----------------------------------------------------------------------

    def waiting(self, fed: Federation) -> tuple[int, ...]:
        """The silos that have not acknowledged every event yet."""
        return tuple(sorted({step.silo for step in elsewhere(fed.now.vault).owed}))

    def settle(self, fed: Federation) -> Federation:
        """Let the silos remove every moment but those this federation needs, for good.

        Until then the devices as they were before an erasure are still on the silos' disks, since
        somebody might compare with them. A silo that is away is settled the next time.
        """
        held, private = self._needed(fed.now.vault, fed.past)
        origin = fed.past.origin if fed.past else None
        nevers = origin.nevers if isinstance(origin, RemoteHoldings) else ()
        replies = self._keep_only(fed, {"keep_held": held, "keep_private": private}, nevers)
        vault, past = fed.now.vault, fed.past
        for silo, reply in replies.items():
            vault = _moved(vault, silo, reply)
        if past is not None and isinstance(origin, RemoteHoldings):
            left = tuple((s, e) for s, e in nevers if s not in replies)
            late = tuple(step for step in origin.owed if step.silo not in replies)
            epoch = max(origin.epoch, elsewhere(vault).epoch)  # silos refuse anything older now
            past = replace(past, origin=replace(origin, nevers=left, owed=late, epoch=epoch))
        return replace(fed, now=replace(fed.now, vault=vault), past=past)

    def turned(self, fed: Federation) -> None:
        """Let the silos remove what they held before a block that has begun.

        Only once the server cannot come back to it. Who is away does so when it trains again.
        """
        self.alive["keep_held"] = elsewhere(fed.now.vault).moment.tolist()
        self._keep_only(fed, {"keep_held": self.alive["keep_held"]})

    def begin_request(self, fed: Federation) -> None:
        """From now on it is here that a server which was killed goes on: silos keep its moments."""
        self.alive.clear()
        _, self.alive["keep"] = self._needed(fed.now.vault, fed.past)

    def _keep_only(self, fed: Federation, kept: Facts, nevers: Nevers = ()) -> dict[int, Letter]:
        """Replies of the silos that have removed all other moments."""
        letters = {}
        for silo in range(elsewhere(fed.now.vault).silos):
            tensors, told = pack_events("never", of_silo(nevers, silo))
            tensors |= under("public", fed.now.state.public)  # to recommend with
            letters[silo] = self._about(
                "keep", fed.method, fed.now.vault, silo, fed.clock, {**told, **kept}, tensors
            )
        replies, why = self.line.ask(letters)
        for silo, reason in why.items():
            log.warning("silo %d still has what is not needed any more: %s", silo, reason)
        return replies

    def watch(self, every: int = 1) -> Callable[[RoundResult], None]:
        """A watcher that tells silos which private moments may still be needed.

        every: rounds between two checkpoints, of which the last two stay whatever else happens
        """
        written: list[set[int]] = []

        def look(moment: RoundResult) -> None:
            _, needed = self._needed(moment.now.vault, moment.past)
            best = moment.until.best if moment.until else None
            private = {*needed, *(best.vault.private[MOMENT].tolist() if best else ())}
            if moment.now.state.round % every == 0:
                written.append(private)
                del written[:-2]
            self.alive["keep"] = sorted(private.union(*written))

        return look

    def _needed(self, vault: Vault, past: History | None) -> tuple[list[int], list[int]]:
        """The moments that a vault and its past refer to: of holdings, and private ones."""
        held, private = {*elsewhere(vault).moment.tolist()}, {*vault.private[MOMENT].tolist()}
        if past is not None:
            if isinstance(past.origin, RemoteHoldings):
                held |= {*past.origin.moment.tolist()}
            for point in (past.base, *past.points):
                if point is not None and MOMENT in point.private:
                    private |= {*point.private[MOMENT].tolist()}
        return sorted(held), sorted(private)

    # -- letters -----------------------------------------------------------------------------------

    def _letter(
        self,
        verb: str,
        clock: Clock,
        extra: Facts | None = None,
        tensors: Params | None = None,
        epoch: int = 0,
    ) -> Letter:
        facts = {"verb": verb, "run": self.run, "seed": clock.seed, "round": clock.round}
        return Letter({**facts, "epoch": epoch, **(extra or {})}, dict(tensors or {}))

    def _about(
        self,
        verb: str,
        method: Method,
        vault: Vault,
        silo: int,
        clock: Clock,
        extra: Facts,
        tensors: Params,
    ) -> Letter:
        """A letter about a silo's devices, with the events it has not acknowledged."""
        held = elsewhere(vault)
        owed, packed = packed_steps("owed", held.owed, silo)
        facts: Facts = {
            "method": to_table(method),
            "held": int(held.moment[silo]),
            "private": int(vault.private[MOMENT][silo]),
            **owed,
            **extra,
        }
        return self._letter(verb, clock, facts, {**packed, **tensors}, held.epoch)

    def _everybody(
        self, verb: str, method: Method, vault: Vault, clock: Clock, extra: Facts
    ) -> dict[int, Letter]:
        silos = range(elsewhere(vault).silos)
        return self._all(
            {silo: self._about(verb, method, vault, silo, clock, extra, {}) for silo in silos}
        )

    def _all(self, letters: Mapping[int, Letter]) -> dict[int, Letter]:
        """Replies of every silo asked; here nobody may be missing."""
        replies, why = self.line.ask(letters)
        if why:
            told = "; ".join(f"silo {silo}: {reason}" for silo, reason in sorted(why.items()))
            raise DataError(
                f"every silo must answer this, but: {told}. Bring them back, try again."
            )
        return replies


def _moved(vault: Vault, silo: int, reply: Letter) -> Vault:
    """The vault after a silo's reply was accepted."""
    held = heard(elsewhere(vault), silo, reply.facts, drawer("said", reply.tensors))
    moment = vault.private[MOMENT].clone()
    moment[silo] = int(reply.facts["private"])
    return replace(vault, holdings=held, private={**vault.private, MOMENT: moment})
