"""Devices make their own lines of a roster: each hides what it added to the sum."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from rescind.core.executor import Vault
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.errors import ConfigError, ConsentError
from rescind.flower.silo.identity import Identity
from rescind.flower.silo.storage import Store
from rescind.flower.wire.messages import Letter, method_of
from rescind.forgetting.roster import domain_of
from rescind.methods.additive._pairs import Parts
from rescind.methods.additive.gram import Gram
from rescind.privacy.keys import new_secret
from rescind.proof.roster import digest, to_bytes
from rescind.proof.signed_lines import text_of
from rescind.proof.sum_hash import LENGTH, blinding, line_of
from rescind.receipts.receipt import TIME_FORMAT
from rescind.storage.packing import Facts

LAST = "roster"
"""The note of the last roster of a log that this silo signed lines for begins so."""


def make_lines(method: Method, vault: Vault) -> tuple[Tensor, Tensor]:
    """Return a line for each counted part of each device, and the sum of what hides them.

    The seed of a line stays on its device and is not kept. lines: [n, 1024]; sum: [3, 1024]
    """
    if type(method) is not Gram:
        raise ConfigError(f"a roster needs the sum of Gram; this run uses {type(method).__name__}.")
    lines, small = list[bytes](), np.zeros((3, LENGTH), np.int64)
    for name, note in vault.private.items():
        if not name.startswith("sent/"):
            continue
        block, everyone = int(name[-4:]), torch.arange(len(note))
        at = torch.full_like(everyone, block)
        parts = Parts.of(method.notes.read(note), 1, everyone, at, method.bound)
        ends = torch.searchsorted(parts.lot.owner, torch.arange(len(parts) + 1)).tolist()
        for weight, (start, end) in zip(parts.weight.tolist(), pairwise(ends), strict=True):
            items, seed = parts.lot.item[start:end].numpy(), new_secret()
            domain, counted = domain_of(method, block), method.min_count > 0
            lines.append(to_bytes(line_of(items, weight, domain, seed, counted)))
            small += blinding(seed)
    lines.sort(key=digest)
    joined = np.frombuffer(b"".join(lines), "<i8").astype(np.int64)
    return torch.from_numpy(joined.reshape(-1, LENGTH)), torch.from_numpy(small)


def signed_lines(
    request: Letter, vault: Vault, store: Store, identity: Identity | None
) -> tuple[Facts, Params]:
    """Return the lines of this silo's devices, signed for one roster of a log.

    Never for an earlier roster of that log. For the same one again if it was not published, because
    another silo was away; the signed time tells such lines apart. identity: None if it signs none
    """
    if identity is None:
        raise ConsentError(
            "this silo signs no lines. Join with --lines and its part of a kit, without --secure: "
            "with the lines the server could test guesses of a masked sum."
        )
    origin, number = str(request.facts["origin"]), int(request.facts["number"])
    note = f"{LAST} {hashlib.sha256(origin.encode()).hexdigest()[:16]}"
    last = int(store.notes.get(note, 0))
    if number < last:
        raise ConsentError(f"this silo signed lines for roster {last} already, not for {number}.")
    time = datetime.now(UTC).strftime(TIME_FORMAT)  # before they are made: none is older
    lines, small = make_lines(method_of(request.facts["method"]), vault)
    store.note(**{note: number})
    names = [digest(row.numpy().astype("<i8").tobytes()) for row in lines]
    signature = identity.sign(text_of(origin, number, time, names))
    return {"signature": signature, "time": time}, {"lines": lines, "small": small}
