"""A method is a set of pure functions, each labelled by where it runs. As it stands: FedAvg.

`server_*` functions see the world and sums; no argument of theirs is named private or cohort (a
test reads the signatures). `client_*` functions work on a cohort: many clients in flat tensors.
A paper is one subclass in one file of `rescind.methods`, with both halves in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Mail
from rescind.core.fast import dispatch as fused
from rescind.core.fast import softmax as dense
from rescind.core.model import Model
from rescind.core.optim import LocalOptimiser, Step, server_move
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.records import Event
from rescind.core.state import REFERENCE, Private, ServerState
from rescind.core.tasks import Metric, Question, Task, named
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import BoundaryError, ConfigError

if TYPE_CHECKING:
    from rescind.core.executor import Executor
    from rescind.core.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Method:
    """Federated averaging (McMahan et al. 2017), and the default of every verb.

    With plain SGD, one batch and one epoch it is FedSGD: the mean of the clients' gradients.
    """

    model: Model
    clients_per_round: int | None = None
    """How many clients train in a round; None is everybody who is available."""
    epochs: int = 1
    """Local epochs."""
    batch_size: int | None = None
    """Samples in a client's mini-batch; None is all of them."""
    loss: Literal["bpr", "bce", "softmax"] = "bpr"
    """Ranking only: pairs against negatives, labels, or every item against all others."""
    reduce: Literal["mean", "sum"] = "mean"
    """How a client's loss is taken over the samples of a batch."""
    negatives: int = 1
    """Negatives drawn for each positive, anew in every epoch."""
    candidates: int | None = None
    """Softmax only: items drawn to stand for what a client does not own; None takes all of it."""
    temperature: float = 1.0
    """Scores are divided by it inside the loss. 0.2 for cosine scores: fedshare.md section 2."""
    decay: float = 0.0
    """L2 on sampled rows only: a dense decay would touch every row (baselines.md T2)."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """The clients' optimiser."""
    rate: float = 1.0
    """Learning rate of public parameters at clients."""
    private_rate: float = 1.0
    """Learning rate of private parameters."""
    rate_per_item: bool = False
    """Multiply `rate` by the number of items, which undoes the dilution of a plain mean."""
    weight_decay: float = 0.0
    """Weight decay of everything a client trains, in its optimiser (graphs: fedgcv.md 3)."""
    keep_moments: bool = False
    """Client Adam: carry the moments of dense and private parameters over rounds."""
    aggregate: Literal["clients", "records", "roots", "rows"] = "clients"
    """Clients count alike, by their records or the root of that, or per row who touched it."""
    server_optimiser: Literal["plain", "momentum", "adam"] = "plain"
    server_rate: float = 1.0
    server_decay: int | None = None
    """Rounds in which the server's rates fall to 2 % along a cosine; None keeps them."""
    local_includes_shared: bool = True
    """A device also trains on what it lent; False: only on what it kept to itself."""

    tasks: ClassVar[tuple[str, ...]] = ("ranking",)
    """The tasks it can work on."""
    paper: ClassVar[str] = ""
    """Where it was published, for the tables."""
    presets: ClassVar[tuple[str, ...]] = ()
    """Names of class methods that build it otherwise, such as `as_published`."""
    individual: ClassVar[bool] = False
    """True: sums carry single updates, so the server sees them."""
    seedless: ClassVar[bool] = False
    """True: a closed form that draws nothing, so that the seed does not matter."""
    logs: ClassVar[bool] = False
    """True: devices keep rows of their own updates (`client_log`)."""
    exact: ClassVar[bool] = True
    """False: what `unlearn` gives is close to a retraining, not equal to one."""
    unlearning: ClassVar[str] = "Retrain"
    """How `unlearn` forgets, as a receipt says it."""

    def __post_init__(self) -> None:
        positive = {
            "epochs": self.epochs,
            "negatives": self.negatives,
            "temperature": self.temperature,
            "batch_size": self.batch_size,
            "clients_per_round": self.clients_per_round,
            "candidates": self.candidates,
            "server_decay": self.server_decay,
        }
        for field, value in positive.items():
            if value is not None and value <= 0:
                raise ConfigError(f"{type(self).__name__}.{field} must be above 0, got {value}.")
        for field in ("rate", "private_rate", "server_rate", "decay", "weight_decay"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ConfigError(
                    f"{type(self).__name__}.{field} must be 0 or above and finite, "
                    f"got {getattr(self, field)}."
                )
        if self.model.task not in self.tasks:
            raise BoundaryError(
                f"{type(self).__name__} works on {' and '.join(self.tasks)}, but its model "
                f"{type(self.model).__name__} is for {self.model.task}. Give it another model."
            )

    # -- server side: world and sums only --------------------------------------------------------

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """The first state: the model's public parameters."""
        return ServerState(dict(self.model.public(world.sizes, clock)))

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Who takes part: the k available clients with the smallest hash. [k] sorted

        So a client that is never drawn leaves no trace in anybody else's turn.
        """
        willing = world.available if self.local_includes_shared else world.announced.keeps
        ids = willing.nonzero().squeeze(1)
        if self.clients_per_round is None or self.clients_per_round >= len(ids):
            return ids
        hashes = clock.bits("sample", ids)
        chosen = torch.topk(hashes, self.clients_per_round, largest=False).indices
        return ids[chosen].sort().values

    def server_mail(
        self, state: ServerState, world: World, ids: Tensor, clock: Clock
    ) -> Mail | None:
        """What differs by recipient; nothing by default."""
        return None

    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """The weighted mean of all updates, through the server's optimiser."""
        mean = self.server_mean(sums)
        rate = self.server_rate * self.server_pace(clock.round)
        public, own = server_move(state.public, state.own, mean, self.server_optimiser, rate)
        return state.next(public, own)

    def server_pace(self, round_: int) -> float:
        """What the server's rates are multiplied by in a round: 1 at first, .02 in the end."""
        if self.server_decay is None:
            return 1.0
        done = min(round_ / self.server_decay, 1.0)
        return 0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2

    def server_mean(self, sums: Mapping[str, Sum]) -> dict[str, Tensor]:
        """The mean update over all roles: by total weight, or per row by who touched it."""
        if not sums:
            return {}
        roles = iter(sums.values())
        total = next(roles)
        for other in roles:
            total = total + other
        mean = total.mean()
        if self.aggregate == "rows":
            for name, touched in total.touched.items():
                each = touched.clamp(min=1e-12).view(-1, *[1] * (total.totals[name].dim() - 1))
                mean[name] = total.totals[name] / each
        return mean

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """A block begins: tables grow by the first values of the new rows."""
        fresh = self.model.public(world.sizes, clock.at(0))
        public = dict(state.public)
        for name in self.model.tables:
            if name in public:
                new = fresh[name][len(public[name]) :]
                public[name] = torch.cat([public[name], new.to(public[name])])
        return ServerState(public, state.own, state.memory, state.round)

    # -- client side: flat tensors with owner ids, many clients at once --------------------------

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        """First private values, each from the client's own id."""
        return Private(self.model.private(ids, clock))

    def client_weight(self, cohort: Cohort) -> Tensor:
        """How much each client counts in the sum. [C]"""
        return weights(self.aggregate, cohort.train.count)

    def client_steps(self, public: Params) -> tuple[Step, ...]:
        """What each batch moves, in order; the loss is taken anew for each step."""
        scale = 1
        if self.rate_per_item and self.model.tables:
            scale = len(public[self.model.tables[0]])
        no_one = torch.zeros(0, dtype=torch.int64)
        private = self.model.private(no_one, Clock(0))
        trained = [name for name in public if not name.startswith(REFERENCE)]
        rates = {n: self.rate * (scale if n in self.model.tables else 1) for n in trained}
        rates |= dict.fromkeys(private, self.private_rate)
        return (Step(rates, self.optimiser, self.weight_decay),)

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """Samples, negatives and batches of one local epoch."""
        return self.task.plan(self, cohort, clock)

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """One number per client. [C]"""
        return self.task.loss(self, self.model, work, batch, cohort)

    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Plan, loss, steps, by autograd: the readable form, for any model and any guard."""
        plans = [
            self.client_plan(public, private, cohort, clock.step(e)) for e in range(self.epochs)
        ]
        steps = self.client_steps(public)
        names = {name for step in steps for name in step.rates}
        work = Work.begin(plans, names, self.model.tables, public, private.values, cohort)
        optimiser = LocalOptimiser.begin(work, private, self.keep_moments)
        for epoch, plan in enumerate(plans):
            for wave, batch in enumerate(work.batches(plan)):
                now = clock.step(epoch).batch(wave)
                for step in steps:
                    leaves = work.leaves(step.rates)
                    loss = self.client_loss(work, batch, public, private, cohort, now)
                    # Whoever has no batch in this wave stands still, whatever the loss says.
                    total = torch.where(batch.active, loss, 0.0).sum()
                    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                    optimiser.step(step, dict(zip(leaves, grads, strict=True)), batch)
        own = {name: value.detach() for name, value in work.own.items()}
        return moved(work, public), private.with_(**own, **optimiser.kept())

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """The fold of `client_train`, by a compiled loop over clients where one fits.

        Overridden by methods with a fused form of their own, which never makes single updates.
        """
        if fused.fits(self, Method, public):
            return fused.client_sum(self, public, private, cohort, clock)
        if dense.fits(self, Method):
            return dense.client_sum(self, public, private, cohort, clock)
        update, private = self.client_train(public, private, cohort, clock)
        return update.fold(cohort.weight), private

    def client_log(self, update: Update, cohort: Cohort) -> Mapping[str, Rows]:
        """What devices keep of their own updates, by table (with `logs = True`)."""
        return {}

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """A block ends: what devices remember for the next."""
        return private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """All a cohort's model says: [C, I] for items, [N, classes] for nodes."""
        return self.task.scores(self.model, public, private.values, cohort)

    def client_answer(
        self,
        public: Params,
        private: Private,
        cohort: Cohort,
        owner: Tensor,
        item: Tensor,
        ask: Question,
    ) -> Tensor:
        """The score or loss of single records: recommendations and audits. [n]"""
        scores = self.client_scores(public, private, cohort)
        return self.task.answer(scores, cohort, owner, item, ask)

    @property
    def task(self) -> Task:
        """The kind of problem, as its model says."""
        return named(self.model.task)

    def metric(self, split: str = "test", k: tuple[int, ...] = (20,)) -> Metric:
        """How well it does, by default."""
        return self.task.metric(split, k)

    def executor_for(self, executor: Executor) -> Executor:
        """Who does the clients' work for it; a method may want sums to go another way."""
        return executor

    # -- the story of forgetting -----------------------------------------------------------------

    def unlearn(self, fed: Federation, event: Event) -> Federation:
        """Train again on what remains, with the same clock: exact (`Federation.retrained`)."""
        return fed.retrained(event)


def weights(aggregate: str, count: Tensor) -> Tensor:
    """How much each client counts in a sum, by how many records it trains on. [C]"""
    if aggregate == "records":
        return count.float()
    return count.float().sqrt() if aggregate == "roots" else torch.ones_like(count).float()


def moved(work: Work, public: Params) -> Update:
    """How far a cohort's copies moved from what was broadcast."""
    entries: dict[str, Rows | Tensor] = {}
    for name, rows in work.rows.items():
        if not rows.requires_grad:  # broadcast and read, not trained
            continue
        value = rows.detach() - public[name].index_select(0, work.shelf.item)
        entries[name] = Rows(work.shelf.owner, work.shelf.item, value, len(public[name]))
    for name, value in work.dense.items():
        entries[name] = value.detach() - public[name]
    return Update(work.shelf.owners, entries)
