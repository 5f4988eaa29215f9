"""Trains a generation on the loans of one moment, in a process of its own; the only one with torch.

    python -m rescind.ledger.generation_worker < loans > progress

Loans and the key come by a pipe; each round is a line of JSON on the other. Every person is a
device in this process that has what it lends. Files are sealed under the job's key: a checkpoint
while it learns, the lists of everybody when it has learnt. A killed one goes on from its checkpoint
to the same bits. What was taken back since the last generation comes by the pipe, too, for the
audit, and is written nowhere.

The audit asks whether the model knows what was taken back since the last one learnt. The attacker
has the model and scores each record that is gone, and as popular ones that the same person never
lent, beside a model of another seed that never had the records. Models of known answer are judged
with it:

    no-op      trained with the records, as the last generation was   must FAIL
    retrain    trained without them, with a third seed                must PASS

Otherwise the verdict is VOID. Each of the three is a training of its own. Only people who still
lend something are judged: nobody else has a model left here.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_from

from rescind import methods
from rescind.audits.case import evidence, lists
from rescind.audits.finding import Finding
from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.files import write_atomically
from rescind.core.holdings import SPLITS, Holdings
from rescind.core.method import Method
from rescind.core.records import Records, Share
from rescind.core.run_state import RoundResult
from rescind.errors import RescindError
from rescind.ledger import worker_io
from rescind.ledger.jobs import CHECKPOINT, LISTS, LONGEST, bound, file_of
from rescind.ledger.keyslots import seal, unseal
from rescind.ledger.release_audit import Floats, Person, judged, matched, measured, with_lost
from rescind.ledger.release_counts import FEWEST, why_not_judged
from rescind.ledger.worker_io import Items
from rescind.storage.packing import pack_now, unpack_now

HELD = 10
"""Of ten records one is held out, to tell how well a round does."""
LOOK = 10
"""Rounds between two looks at the held-out records, and between two checkpoints."""
Trained = Callable[[Sequence[Items], int], Federation]
JUDGED = "that the last generation learnt, of people who still lend,"


def federation(loans: Sequence[Items], items: int, recipe: str, seed: int) -> Federation:
    counts = [len(each) for each in loans]
    client = torch.from_numpy(np.repeat(np.arange(len(loans)), counts))
    item = torch.from_numpy(np.concatenate([*loans, np.empty(0, np.int32)]).astype(np.int64))
    split = torch.full((len(item),), SPLITS["train"], dtype=torch.int8)
    place = torch.cat([torch.arange(count) for count in counts]) if counts else item
    split[(place % HELD) == HELD - 1] = SPLITS["valid"]
    records = Records.of(client, item)
    held = Holdings.of(records, split, len(loans), items)
    method: Method = getattr(methods, recipe)()
    if hasattr(method, "local_includes_shared") and not method.additive:
        method = replace(method, local_includes_shared=True)  # type: ignore[call-arg]
    return Federation.start(held, method, seed=seed).apply(Share(records[split == SPLITS["train"]]))


class Trainer:
    """Runs rounds, tells each, and keeps a sealed checkpoint."""

    def __init__(
        self, facts: dict[str, Any], loans: Sequence[Items], gone: Sequence[Items] = ()
    ) -> None:
        """gone: what each of the same people took back since the last generation, if known"""
        self.facts, self.loans, self.gone = facts, loans, gone
        self.job, self.rounds = str(facts["job"]), int(facts["rounds"])
        self.state, self.key = Path(facts["state"]), bytes.fromhex(facts["key"])
        self.items, self.seed = int(facts["items"]), int(facts["seed"])
        self.fed = federation(loans, self.items, facts["recipe"], self.seed)
        self.began = time.monotonic()
        self._resume()

    def run(self) -> None:
        """Train what is left, write the lists of everybody, then tell what the audit says."""
        left = self.rounds - self.fed.now.state.round
        self.fed = self.fed.run(left, watch=(self._look,))
        ids = torch.arange(len(self.loans))
        best = lists(self.fed, ids, LONGEST, mask=("had",)).numpy().astype("<i4")
        self._write(LISTS, best.tobytes())
        anew, lost = self._trained_anew, self.facts.get("lost", 0)
        told = audited(self.fed, self.loans, self.gone, self.items, self.seed, anew, lost)
        _say({"audit": told.facts()})
        file_of(self.state, self.job, CHECKPOINT).unlink(missing_ok=True)

    def _trained_anew(self, loans: Sequence[Items], seed: int) -> Federation:
        return federation(loans, self.items, self.facts["recipe"], seed).run(self.rounds)

    def _look(self, moment: RoundResult) -> None:
        number, now = moment.now.state.round, time.monotonic()
        last = number == self.rounds
        value = None
        if number % LOOK == 0 or last:
            value = replace(self.fed, now=moment.now).evaluate("valid").get("NDCG@20")
            self._checkpoint(moment)
        asked = sum(total.clients for total in moment.sums.values())
        _say({"round": number, "asked": asked, "seconds": now - self.began, "value": value})
        self.began = time.monotonic()

    def _checkpoint(self, moment: RoundResult) -> None:
        tensors, facts = pack_now(moment.now)
        text = json.dumps(facts).encode()
        self._write(CHECKPOINT, struct.pack("<I", len(text)) + text + params.to_bytes(tensors))

    def _resume(self) -> None:
        path = file_of(self.state, self.job, CHECKPOINT)
        if not path.exists():
            return
        plain = unseal(self.key, path.read_bytes(), bound(self.job, CHECKPOINT))
        (length,) = struct.unpack_from("<I", plain)
        facts = json.loads(plain[4 : 4 + length])
        now = unpack_now(tensors_from(plain[4 + length :]), facts, self.fed)
        self.fed = replace(self.fed, now=now)

    def _write(self, kind: str, plain: bytes) -> None:
        box = seal(self.key, plain, bound(self.job, kind))
        write_atomically(file_of(self.state, self.job, kind), box, private=True)


def audited(
    subject: Federation,
    kept: Sequence[Items],
    gone: Sequence[Items],
    items: int,
    seed: int,
    trained: Trained,
    lost: int | None = 0,
) -> Finding:
    """Judge a generation. kept, gone: of each person, what they lend and what they took back

    lost: how many were taken back that no memory has, at most; None: that was not counted
    """
    records = sum(map(len, gone))
    if records < FEWEST:
        return Finding("audit", "UNAUDITED", note=why_not_judged(records, lost, JUDGED))
    people = matched(kept, gone, items)
    before = [np.union1d(one, two).astype(np.int32) for one, two in zip(kept, gone, strict=True)]
    reference = _known(trained(kept, seed + 1), people)
    models = {
        "subject": _known(subject, people),
        "no-op": _known(trained(before, seed), people),
        "retrain": _known(trained(kept, seed + 2), people),
    }
    found = {
        name: measured([a - b for a, b in zip(known, reference, strict=True)], people)
        for name, known in models.items()
    }
    return with_lost(judged(found, {"no-op": "FAIL", "retrain": "PASS"}, records), lost)[0]


def _known(fed: Federation, people: Sequence[Person]) -> list[Floats]:
    """Return how well a model knows each person's items that are gone or were never lent."""
    asked = [np.concatenate([one.gone, one.never]) for one in people]
    client = np.repeat([one.number for one in people], [len(items) for items in asked])
    item = np.concatenate(asked).astype(np.int64)
    known = evidence(fed, Records.of(torch.from_numpy(client), torch.from_numpy(item)))
    out, at = [], 0
    for items in asked:
        row = np.zeros(fed.world.sizes.items)
        row[items] = known[at : at + len(items)].double().numpy()
        at += len(items)
        out.append(row)
    return out


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()  # if nobody listens any more, this ends the process


def main() -> int:
    torch.set_num_threads(1)
    facts, arrays = worker_io.read(sys.stdin.buffer.read())
    os.nice(int(facts["nice"]))
    try:
        kept, gone = (worker_io.parts_of(arrays, name) for name in ("kept", "gone"))
        Trainer(facts, kept, gone).run()
    except RescindError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
