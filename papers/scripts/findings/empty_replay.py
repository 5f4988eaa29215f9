"""Measure how much F3CRec replays: `python papers/scripts/findings/empty_replay.py` (a minute).

The published settings on ML-100K, FedMF, one seed. After rounds of the second block: the fraction
of returning users whose replay memory has size 0, by Eq. (2)-(4), and the mean size.
"""

from __future__ import annotations

from typing import Any

from writing import write

from rescind.core.executor import InProcess
from rescind.core.loss_terms import preference_shift, replay_size
from rescind.core.run_state import RoundResult
from rescind.data import load
from rescind.experiments.streams import Blocks, Stream, run_stream
from rescind.methods.continual.f3crec import F3CRec

ROUNDS = (1, 2, 5, 10, 20, 40)


def found(seed: int = 0) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digest of the data and a row per measured round."""
    dataset, method, rows = load("ml-100k", variant="f3crec"), F3CRec(), []
    rounds: list[int] = []

    def on_round(moment: RoundResult) -> None:
        vault, state = moment.now.vault, moment.now.state
        if vault.holdings.now != 1:
            return
        rounds.append(state.round)
        at = state.round - rounds[0] + 1
        ids = vault.holdings.available.nonzero().squeeze(1)
        mine = vault.read(ids)
        if at not in ROUNDS:
            return
        scores = method.client_scores(state.public, mine, InProcess().cohort(method, vault, ids))
        returned = (mine["top"] >= 0).any(1)
        size = replay_size(
            preference_shift(scores, mine["top"])[returned], method.top_n, method.shift_scale
        )
        rows.append(
            {
                "round of D1": at,
                "people who came back": int(returned.sum()),
                "replay nothing": round(float((size == 0).double().mean()), 3),
                "mean items replayed, of 30": round(float(size.mean()), 2),
            }
        )

    stream = Stream.of(dataset)
    run_stream(stream, method, seed, Blocks(rounds=max(ROUNDS), patience=None), watch=(on_round,))
    return {"ml-100k, f3crec": dataset.digest}, rows


if __name__ == "__main__":
    write("empty_replay", *found())
