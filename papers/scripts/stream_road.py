"""Compare settings of SeqGram on validation, at block boundaries of a stream and inside its base.

    python papers/scripts/stream_road.py [DATASET ...] [--jobs N] [--write]

Test items are taken out first. What is left gives two streams per dataset and seed, each divided by
the rule of the real one (the last tenth of a block is measured, the ninth before it is a gap): the
same blocks, and the base block cut into a base and three blocks again. The row "Gram" is the sum
without order; all others change one setting of the row chosen for this dataset.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from rescind.data import Dataset, load
from rescind.data.blocks import arrange, block_split
from rescind.experiments.streams import Blocks, Stream, run_stream
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.seq_gram import SeqGram
from rescind_papers.pages import write_block

PAGE = Path("docs/results/additive-details.md")
FILMS = SeqGram(again=-1.0)
CHOSEN = {
    "ml-100k": FILMS,
    "ml-latest-small": FILMS,
    "lastfm-2k": SeqGram(back=0.75, floor=0.2, earlier=0.05, again=1.0),
}
CHANGES = {
    "chosen": {},
    "no notes of earlier blocks": {"again": 0.0, "earlier": 0.0},
    "old and new own items count alike": {"floor": 1.0},
    "one short reach": {"far": 10.0},
    "one long reach": {"near": 160.0},
    "no order of pairs": {"back": 1.0},
    "only what follows": {"back": 0.0},
    "popular items not held back": {"shown_power": 0.0},
    "users weigh n^-.5": {"power": 0.5},
    "older blocks count .8": {"forgetting": 0.8},
}
SEEDS = (0, 1)


def without_tests(dataset: Dataset, seed: int) -> Dataset:
    """Return a stream without its test items, to be divided again."""
    assert dataset.block is not None
    kind = block_split(dataset, dataset.block, seed)
    return replace(dataset, split=None).select(kind < 2).compact("appearance")


def inside_base(dataset: Dataset) -> Dataset:
    """Return the base block, cut into blocks again."""
    assert dataset.block is not None
    base = replace(dataset.select(dataset.block == 0), block=None)
    return arrange(base.compact("appearance"))


def scores(name: str, method: Gram, seed: int) -> tuple[float, float]:
    """Return mean NDCG@20 of new blocks: of the stream without tests, and inside its base."""
    torch.set_num_threads(1)
    outer = without_tests(load(name, variant="blocks"), seed)
    streams = (Stream.of(each, seed) for each in (outer, inside_base(outer)))
    done = [run_stream(stream, method, seed, Blocks(rounds=1)) for stream in streams]
    first, second = (each.summary("NDCG@20")["new"] for each in done)
    return first, second


def main() -> None:
    """Measure and print the table."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("names", nargs="*", metavar="DATASET", help=f"of {', '.join(CHOSEN)}")
    words.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    words.add_argument("--write", action="store_true", help=f"write the table into {PAGE}")
    given = words.parse_args()
    if unknown := set(given.names) - set(CHOSEN):
        words.error(f"no settings for {', '.join(unknown)}; choose of {', '.join(CHOSEN)}.")
    if given.write and given.names:
        words.error("--write needs every dataset: leave the names out.")
    names = given.names or list(CHOSEN)
    rows = {"Gram": {name: Gram(ridge=20.0) for name in names}} | {
        label: {name: replace(CHOSEN[name], **change) for name in names}
        for label, change in CHANGES.items()
    }
    asked = [
        (n, m, seed) for methods in rows.values() for n, m in methods.items() for seed in SEEDS
    ]
    head = " | ".join(f"{name} | {name}, inside the base" for name in names)
    lines = [f"| setting | {head} |", "| --- |" + " --- |" * 2 * len(names)]
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        found = pool.map(scores, *zip(*asked, strict=True))
        for label in rows:
            pairs = np.array([next(found) for _ in names for _ in SEEDS])
            means = pairs.reshape(len(names), len(SEEDS), 2).mean(axis=1).ravel()
            lines.append(f"| {label} | {' | '.join(f'{value:.4f}' for value in means)} |")
            print(lines[-1], flush=True)
    if given.write:
        write_block(PAGE, "papers/scripts/stream_road.py", "\n".join(lines))


if __name__ == "__main__":
    main()
