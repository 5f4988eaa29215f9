"""Q10: many small requests one after another must end where one large one does.

Errors of an approximate unlearner may add up (ERASE). Fifty requests of 1 to 20 records are
answered in turn, one person asks twice, and the last model is judged by the standard battery
against retrains without all of them.
"""

from __future__ import annotations

import torch

from rescind.audits.canary import Pipeline
from rescind.audits.case import Case
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.records import Erase, Records
from rescind.errors import DataError

REQUESTS, LARGEST = 50, 20


def draw(fed: Federation, clock: Clock, many: int = REQUESTS) -> list[Erase]:
    """Requests of people who lend: 1 to 20 records each, and the first person asks again."""
    shared = fed.world.shared.to("cpu")
    people, count = torch.unique(shared.client, return_counts=True)
    order = torch.argsort(clock.at(0).bits("audit sequence", people))
    able = people[order[count[order] >= 2]]
    if len(able) < many - 1:
        raise DataError(
            f"a sequence of {many} requests needs {many - 1} people who lend two records or more; "
            f"there are {len(able)}. Ask for fewer requests."
        )
    out = []
    for number, client in enumerate(able[: many - 1].tolist()):
        mine = shared[shared.client == client]
        place = torch.argsort(clock.at(0).bits("audit sequence records", mine.pairs()))
        most = min(LARGEST, len(mine) - 1 if number == 0 else len(mine))
        size = 1 + int(clock.at(0).integers("audit sequence size", torch.tensor(client), 0, most))
        out.append(Erase(mine[place[:size]]))
        if number == 0:
            again = Erase(mine[place[size : size + 1]])
    return [*out, again]


def answer_all(
    fed: Federation, requests: list[Erase], unlearn: Pipeline
) -> tuple[Federation, Erase]:
    """The federation after all of them, and the one request they amount to."""
    after = fed
    for request in requests:
        after = unlearn(after, request)
    every = Records.none()
    for request in requests:
        every = every + request.records.to("cpu")
    return after, Erase(every)


def sequence_case(case: Case, unlearn: Pipeline, many: int) -> tuple[Federation, Erase]:
    """The requests of a case, answered."""
    return answer_all(case.before, draw(case.before, case.clock, many), unlearn)
