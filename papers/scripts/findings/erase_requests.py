"""Three kinds of request: `python papers/scripts/findings/erase_requests.py` (minutes).

The kinds of the benchmark ERASE (2026): people take back sensitive items, accounts of spammers are
removed, people leave. On ML-100K, one request after the other; after each kind the sums are
compared with those of a history in which the records never were. Sensitive items are a hundredth
of the catalogue, drawn by a hash, of everybody who has one. Spam: accounts that lead from the ten
most popular items to one that nobody wants.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from writing import write

from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Withdraw
from rescind.data import Dataset
from rescind.data.sequences import next_item
from rescind.experiments.cell import DataSettings
from rescind.experiments.prepared_data import prepare
from rescind.methods.additive.seq_gram import SeqGram
from rescind.receipts.claims import sum_digest

LEAVERS, SPAMMERS, WANTED = 94, 47, 10


def with_spam(data: Dataset) -> Dataset:
    """Return the data with accounts that lead from popular items to items that nobody wants."""
    order = np.argsort(-np.bincount(data.item, minlength=len(data.items)), kind="stable")
    mine = np.concatenate([order[:WANTED], order[-3:]])  # the last two are held out
    user = np.repeat(np.arange(SPAMMERS) + len(data.users), len(mine))
    item, seen = np.tile(mine, SPAMMERS), np.tile(np.arange(len(mine)), SPAMMERS)
    columns = ((data.user, user), (data.item, item), (data.time, seen + 1))
    columns = [np.concatenate(pair) for pair in columns]
    users = np.concatenate([data.users, np.array([f"spam {n}" for n in range(SPAMMERS)])])
    mixed = replace(
        data, user=columns[0], item=columns[1], time=columns[2], users=users,
        rating=None, split=None, block=None,
    )  # fmt: skip
    return next_item(mixed)


def requests(kind: str, fed: Federation) -> Iterator[Event]:
    """Yield the requests of one kind."""
    held = fed.now.vault.holdings
    everybody, items = torch.arange(held.clients), torch.arange(held.items)
    if kind == "spam":
        yield from (Withdraw(held.clients - SPAMMERS + n) for n in range(SPAMMERS))
    elif kind == "whole users":
        order = torch.argsort(Clock(1).bits("leaver", everybody), stable=True)
        yield from (Withdraw(int(client)) for client in order[:LEAVERS])
    else:
        order = torch.argsort(Clock(1).bits("sensitive", items), stable=True)
        theirs = held.records[torch.isin(held.records.item, order[: held.items // 100])]
        for client in torch.unique(theirs.client).tolist():
            yield Erase(theirs[theirs.client == client])


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digest of the data and a row per kind of request."""
    plain = prepare(DataSettings("ml-100k", core=5, split="last"))
    mixed = with_spam(plain)
    rows, method = [], SeqGram.sequences()
    for kind in ("sensitive items", "spam", "whole users"):
        fed = Federation.start(mixed if kind == "spam" else plain, method).run(1)
        before, begun, asked = fed, time.process_time(), 0
        for event in requests(kind, fed):
            fed, asked = method.follow(fed, event), asked + 1
        each = (time.process_time() - begun) / asked
        never = fed.restart().run(1)
        same = sum_digest(fed.now.state.own) == sum_digest(never.now.state.own)
        row = {
            "kind": kind,
            "requests": asked,
            "CPU ms each": round(1e3 * each),
            "as if never there": "yes" if same else "no",
            "NDCG@10 before": round(before.evaluate("test", 10)["NDCG@10"], 4),
            "after": round(fed.evaluate("test", 10)["NDCG@10"], 4),
            "fresh": round(never.evaluate("test", 10)["NDCG@10"], 4),
        }
        rows.append(row)
        print(row, flush=True)
    return {"ml-100k": plain.digest}, rows


if __name__ == "__main__":
    write("erase_requests", *found())
