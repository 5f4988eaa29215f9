"""Time retraining from a restore point against retraining from the start.

python bench/rollback.py [ml-100k]      prints one line per kind of request
"""

from __future__ import annotations

import sys
import time

import torch

from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.records import Event, Share, Unshare, Withdraw
from rescind.data import load
from rescind.data.simulated_lending import draw_groups, draw_share
from rescind.methods.sharing.fedshare import FedShare

ROUNDS = 150


def main(name: str) -> None:
    """Lend at the start and again late; then time kinds of requests."""
    fed = Federation.start(load(name), FedShare(), seed=0, keep_every=10)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    early = draw_share(fed.now.vault.holdings, groups, fed.clock).records
    fed = fed.apply(Share(early)).run(120)
    held = fed.now.vault.holdings
    late_lender = int((held.keeps & (groups == 0)).nonzero()[0])
    late_loans = held.records[(held.records.client == late_lender) & (held.split == 0)]
    fed = fed.apply(Share(late_loans)).run(ROUNDS - 120)
    first = fed.past.first if fed.past else torch.zeros(0)
    never_lent = held.keeps & (groups == 0)
    never_lent[late_lender] = False
    last_sampled = int(torch.where(never_lent & (first > 0), first, 0).argmax())
    requests: dict[str, Event] = {
        "lent before the first round": Unshare(early[early.client == early.client[0]]),
        "lent after round 120": Unshare(late_loans),
        f"never lent, first asked in round {int(first[last_sampled])}": Withdraw(last_sampled),
    }
    never_sampled = (never_lent & (first == 0)).nonzero()
    if len(never_sampled):
        requests["never lent, never asked"] = Withdraw(int(never_sampled[0]))
    for kind, event in requests.items():
        start = time.process_time()
        from_point = fed.retrained(event)
        middle = time.process_time()
        whole = fed.retrained(event, from_start=True)
        end = time.process_time()
        same = params.digest(from_point.now.state.public) == params.digest(whole.now.state.public)
        print(
            f"{name}: {kind}: {middle - start:.2f} CPU s, from the start {end - middle:.2f} "
            f"({(middle - start) / (end - middle):.2f} of it), same bits: {same}"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ml-1m")
