"""Q10: many small requests in sequence must give the same result as one large request.

Errors of an approximate unlearner may add up (ERASE). Fifty requests are answered one by one, and
the last model is judged by the standard checks.
"""

from __future__ import annotations

import torch

from rescind.audits.canary import Pipeline
from rescind.audits.case import Case
from rescind.core.clock import Clock
from rescind.core.doing import step
from rescind.core.federation import Federation
from rescind.core.records import Erase, Records
from rescind.errors import DataError

REQUESTS, LARGEST = 50, 20


def draw(fed: Federation, clock: Clock, count: int = REQUESTS) -> list[Erase]:
    """Draw requests of lenders, 1 to 20 records each; the first user asks twice."""
    shared = fed.world.shared.to("cpu")
    people, lent = torch.unique(shared.client, return_counts=True)
    order = torch.argsort(clock.at(0).bits("audit sequence", people))
    able = people[order[lent[order] >= 2]]
    if len(able) < count - 1:
        raise DataError(
            f"{count} requests need {count - 1} users who lend two records or more; there are "
            f"{len(able)}. Ask for fewer requests."
        )
    out = []
    for number, client in enumerate(able[: count - 1].tolist()):
        mine = shared[shared.client == client]
        place = torch.argsort(clock.at(0).bits("audit sequence records", mine.pairs()))
        most = min(LARGEST, len(mine) - 1 if number == 0 else len(mine))
        size = 1 + int(clock.at(0).integers("audit sequence size", torch.tensor(client), 0, most))
        out.append(Erase(mine[place[:size]]))
        if number == 0:
            second = Erase(mine[place[size : size + 1]])
    return [*out, second]


def answer_all(
    fed: Federation, requests: list[Erase], unlearn: Pipeline
) -> tuple[Federation, Erase]:
    """Answer all requests. Return the federation and one request with all their records."""
    after = fed
    with step("answering small requests", len(requests), "requests") as shown:
        for request in requests:
            after = unlearn(after, request)
            shown.count()
    every = Records.none()
    for request in requests:
        every = every + request.records.to("cpu")
    return after, Erase(every)


def sequence_case(case: Case, unlearn: Pipeline, count: int) -> tuple[Federation, Erase]:
    return answer_all(case.before, draw(case.before, case.clock, count), unlearn)
