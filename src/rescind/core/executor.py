"""Executors run the clients' work, in one process or over a network.

`InProcess` trains many clients at once. `OneByOne` is a slow and simple reference: one client after
another, without fused code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.apart import Trained, check_training, tried
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Mail
from rescind.core.doing import Step, step
from rescind.core.gate import chosen, gate, sound
from rescind.core.guards import Guard, check_guards, check_weights
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.own_code import repeatable
from rescind.core.params import Params
from rescind.core.records import (
    Anew,
    Arrive,
    Erase,
    Event,
    Join,
    Records,
    Unshare,
    Withdraw,
)
from rescind.core.state import Log, Private
from rescind.core.tasks import Metric, Question
from rescind.core.tasks.metrics import InParts, Scores, masked_lot
from rescind.core.update import Rows, Sum
from rescind.core.versions import Versions
from rescind.core.world import Announced
from rescind.errors import ConfigError

CACHED_CELLS = 2**20
"""Clients x items whose scores stay in the cache of a CPU until they are ranked. Speed only."""


@dataclass(frozen=True)
class Vault:
    """The client side as one value: the data and private state of all clients."""

    holdings: Holdings
    private: Params
    """By name, [clients, ...]."""
    log: Log = field(default_factory=Log)

    @property
    def announced(self) -> Announced:
        return Announced(self.holdings.available, self.holdings.keeps)

    def read(self, ids: Tensor) -> Private:
        return Private(Versions.of(self.private).read(ids), self.log.of(ids))

    def write(self, chunks: list[tuple[Tensor, Private]]) -> Vault:
        """Return the vault with new state of some clients; a new name starts as zeros."""
        private = Versions.of(self.private)
        for ids, mine in chunks:
            private = private.write(ids, mine.values, self.holdings.clients)
        return replace(self, private=private)

    @property
    def nbytes(self) -> int:
        return params.nbytes(self.private) + self.log.nbytes


class Executor(Protocol):
    """The interface of executors."""

    def open(self, method: Method, holdings: Holdings, clock: Clock) -> Vault:
        """Return devices with initial private values."""

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
        """Run one round of local training. Return a sum for each role, and the devices."""

    def measure(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Sum:
        """Evaluate on the devices and return totals."""

    def query(
        self, method: Method, public: Params, vault: Vault, records: Records, ask: Question
    ) -> Tensor:
        """Return an answer per record, for recommendations and audits. [n]"""

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        """Apply an event to the devices: change holdings, end blocks, remove logs."""


@dataclass(frozen=True)
class InProcess:
    """Trains cohorts as flat tensors in this process."""

    device: str = "cpu"
    guards: tuple[Guard, ...] = ()
    limit: float = 1e6
    """Updates with a larger norm are refused; normal ones are below 1,000 (gate.py)."""
    chunk: int | None = None
    """Clients trained at once; changes only speed and memory. None: 1,024 on a CPU, whose caches
    are small, 2^20 on a GPU."""
    score_cells: int = 2**24
    """Clients x items scored at once in evaluation: 64 MB of float32."""
    fused: bool = True
    """Use `client_sum` if no guards, logs or single updates are needed."""

    def __post_init__(self) -> None:
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(f"torch finds no GPU for device '{self.device}'. Use device='cpu'.")
        check_guards(self.guards)

    @property
    def together(self) -> int:
        return self.chunk or (1024 if self.device == "cpu" else 2**20)

    def open(self, method: Method, holdings: Holdings, clock: Clock) -> Vault:
        moved = holdings.to(self.device)
        ids = torch.arange(moved.clients, device=self.device)
        return Vault(moved, repeatable(method, method.client_init, True)(ids, clock).values)

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
        """Split by role and chunk; train, check, guard and sum each cohort."""
        sums: dict[str, Sum] = {}
        written: list[tuple[Tensor, Private]] = []
        log = vault.log
        for role, members in by_role(ids, roles):
            for chunk in torch.split(members, self.together):
                cohort = self.cohort(method, vault, chunk, role, mail)
                first = clock.round == 1 and not written
                summed, private, rows = self._train(method, public, vault, cohort, clock, first)
                if not written and tried(method, clock.round, len(chunk)):
                    train = self._trainer(method, public, vault, role, mail, clock)
                    check_training(method, train, public, chunk)
                down = len(chunk) * params.nbytes(public)
                if cohort.mail is not None:
                    down += params.nbytes(cohort.mail.values)
                summed = replace(summed, down=summed.down + down)
                sums[role] = sums[role] + summed if role in sums else summed
                written.append((chunk, private))
                if rows:
                    log = log.add(clock.round, chunk, rows)
            for guard in self.guards if role in sums and not method.individual else ():
                sums[role] = guard.total(sums[role])
        return sums, replace(vault.write(written), log=log)

    def cohort(
        self,
        method: Method,
        vault: Vault,
        ids: Tensor,
        role: str = "train",
        mail: Mail | None = None,
        held: str | None = None,
        block: int | None = None,
    ) -> Cohort:
        cohort = vault.holdings.cohort(
            ids, method.local_includes_shared, held, block, method.ordered
        )
        cohort = replace(cohort, role=role, mail=None if mail is None else mail.to(ids))
        return replace(cohort, weight=repeatable(method, method.client_weight, False)(cohort))

    def _trainer(
        self, method: Method, public: Params, vault: Vault, role: str, mail: Mail | None,
        clock: Clock,
    ) -> Callable[[Tensor], Trained]:  # fmt: skip
        """Return what trains any clients of a round, changing nothing."""

        def train(ids: Tensor) -> Trained:
            cohort, before = self.cohort(method, vault, ids, role, mail), vault.read(ids)
            return Trained(cohort, before, *method.checked_sum(public, before, cohort, clock))

        return train

    def _train(
        self, method: Method, public: Params, vault: Vault, cohort: Cohort, clock: Clock,
        first: bool,
    ) -> tuple[Sum, Private, Mapping[str, Rows]]:  # fmt: skip
        """Train one cohort. Return its sum, its new private state, and rows to log.

        first: of the run, in which code from outside has to give the same twice
        """
        before = vault.read(cohort.ids)
        if self.fused and not (self.guards or method.individual or method.logs):
            ask = repeatable(method, method.checked_sum, first)
            summed, private = ask(public, before, cohort, clock)
            if sound(summed, public, self.limit * method.unit, cohort.weight):
                return replace(summed, who=cohort.ids), _only_changed(before, private), {}
        train = repeatable(method, method.client_train, first)
        update, private = train(public, before, cohort, clock)
        own = () if method.only_averages else tuple(update.entries)  # not broadcast
        update, kept, refused = gate(update, self.limit * method.unit, public, cohort.weight, own)
        rows = method.client_log(update, cohort) if method.logs else {}
        if refused:  # a device keeps its old state if its update is refused
            private = _undo_refused(before, private, kept)
        update, ids, weight = chosen(update, kept), cohort.ids[kept], cohort.weight[kept]
        check_weights(self.guards, weight)
        for guard in self.guards:
            update = guard.each(update, leaves=method.individual)
        summed = update.fold(weight, ids if method.individual and len(ids) else None)
        return replace(summed, who=ids, refused=refused), _only_changed(before, private), rows

    def measure(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Sum:
        """Rank and count in chunks, to bound the memory of [clients, items]."""
        total = Sum({}, 0.0, 0)
        with step(f"evaluating on {metric.split}", len(ids), "users") as shown:
            for chunk in torch.split(ids, self._rows(vault)):
                reached = shown.done + len(chunk)
                cohort = self.cohort(method, vault, chunk, held=metric.split, block=metric.block)
                scores = self._scores(method, public, vault, cohort, metric, shown)
                lots = [cohort.own] if "own" in metric.mask else []
                others = [name for name in metric.mask if name != "own"]
                lots += [vault.holdings.of_clients(n, cohort.ids, metric.block) for n in others]
                masked = lots[0] if len(lots) == 1 else masked_lot(cohort, lots)
                totals, weight = metric.totals(scores, cohort, masked)
                total = total + Sum(totals, float(weight), weight)
                shown.reach(reached)
        return total

    def _scores(
        self, method: Method, public: Params, vault: Vault, cohort: Cohort, metric: Metric,
        shown: Step,
    ) -> Scores:  # fmt: skip
        """Score a cohort, or let a metric that only needs lists do it in parts."""
        few = max(1, CACHED_CELLS // max(cohort.items, 1))
        if not getattr(metric, "wants_scores", True):
            return torch.empty(0, device=cohort.ids.device)
        in_parts = self.device == "cpu" and len(cohort) > few and cohort.graph is None
        if not (in_parts and getattr(metric, "only_lists", False)):
            return method.checked_scores(public, vault.read(cohort.ids), cohort)

        def parts() -> Iterator[Tensor]:
            for begin in range(0, len(cohort), few):
                some = cohort.part(begin, min(begin + few, len(cohort)))
                yield method.checked_scores(public, vault.read(some.ids), some)
                shown.reach(shown.done + len(some))

        return InParts(parts)

    def _rows(self, vault: Vault) -> int:
        return max(1, self.score_cells // max(vault.holdings.items, 1))

    def query(
        self, method: Method, public: Params, vault: Vault, records: Records, ask: Question
    ) -> Tensor:
        records = records.to(self.device)
        out = torch.zeros(len(records), dtype=torch.float64, device=self.device)
        clients, place = torch.unique(records.client, return_inverse=True)
        for start in range(0, len(clients), self._rows(vault)):
            chunk = clients[start : start + self._rows(vault)]
            cohort = self.cohort(method, vault, chunk)
            here = (place >= start) & (place < start + len(chunk))
            out[here] = method.client_answer(
                public, vault.read(chunk), cohort, place[here] - start, records.item[here], ask
            ).double()
        if ask == "open":  # a cohort has the training items only
            out[records.among(vault.holdings.part(clients).records)] = -torch.inf
        return out

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        if isinstance(event, Arrive):
            vault = self._end_block(method, public, vault)
        holdings = vault.holdings.apply(event)
        vault = replace(vault, holdings=holdings)
        if isinstance(event, Arrive | Join):
            vault = _add_clients(vault, method, clock.at(0))
        if isinstance(event, Withdraw):
            gone = torch.tensor([event.client], device=self.device)
            vault = _reset(vault, method, gone, clock.at(0))
            vault = replace(vault, log=vault.log.without(gone))
        if isinstance(event, Anew):
            vault = _reset(vault, method, event.records.clients, clock)
        if isinstance(event, Erase | Unshare):
            gone = event.records.clients.to(self.device)
            vault = replace(vault, log=vault.log.without(gone))
        return vault

    def _end_block(self, method: Method, public: Params, vault: Vault) -> Vault:
        ids = vault.holdings.available.nonzero().squeeze(1)
        written = []
        for chunk in torch.split(ids, min(self.together, self._rows(vault))):
            cohort = self.cohort(method, vault, chunk)
            written.append((chunk, method.client_turn(public, vault.read(chunk), cohort)))
        return vault.write(written)


@dataclass(frozen=True)
class OneByOne(InProcess):
    """A slow and simple reference: every client alone, without fused code."""

    chunk: int | None = 1
    score_cells: int = 1
    fused: bool = False


def by_role(ids: Tensor, roles: Mapping[int, str] | None) -> list[tuple[str, Tensor]]:
    """Return the clients of each role, in order. Default role: "train"."""
    if not roles:
        return [("train", ids)]
    marked: dict[str, list[int]] = {}
    for client, role in roles.items():
        marked.setdefault(role, []).append(client)
    where = {r: torch.isin(ids, torch.tensor(c, device=ids.device)) for r, c in marked.items()}
    rest = ~torch.stack(list(where.values())).any(0)
    where["train"] = where["train"] | rest if "train" in where else rest
    return [(role, ids[where[role]]) for role in sorted(where) if bool(where[role].any())]


def _only_changed(before: Private, after: Private) -> Private:
    new = {n: v for n, v in after.values.items() if v is not before.values.get(n)}
    return replace(after, values=new)


def _undo_refused(before: Private, after: Private, kept: Tensor) -> Private:
    """Undo the round for refused clients. kept: [C] bool"""
    values = {}
    for name, value in after.values.items():
        old = before.values.get(name, torch.zeros_like(value)).to(value.dtype)
        values[name] = torch.where(kept.view(-1, *[1] * (value.dim() - 1)), value, old)
    return replace(after, values=values)


def _reset(vault: Vault, method: Method, clients: Tensor, clock: Clock) -> Vault:
    """Set the private values of some clients to their first values, or to zeros."""
    clients = clients.to(vault.holdings.members.device)
    first, old = method.client_init(clients, clock).values, vault.read(clients).values
    values = {name: first.get(name, torch.zeros_like(value)) for name, value in old.items()}
    return vault.write([(clients, Private(values))])


def _add_clients(vault: Vault, method: Method, clock: Clock) -> Vault:
    """Add new clients with their initial values, or zeros for values made by devices later."""
    known, device = max(map(len, vault.private.values()), default=0), vault.holdings.members.device
    new = torch.arange(known, vault.holdings.clients, device=device)
    if not len(new):
        return vault
    first, values = method.client_init(new, clock).values, {}
    for name, value in vault.private.items():
        zeros = value.new_zeros((len(new), *value.shape[1:]))
        values[name] = torch.cat([value, first.get(name, zeros).to(value)])
    return replace(vault, private=values)
