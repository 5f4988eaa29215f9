"""What a silo does without the server: recommend to its own people."""

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
    """The k best items a client of this silo does not have, with their scores.

    With the last model that was sent here and the private state beside it.
    """
    store = Store(folder)
    facts, public = store.model()
    vault = store.vault(int(facts["held"]), int(facts["private"]))
    held = vault.holdings
    if not 0 <= user < held.clients or not bool(held.members[user]):
        mine = held.members.nonzero().squeeze(1)
        raise ConsentError(
            f"client {user} is no member in this silo. It has {len(mine)}; the first are "
            f"{mine[:5].tolist()}."
        )
    if held.task != "ranking":
        raise DataError(f"this silo's model is for {held.task}; only rankings recommend.")
    items = torch.arange(held.items)
    asked = Records.of(torch.full_like(items, user), items)
    scores = InProcess().query(method_of(facts["method"]), public, vault, asked, "open")
    best = [i for i in top_k(scores.unsqueeze(0), None, min(k, held.items))[0].tolist() if i >= 0]
    return [(item, float(scores[item])) for item in best]
