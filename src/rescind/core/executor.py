"""Who does the clients' work: the only thing that changes between a laptop and a network.

`InProcess` trains cohorts side by side. `OneByOne` is its slow, obvious twin: one client after
another through the readable form, used as an oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from rescind.core import params
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Mail
from rescind.core.gate import chosen, gate, sound
from rescind.core.guards import Guard, check_guards, check_weights
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.records import Anew, Arrive, Erase, Event, Join, Records, Unshare, Withdraw
from rescind.core.state import Log, Private
from rescind.core.tasks import Metric, Question
from rescind.core.tasks.metrics import masked_lot
from rescind.core.update import Rows, Sum
from rescind.core.world import Announced
from rescind.errors import ConfigError


@dataclass(frozen=True)
class Vault:
    """The client side as one value: what everybody holds, and everybody's private state."""

    holdings: Holdings
    private: Params
    """By name: [clients, ...]"""
    log: Log = field(default_factory=Log)

    @property
    def announced(self) -> Announced:
        """What the devices say of themselves."""
        return Announced(self.holdings.available, self.holdings.keeps)

    def read(self, ids: Tensor) -> Private:
        """The private state of some clients."""
        return Private({n: v[ids] for n, v in self.private.items()}, self.log.of(ids))

    def write(self, chunks: list[tuple[Tensor, Private]]) -> Vault:
        """The vault with the state of some clients replaced; a new name starts as zeros."""
        values = dict(self.private)
        fresh: set[str] = set()
        for ids, private in chunks:
            for name, value in private.values.items():
                if name not in values:
                    shape = (self.holdings.clients, *value.shape[1:])
                    values[name] = value.new_zeros(shape)
                    fresh.add(name)
                elif name not in fresh:
                    values[name] = values[name].clone()
                    fresh.add(name)
                values[name][ids] = value.to(values[name].dtype)
        return replace(self, private=values)

    @property
    def nbytes(self) -> int:
        """Bytes of private state on all devices together, logs included."""
        return params.nbytes(self.private) + self.log.nbytes


class Executor(Protocol):
    """In process, one by one, or over a network."""

    def open(self, method: Method, holdings: Holdings, clock: Clock) -> Vault:
        """Devices with their first private values."""
        ...

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
        """One round of local training: a sum for each role, and the devices afterwards."""
        ...

    def measure(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Sum:
        """Evaluation where the data is; totals come back."""
        ...

    def query(
        self, method: Method, public: Params, vault: Vault, records: Records, ask: Question
    ) -> Tensor:
        """An answer per record: recommendations and audits. [n]"""
        ...

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        """Devices after an event: holdings change, blocks turn, logs of the forgotten go."""
        ...


@dataclass(frozen=True)
class InProcess:
    """Cohorts in flat tensors, in this process."""

    device: str = "cpu"
    guards: tuple[Guard, ...] = ()
    limit: float = 1e6
    """Updates of a larger norm are refused; healthy ones are below 1,000 (gate.py)."""
    chunk: int | None = None
    """Clients trained together; changes speed and memory only. None: 1,024 on a CPU, whose caches
    are small, a million on a GPU."""
    score_cells: int = 2**24
    """Clients x items scored together when measuring: 64 MB of float32."""
    fused: bool = True
    """Use `client_sum` where neither guard, log nor single updates are asked for."""

    def __post_init__(self) -> None:
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(
                f"device '{self.device}' was asked for, but torch finds no GPU here. "
                f"Use device='cpu'."
            )
        check_guards(self.guards)

    @property
    def together(self) -> int:
        """How many clients are trained together."""
        return self.chunk or (1024 if self.device == "cpu" else 2**20)

    def open(self, method: Method, holdings: Holdings, clock: Clock) -> Vault:
        """Devices with their first private values, each from its own id."""
        moved = holdings.to(self.device)
        ids = torch.arange(moved.clients, device=self.device)
        return Vault(moved, method.client_init(ids, clock).values)

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
        """Split by role and chunk; train, gate, guard and fold each cohort."""
        sums: dict[str, Sum] = {}
        written: list[tuple[Tensor, Private]] = []
        log = vault.log
        for role, members in by_role(ids, roles):
            for chunk in torch.split(members, self.together):
                cohort = self.cohort(method, vault, chunk, role, mail)
                summed, private, rows = self._train(method, public, vault, cohort, clock)
                down = len(chunk) * params.nbytes(public)
                if cohort.mail is not None:
                    down += params.nbytes(cohort.mail.values)
                summed = replace(summed, down=summed.down + down)
                sums[role] = sums[role] + summed if role in sums else summed
                written.append((chunk, private))
                if rows:
                    log = log.add(clock.round, chunk, rows)
            if self.guards and not method.individual and role in sums:
                for guard in self.guards:
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
        """These clients side by side, as the method wants them."""
        cohort = vault.holdings.cohort(ids, method.local_includes_shared, held, block)
        letters = None if mail is None else mail.to(ids)
        cohort = replace(cohort, role=role, mail=letters)
        return replace(cohort, weight=method.client_weight(cohort))

    def _train(
        self, method: Method, public: Params, vault: Vault, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private, Mapping[str, Rows]]:
        """One cohort: its sum, its new private state, and what its devices log."""
        before = vault.read(cohort.ids)
        if self.fused and not (self.guards or method.individual or method.logs):
            summed, private = method.client_sum(public, before, cohort, clock)
            if sound(summed, public, self.limit, cohort.weight):
                return replace(summed, who=cohort.ids), _changed(before, private), {}
        update, private = method.client_train(public, before, cohort, clock)
        own = () if method.only_averages else tuple(update.entries)  # names not broadcast
        update, kept, refused = gate(update, self.limit, public, cohort.weight, own)
        rows = method.client_log(update, cohort) if method.logs else {}
        if refused:  # a device whose update is refused stays as it was before the round
            private = _reverted(before, private, kept)
        update, ids, weight = chosen(update, kept), cohort.ids[kept], cohort.weight[kept]
        check_weights(self.guards, weight)
        for guard in self.guards:
            update = guard.each(update, leaves=method.individual)
        summed = update.fold(weight, ids if method.individual and len(ids) else None)
        return replace(summed, who=ids, refused=refused), _changed(before, private), rows

    def measure(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Sum:
        """Rank and count, chunk by chunk, so that [clients, items] stays bounded."""
        total = Sum({}, 0.0, 0)
        for cohort, scores in self._scored(method, public, vault, ids, metric):
            lots = [cohort.own] if "own" in metric.mask else []
            for name in metric.mask:
                if name != "own":
                    lots.append(vault.holdings.of_clients(name, cohort.ids, metric.block))
            masked = lots[0] if len(lots) == 1 else masked_lot(cohort, lots)
            totals, weight = metric.totals(scores, cohort, masked)
            total = total + Sum(totals, float(weight), weight)
        return total

    def _scored(
        self, method: Method, public: Params, vault: Vault, ids: Tensor, metric: Metric
    ) -> Iterator[tuple[Cohort, Tensor]]:
        for chunk in torch.split(ids, self._rows(vault)):
            cohort = self.cohort(method, vault, chunk, held=metric.split, block=metric.block)
            if getattr(metric, "wants_scores", True):
                yield cohort, method.client_scores(public, vault.read(chunk), cohort)
            else:
                yield cohort, torch.empty(0, device=ids.device)

    def _rows(self, vault: Vault) -> int:
        return max(1, self.score_cells // max(vault.holdings.items, 1))

    def query(
        self, method: Method, public: Params, vault: Vault, records: Records, ask: Question
    ) -> Tensor:
        """Score the clients concerned and read off the records asked for."""
        records = records.to(self.device)
        out = torch.zeros(len(records), dtype=torch.float64, device=self.device)
        who, place = torch.unique(records.client, return_inverse=True)
        for start in range(0, len(who), self._rows(vault)):
            chunk = who[start : start + self._rows(vault)]
            cohort = self.cohort(method, vault, chunk)
            here = (place >= start) & (place < start + len(chunk))
            out[here] = method.client_answer(
                public, vault.read(chunk), cohort, place[here] - start, records.item[here], ask
            ).double()
        return out

    def apply(
        self, method: Method, public: Params, event: Event, vault: Vault, clock: Clock
    ) -> Vault:
        """Devices after an event."""
        if isinstance(event, Arrive):
            vault = self._turn(method, public, vault)
        holdings = vault.holdings.apply(event)
        vault = replace(vault, holdings=holdings)
        if isinstance(event, Arrive | Join):
            new = torch.arange(holdings.clients, device=self.device)
            vault = _grown(vault, method.client_init(new, clock.at(0)).values)
        if isinstance(event, Withdraw):
            gone = torch.tensor([event.client], device=self.device)
            first = method.client_init(gone, clock.at(0)).values
            blank = {n: first.get(n, torch.zeros_like(v[gone])) for n, v in vault.private.items()}
            vault = replace(vault.write([(gone, Private(blank))]), log=vault.log.without(gone))
        if isinstance(event, Anew):
            vault = _reset(vault, method, torch.unique(event.records.client), clock)
        if isinstance(event, Erase | Unshare):
            gone = torch.unique(event.records.client).to(self.device)
            vault = replace(vault, log=vault.log.without(gone))
        return vault

    def _turn(self, method: Method, public: Params, vault: Vault) -> Vault:
        """A block ends on every device that was active in it."""
        ids = vault.holdings.available.nonzero().squeeze(1)
        written = []
        for chunk in torch.split(ids, min(self.together, self._rows(vault))):
            cohort = self.cohort(method, vault, chunk)
            written.append((chunk, method.client_turn(public, vault.read(chunk), cohort)))
        return vault.write(written)


@dataclass(frozen=True)
class OneByOne(InProcess):
    """The obvious twin: every client alone, through the readable form."""

    chunk: int | None = 1
    score_cells: int = 1
    fused: bool = False


def by_role(ids: Tensor, roles: Mapping[int, str] | None) -> list[tuple[str, Tensor]]:
    """The clients of each role, in order; everybody "train" unless told otherwise."""
    if not roles:
        return [("train", ids)]
    marked: dict[str, list[int]] = {}
    for client, role in roles.items():
        marked.setdefault(role, []).append(client)
    where = {r: torch.isin(ids, torch.tensor(c, device=ids.device)) for r, c in marked.items()}
    rest = ~torch.stack(list(where.values())).any(0)
    where["train"] = where["train"] | rest if "train" in where else rest
    return [(role, ids[where[role]]) for role in sorted(where) if bool(where[role].any())]


def _changed(before: Private, after: Private) -> Private:
    """Only what a method replaced: the rest need not be written back."""
    new = {n: v for n, v in after.values.items() if v is not before.values.get(n)}
    return replace(after, values=new)


def _reverted(before: Private, after: Private, kept: Tensor) -> Private:
    """What a cohort holds after a round from which some were refused. kept: [C] bool"""
    values = {}
    for name, value in after.values.items():
        old = before.values.get(name, torch.zeros_like(value)).to(value.dtype)
        values[name] = torch.where(kept.view(-1, *[1] * (value.dim() - 1)), value, old)
    return replace(after, values=values)


def _reset(vault: Vault, method: Method, people: Tensor, clock: Clock) -> Vault:
    """Give these people their first private values again. people: [n] ids"""
    first = method.client_init(people.to(vault.holdings.members.device), clock).values
    private = dict(vault.private)
    for name, value in vault.private.items():
        private[name] = value.clone()
        private[name][people] = first[name].to(value) if name in first else 0
    return replace(vault, private=private)


def _grown(vault: Vault, first: Params) -> Vault:
    """Room for new clients: their first values, zeros for what devices made up later."""
    values = {}
    for name, value in vault.private.items():
        missing = vault.holdings.clients - len(value)
        new = (
            first[name][len(value) :]
            if name in first
            else value.new_zeros((missing, *value.shape[1:]))
        )
        values[name] = torch.cat([value, new.to(value)])
    return replace(vault, private=values)
