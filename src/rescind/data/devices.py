"""Put interactions on devices: one client per user, each record with its split."""

from __future__ import annotations

import torch

from rescind.core.holdings import Holdings
from rescind.core.records import Records
from rescind.data.arrays import Interactions
from rescind.data.split import random_split


def on_devices(data: Interactions, seed: int) -> Holdings:
    """Give each user their records, with the published split or a random 8:1:1 split."""
    split = data.split if data.split is not None else random_split(data, seed)
    records = Records.of(torch.tensor(data.user), torch.tensor(data.item), torch.tensor(data.time))
    return Holdings.of(records, torch.tensor(split), len(data.users), len(data.items))
