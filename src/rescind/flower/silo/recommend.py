"""Recommend to a silo's clients without the server."""

from __future__ import annotations

from pathlib import Path

import torch

from rescind.core.executor import InProcess
from rescind.core.records import Records
from rescind.core.tasks.metrics import top_k
from rescind.errors import ConsentError, DataError
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import method_of


def recommend(folder: Path, user: int, k: int) -> list[tuple[int, float]]:
    """Return the k best items that a client of this silo does not have, with their scores.

    Uses the last model that the silo received and the private state saved with it.
    """
    store = Store(folder)
    facts, public = store.model()
    vault = store.vault(int(facts["held"]), int(facts["private"]))
    held = vault.holdings
    if not 0 <= user < held.clients or not bool(held.members[user]):
        mine = held.members.nonzero().squeeze(1)
        raise ConsentError(
            f"client {user} is not a member of this silo. It has {len(mine)} members; the first "
            f"are {mine[:5].tolist()}."
        )
    if held.task == "nodes":
        raise DataError(
            f"this silo's model is for {held.task}. Only a ranking model can recommend."
        )
    items = torch.arange(held.items)
    pairs = Records.of(torch.full_like(items, user), items)
    scores = InProcess().query(method_of(facts["method"]), public, vault, pairs, "open")
    best = [i for i in top_k(scores.unsqueeze(0), None, min(k, held.items))[0].tolist() if i >= 0]
    return [(item, float(scores[item])) for item in best]
