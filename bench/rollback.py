"""What going back to a point saves when something is forgotten, beside training from the start.

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
    """Lend at the beginning and once more late; then forget by kinds of request."""
    fed = Federation.start(load(name), FedShare(), seed=0, keep_every=10)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    early = draw_share(fed.now.vault.holdings, groups, fed.clock).records
    fed = fed.apply(Share(early)).run(120)
    own = fed.now.vault.holdings
    keeper = int((own.keeps & (groups == 0)).nonzero()[0])
    mine = own.records[(own.records.client == keeper) & (own.split == 0)]
    fed = fed.apply(Share(mine)).run(ROUNDS - 120)
    first = fed.past.first if fed.past else torch.zeros(0)
    silent = own.keeps & (groups == 0)
    silent[keeper] = False
    late = int(torch.where(silent & (first > 0), first, 0).argmax())
    requests: dict[str, Event] = {
        "lent before the first round": Unshare(early[early.client == early.client[0]]),
        "lent after round 120": Unshare(mine),
        f"never lent, first asked in round {int(first[late])}": Withdraw(late),
    }
    never = (silent & (first == 0)).nonzero()
    if len(never):
        requests["never lent, never asked"] = Withdraw(int(never[0]))
    for what, event in requests.items():
        begun = time.process_time()
        quick = fed.retrained(event)
        half = time.process_time()
        slow = fed.retrained(event, from_start=True)
        end = time.process_time()
        same = params.digest(quick.now.state.public) == params.digest(slow.now.state.public)
        print(
            f"{name}: {what}: {half - begun:.2f} CPU s, from the start {end - half:.2f} "
            f"({(half - begun) / (end - half):.2f} of it), same bits: {same}"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ml-1m")
