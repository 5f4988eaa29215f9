"""Unlearn, purge and look for traces: the same for in-process runs and for silos.

`exact = True` in a class is a claim of its author. `vouched` says where the platform's own code
does the work; other claims count as approximate until `rescind.forgetting.exactness` checks them.
Where code from outside trains, its rounds show nothing, whoever runs them (`claimed_by`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rescind.core.federation import Federation
from rescind.core.method import Method, Unlearner
from rescind.core.own_code import foreign, strangers
from rescind.core.request import Request
from rescind.core.run_state import RoundResult
from rescind.errors import BoundaryError, ConfigError
from rescind.forgetting.purge import purge, traces
from rescind.methods._own_file import source_of
from rescind.methods.unlearning.retrain import Retrain

ADDITIVE = "rescind.methods.additive."
"""The package of the additive learners whose subtraction the platform vouches for."""


@dataclass(repr=False)
class CostMeter:
    """Counts the cost of unlearning; a callback for rounds."""

    rounds: int = 0
    client_rounds: int = 0
    participants: set[int] = field(default_factory=set)
    wall: float = 0.0
    cpu: float = 0.0

    def __repr__(self) -> str:
        return (  # people are counted, not listed: there may be a million
            f"CostMeter(rounds={self.rounds}, client_rounds={self.client_rounds}, "
            f"participants={len(self.participants)} people, wall={self.wall:.3g}, "
            f"cpu={self.cpu:.3g})"
        )

    def __call__(self, result: RoundResult) -> None:
        self.rounds += 1
        for role, total in result.sums.items():
            if role != "host":
                self.client_rounds += total.clients
                self.participants |= set(total.who.tolist())

    def add(self, other: CostMeter) -> None:
        self.rounds += other.rounds
        self.client_rounds += other.client_rounds
        self.participants |= other.participants
        self.wall, self.cpu = self.wall + other.wall, self.cpu + other.cpu

    def online(self, request: Request) -> dict[str, int]:
        """Return how many requesters and how many other clients had to be online."""
        people = set(request.people.tolist())
        return {
            "requester": len(people & self.participants),
            "others": len(self.participants - people),
        }


@dataclass(frozen=True)
class Forgotten:
    """A federation after forgetting a request, and the cost."""

    fed: Federation
    unlearner: Unlearner
    cost: CostMeter
    traces: dict[str, int]
    """Places where records of the request are still found, with counts."""

    def check(self) -> Forgotten:
        """Raise `BoundaryError` if there are traces."""
        if self.traces:
            raise BoundaryError(
                f"{type(self.unlearner).__name__} left traces of the request: "
                + ", ".join(f"{count} in {place}" for place, count in self.traces.items())
                + ". This is a bug in the method. Use Retrain instead."
            )
        return self


def retrains(unlearner: Unlearner) -> bool:
    """Return whether `Federation.retrained`, the platform's own code, does all the work.

    Classes are compared by identity: a subclass that forgets in another way is not meant.
    """
    cls = type(unlearner)
    return cls.unlearn is Unlearner.unlearn and (cls is Retrain or cls.forget is Method.forget)


def subtracts(unlearner: Unlearner) -> bool:
    """Return whether an additive learner of this package does the work."""
    cls = type(unlearner)
    if not (isinstance(unlearner, Method) and cls.__module__.startswith(ADDITIVE)):
        return False
    return unlearner.additive and vars(sys.modules[cls.__module__]).get(cls.__name__) is cls


def vouched(unlearner: Unlearner) -> bool:
    """Return whether the platform's own code makes an exact result."""
    return unlearner.exact and (retrains(unlearner) or subtracts(unlearner))


def claimed_by(*parts: object, watch: Sequence[Any] = ()) -> str:
    """Return the files and digests of all code from outside in parts and callbacks; "" for none.

    Such code may bring back what an earlier run learnt, from a file, the environment, another
    module, thread or process. So rounds that are run again with it show nothing.
    """
    written = [*foreign(*parts), *strangers(watch)]
    found = {source_of(part) or f"{part.__name__} (in no file)" for part in written}
    return ", ".join(sorted(found))


def check_unlearner(unlearner: object, wanted_by: str) -> None:
    """Refuse a mere name or a class, and say what to give."""
    if isinstance(unlearner, Unlearner):
        return
    raise ConfigError(
        f"{wanted_by} wants an unlearner, got {unlearner!r:.60}. Give an instance, with its "
        f"settings: rs.methods.Retrain()."
    )


def check_answers(unlearner: Unlearner) -> None:
    """Refuse a control (`Nothing`, `PurgeOnly`) as the answer to a request, and a mere name."""
    check_unlearner(unlearner, "forget")
    if not unlearner.answers:
        raise ConfigError(
            f"{type(unlearner).__name__} leaves the model as it was: it is a control for audits, "
            f"and answers no request. Leave the method out."
        )


def unlearn_and_purge(
    fed: Federation,
    request: Request,
    unlearner: Unlearner | None = None,
    watch: tuple[Callable[[RoundResult], Any], ...] = (),
    exact: bool | None = None,
) -> Forgotten:
    """Forget a request with an unlearner (default: the federation's own method), and purge.

    exact: leave the state as the unlearner made it. Default: if the platform vouches for it
    """
    by, cost = unlearner or fed.method, CostMeter()
    exact = vouched(by) if exact is None else exact
    wall, cpu = time.perf_counter(), time.process_time()
    after = by.unlearn(replace(fed, watch=(*fed.watch, cost, *watch)), request)
    after = purge(fed, replace(after, watch=fed.watch), request, exact)
    cost.wall, cost.cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Forgotten(after, by, cost, traces(after, request, fed, made=not exact))
