"""A method is a set of pure functions, each labelled by where it runs.

`server_*` functions see the world and sums; none of their arguments is named private or cohort (a
test reads the signatures). `client_*` functions work on a cohort: many clients in flat tensors.
A paper is one subclass in one file of `rescind.methods`, with both halves in it. Methods that
train by gradients derive from `GradientMethod`, which is federated averaging by default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from rescind.core import fast
from rescind.core.apart import check_scores
from rescind.core.claims import Claims
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Mail
from rescind.core.model import Model
from rescind.core.named import Named
from rescind.core.own_code import check_totals, check_update, outside, repeatable
from rescind.core.params import Params
from rescind.core.records import Event, Records
from rescind.core.request import Request
from rescind.core.returns import hold_to_answers
from rescind.core.saved import must_be_like
from rescind.core.settings import refuse_unknown
from rescind.core.state import Private, ServerState
from rescind.core.tasks import Metric, Question, Task, named
from rescind.core.update import Rows, Sum, Update
from rescind.core.world import World
from rescind.errors import BoundaryError, ConfigError, DataError

if TYPE_CHECKING:
    from rescind.core.executor import Executor
    from rescind.core.federation import Federation


WIDEST = 2**20
"""Largest width of a model. Wider ones are typing errors."""


@dataclass(frozen=True, kw_only=True)
class Unlearner(ABC):
    """A way to forget a request, with its own settings. Every method is one, too.

    A class that is nothing else (`Retrain`, `FedShareUnlearn`) serves federations that learnt with
    another method.
    """

    exact: ClassVar[bool] = True
    """False: the result is close to a retraining, not equal to one."""
    unlearning: ClassVar[str] = "Retrain"
    """The way in which it forgets, as a receipt says it of methods of this package."""
    works_without_devices: ClassVar[bool] = False
    """True: a request can be answered while devices are away (`Request.away`)."""
    answers: ClassVar[bool] = True
    """False: a control of audits that leaves the model as it was. It cannot answer a request."""
    paper: ClassVar[str] = ""
    """Where it was published, for the tables."""
    presets: ClassVar[tuple[str, ...]] = ()
    """Names of class methods with other settings, such as `as_published`."""
    tasks: ClassVar[tuple[str, ...]] = ("ranking",)
    """The tasks it can work on."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse settings that do not exist, and name those that do."""
        refuse_unknown(cls, given)
        return super().__new__(cls)

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        hold_to_answers(cls)

    def unlearn(self, fed: Federation, request: Request | Event | Named) -> Federation:
        """Forget a request, given as such or as its event. Subclasses implement `forget`."""
        request = fed.request(request)
        if request.away and not self.works_without_devices:
            raise ConfigError("Only additive methods (Gram) take devices that are away.")
        return replace(self.forget(fed, request), forgot_by=self)

    @abstractmethod
    def forget(self, fed: Federation, request: Request) -> Federation:
        """Return the federation after the request, as this method forgets it."""


@dataclass(frozen=True, kw_only=True)
class Method(Unlearner):
    """The contract of a learner: what the server does, what clients do, how it forgets.

    `server_step` and `client_train` must be implemented, all else has a default.
    """

    model: Model
    clients_per_round: int | None = None
    """Clients that train in a round; None: all that are available."""

    individual: ClassVar[bool] = False
    """True: sums carry single updates, so the server sees them."""
    seedless: ClassVar[bool] = False
    """True: a closed form that draws nothing, so that the seed does not matter."""
    in_order: ClassVar[bool] = False
    """True: learns from what came before what, so that data without times says nothing to it."""
    enough_rounds: ClassVar[int | None] = None
    """Rounds after which more change nothing: LIFE and `rescind run` train no more by themselves.
    None: 1 for a closed form, else not known."""
    control: ClassVar[bool] = False
    """True: a trivial method, which tables show as a lower bound."""
    because: ClassVar[str] = "taste"
    """Why an item is recommended; "popularity": all users get the same, less what they have."""
    additive: ClassVar[bool] = False
    """True: the model is a function of a sum over people, from which one can be subtracted."""
    ordered: ClassVar[bool] = False
    """True: devices read the order in time of their items, and ratings (`Lot.time`)."""
    logs: ClassVar[bool] = False
    """True: devices keep rows of their own updates (`client_log`)."""
    unit: ClassVar[float] = 1.0
    """What stands for 1 in an update of whole numbers: the limit of norms is in these."""

    def __post_init__(self) -> None:
        self.check_above_zero("clients_per_round")
        check_model(type(self).__name__, self.model)
        if self.model.task not in self.tasks:
            raise BoundaryError(
                f"{type(self).__name__} works on {' and '.join(self.tasks)}, but its model "
                f"{type(self.model).__name__} is for {self.model.task}. Give it another model."
            )
        for size in ("dim", "hidden"):
            value = getattr(self.model, size, 1)
            if not 1 <= value <= WIDEST:
                name = f"{type(self.model).__name__}.{size}"
                raise ConfigError(f"{name} must be from 1 to {WIDEST:,}, got {value}.")

    @classmethod
    def rounds_or(cls, usual: int) -> int:
        """Return how many rounds to train: those that are enough, or the usual number."""
        return cls.enough_rounds or (1 if cls.seedless else usual)

    def for_items(self, items: int) -> Method:
        """Return the method that is used with this many items. Default: this one."""
        return self

    def say_choice(self, items: int) -> None:
        """Log, once as a federation starts, which other method `for_items` chose."""

    def check_order(self, name: str, known: bool) -> None:
        """Raise before a run starts if the order of rows is needed, and not known. name: of data"""
        if self.in_order and not known:
            raise ConfigError(
                f"{type(self).__name__} learns from the order of each user's rows, but '{name}' "
                f"has no times. Name their column (--time COLUMN), set data.order = true, or use "
                f"Gram, which needs no times."
            )

    def check_task(self, asked: str) -> None:
        """Raise before a run starts if the method, or its model, is for another task than data."""
        task = "ranking" if asked == "next_item" else asked
        if task not in self.tasks or task != self.model.task:
            raise BoundaryError(
                f"{type(self).__name__} with {type(self.model).__name__} works on "
                f"{self.model.task}, but this data is for {asked}. Choose another."
            )

    def check_above_zero(self, *fields: str) -> None:
        """Raise `ConfigError` unless these fields are None or above 0."""
        for field in fields:
            value = getattr(self, field)
            if value is not None and value <= 0:
                raise ConfigError(f"{type(self).__name__}.{field} must be above 0, got {value}.")

    # -- server side: world and sums only --------------------------------------------------------

    def server_init(self, world: World, clock: Clock) -> ServerState:
        """Return the first state: the model's public parameters."""
        return ServerState(dict(self.model.public(world.sizes, clock)))

    def server_sample(self, state: ServerState, world: World, clock: Clock) -> Tensor:
        """Draw the round's clients: the k available ones with the smallest hash. [k] sorted

        So a client that is never drawn changes nothing for the others.
        """
        willing = world.available if self.local_includes_shared else world.announced.keeps
        chosen = self._drawn_in_one_pass(willing, clock)
        if chosen is not None:
            return chosen
        ids = willing.nonzero().squeeze(1)
        if self.clients_per_round is None or self.clients_per_round >= len(ids):
            return ids
        hashes = clock.bits("sample", ids)
        chosen = torch.topk(hashes, self.clients_per_round, largest=False).indices
        return ids[chosen].sort().values

    def _drawn_in_one_pass(self, willing: Tensor, clock: Clock) -> Tensor | None:
        """Return the same clients as `server_sample` where a compiled loop is faster; else None."""
        few = self.clients_per_round
        if few is None or not fast.compiled() or willing.device.type != "cpu":
            return None
        from rescind.core.fast.sampling import MANY, smallest_draws

        if len(willing) < max(MANY, 8 * few):
            return None
        drawn = smallest_draws(willing, clock.key("sample"), few)
        return None if drawn is None else drawn.sort().values

    def server_mail(
        self, state: ServerState, world: World, ids: Tensor, clock: Clock
    ) -> Mail | None:
        """Return what differs by recipient; by default nothing."""
        return None

    @abstractmethod
    def server_step(
        self, state: ServerState, sums: Mapping[str, Sum], world: World, clock: Clock
    ) -> ServerState:
        """Return the state after a round. sums: by role"""

    def server_turn(self, state: ServerState, world: World, clock: Clock) -> ServerState:
        """Begin a block: tables grow by the first values of the new rows."""
        fresh = self.model.public(world.sizes, clock.at(0))
        public = dict(state.public)
        for name in self.model.tables:
            if name in public:
                new, old = fresh[name][len(public[name]) :], public[name]
                if new.shape[1:] != old.shape[1:]:
                    raise BoundaryError(
                        f"{type(self).__name__}.server_turn: '{name}' is {list(old.shape)}, and "
                        f"its model makes new rows of {list(new.shape[1:])}. Write server_turn in "
                        f"your class."
                    )
                public[name] = torch.cat([old, new.to(old)])
        return ServerState(public, state.own, state.memory, state.round)

    def check_saved(self, state: ServerState, kept: Params, world: World) -> None:
        """Raise `ValueError` unless tables of a file have the shapes that compiled code goes by.

        kept: private values of all clients; none if they are on silos
        """
        if type(self).server_init is not Method.server_init:
            return
        for name, first in self.model.public(world.sizes, Clock(0)).items():
            must_be_like(name, state.public.get(name), first, len(first))

    # -- client side: flat tensors with owner ids, many clients at once --------------------------

    @property
    def local_includes_shared(self) -> bool:
        """Whether a device also trains on what it lent; False: only on what it kept."""
        return True

    def client_init(self, ids: Tensor, clock: Clock) -> Private:
        """Return first private values, each from the client's own id."""
        return Private(self.model.private(ids, clock))

    def client_weight(self, cohort: Cohort) -> Tensor:
        """Return each client's weight in the sum. [C]"""
        return torch.ones(len(cohort), device=cohort.ids.device)

    @abstractmethod
    def client_train(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Update, Private]:
        """Train a cohort; return what each client would send, and new private values."""

    def client_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """Return the fold of `client_train`. Overridden by fused forms without single updates."""
        update, private = self.client_train(public, private, cohort, clock)
        check_update(update, self, cohort)
        return update.fold(cohort.weight), private

    def checked_sum(
        self, public: Params, private: Private, cohort: Cohort, clock: Clock
    ) -> tuple[Sum, Private]:
        """Return `client_sum`, checked: another shape would fail far from where it was made."""
        made = self.client_sum(public, private, cohort, clock)
        check_totals(made[0], self, public)
        return made

    def client_log(self, update: Update, cohort: Cohort) -> Mapping[str, Rows]:
        """Return what devices keep of their own updates, by table (with `logs = True`)."""
        return {}

    def client_turn(self, public: Params, private: Private, cohort: Cohort) -> Private:
        """End a block: return what devices remember for the next."""
        return private

    def client_erased(self, private: Params, records: Records, block: int) -> Params:
        """Return private values after an erasure, where devices keep notes of what they sent."""
        return private

    def client_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Return all scores of a cohort: [C, I] for items, [N, classes] for nodes."""
        return self.task.scores(self.model, public, private.values, cohort)

    def checked_scores(self, public: Params, private: Private, cohort: Cohort) -> Tensor:
        """Return `client_scores`, checked: compiled code reads the shape without a look.

        -inf is a score (never in a list). NaN would rank last, and a run of NaN would look like one
        that finds nothing.
        """
        if outside(self):  # nobody who scores needs to see what is held back to measure it
            cohort = replace(cohort, held=None)
        scores = repeatable(self, self.client_scores, False)(public, private, cohort)
        if cohort.graph is None and scores.shape != (len(cohort), cohort.items):
            raise BoundaryError(
                f"{type(self).__name__}.client_scores returned {list(scores.shape)}; expected "
                f"{[len(cohort), cohort.items]}, a row per client and a column per item."
            )
        if scores.numel() and not float(scores.amax()) < torch.inf:  # of NaN the largest is NaN
            raise BoundaryError(
                f"{type(self).__name__}.client_scores returned values that are not finite; only "
                f"-inf is allowed, for items that no list may have."
            )
        if outside(self) and cohort.graph is None and len(cohort) > 1:
            first, log = cohort.part(0, 1), private.log.of(cohort.ids[:1])
            mine = Private({name: rows[:1] for name, rows in private.values.items()}, log)
            check_scores(self, scores[:1], self.client_scores(public, mine, first))
        return scores

    def client_answer(
        self,
        public: Params,
        private: Private,
        cohort: Cohort,
        owner: Tensor,
        item: Tensor,
        ask: Question,
    ) -> Tensor:
        """Return the score or loss of single records, for recommendations and audits. [n]"""
        scores = self.checked_scores(public, private, cohort)
        return self.task.answer(scores, cohort, owner, item, ask)

    @property
    def task(self) -> Task:
        """The kind of problem, as its model says."""
        return named(self.model.task)

    def metric(self, split: str = "test", k: tuple[int, ...] = (20,)) -> Metric:
        """Return the default quality metric."""
        return self.task.metric(split, k)

    @property
    def only_averages(self) -> bool:
        """Whether the server step is a plain mean: names that were not sent are then refused."""
        return False

    def executor_for(self, executor: Executor) -> Executor:
        """Wrap the executor if the method needs another aggregation path."""
        return executor

    # -- forgetting, and what a platform asks about it -------------------------------------------

    def forget(self, fed: Federation, request: Request) -> Federation:
        """Train again on what remains, with the same clock: exact (`Federation.retrained`)."""
        return fed.retrained(request.event)

    def pending(self, fed: Federation) -> int:
        """Return how many more people must change before what is served is up to date."""
        return 0

    def settled(self, fed: Federation) -> bool:
        """Return whether the model in service holds nothing of what was forgotten."""
        return True

    def claims(self, before: Federation, after: Federation) -> Claims:
        """Return what a receipt can state beyond its own word; by default nothing."""
        return Claims()

    def rebuilt(self, fed: Federation) -> str:
        """Return the digest of `claims`, computed from the data that remains."""
        raise DataError(f"{type(self).__name__} keeps no sum that could be added up again.")

    def published(self, fed: Federation) -> dict[str, Any] | None:
        """Return what is published and its privacy, for run.json; None: the model, every round."""
        return None

    def promise(self, fed: Federation) -> dict[str, Any]:
        """Return the epsilon of all releases so far; by default nothing is promised."""
        return {}

    def check_retraining(self, fed: Federation) -> None:
        """Raise `ConfigError` if rounds that ran must not be run again as an answer."""

    def publish(self, fed: Federation) -> Federation:
        """Return the federation with a new release, where releases are made at given times."""
        name = type(self).__name__
        raise ConfigError(f"{name} publishes its model in every round; only Gram has releases.")


def check_model(method: str, model: object) -> None:
    """Raise an error that says how to make a model, if a method got something else."""
    if isinstance(model, str | type) or not hasattr(model, "task"):
        raise ConfigError(f"{method} wants a model, such as rs.models.MF(dim=32); got {model!r}.")


def check_method(method: object) -> None:
    """Raise an error that says how to make a method, if something else was given."""
    if not isinstance(method, Method):
        raise ConfigError(
            f"Federation.start wants a method, such as rs.methods.Gram(); got {method!r}."
        )
