"""Compiled choice of a round's clients among many: one pass, without a table of draws."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rescind.core.fast.compiling import compiled
from rescind.core.fast.rowops import bits

MANY = 2**16
"""Clients from which on the pass takes less time than drawing for all of them in PyTorch."""


@compiled()
def _below(willing, key, limit, ids, hashes):
    """List the willing clients with a draw below a limit; return their number, -1: too many."""
    found = 0
    for client in range(len(willing)):
        drawn = np.int64(bits(key, np.int64(client), np.int64(0)))
        if drawn < limit and willing[client]:  # rarely true, so the processor guesses well
            if found == len(ids):
                return -1
            ids[found], hashes[found] = client, drawn
            found += 1
    return found


def smallest_draws(willing: Tensor, key: int, count: int) -> Tensor | None:
    """Return the clients with the smallest draws; None if the limit was guessed wrong. [count]

    willing: [clients] bool    key: of a clock
    """
    spare = count + 6 * int(count**0.5) + 16  # six deviations above what is wanted
    share = spare / max(int(np.count_nonzero(willing.numpy())), spare)
    ids, hashes = np.empty((2, 2 * spare), np.int64)
    limit = np.int64(min(int((share - 0.5) * 2.0**64), 2**63 - 1))
    found = _below(willing.numpy(), np.uint64(key % 2**64), limit, ids, hashes)
    if found < count:
        return None
    chosen = torch.topk(torch.from_numpy(hashes[:found]), count, largest=False).indices
    return torch.from_numpy(ids[:found])[chosen]
