"""Measure logs and rosters: how long strangers, devices and servers need, and what fakes are found.

    python bench/proof.py [--write]      --write: the tables of docs/proof.md

CPU seconds of one thread. Needs ML-1M and ML-100K (`rescind data get`). Takes some twelve minutes:
the lines of all 6,040 people of ML-1M are real.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median

import numpy as np
import torch
from additive import Figure, timed
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sum_security import binding_bits, hiding_bits

import rescind as rs
from rescind.errors import DataError
from rescind.forgetting.roster import Seeds, audit, parts_of, publish, sums_of
from rescind.privacy import keys
from rescind.proof.log_folder import LINE, ROSTER, LogFolder, entry_of
from rescind.proof.notes import Checkpoint, Proof, signed
from rescind.proof.roster import Public, Stated, added_up, check, digest, split, to_bytes
from rescind.proof.sum_hash import BYTES, LENGTH, added, blinding, hash_of, hidden, line_of, places
from rescind.proof.tlog import Tree
from rescind.receipts.log import key_of, open_log
from rescind_papers.pages import write_block

PAGE = Path("docs/proof.md")
TRIALS = 100
LEAVES = 1_000_000


def log_figures() -> list[Figure]:
    """Measure the tree of a log."""
    block, entry = b"a" * 64, b"\2" + b"x" * 32
    ratios = []
    for _ in range(5):
        _, plain = timed(lambda: [sha256(block).digest() for _ in range(100_000)])
        _, grown = timed(lambda: _grow(Tree(), entry, 100_000))
        ratios.append(grown / plain)
    tree, whole = timed(lambda: _grown(LEAVES))
    paths, proving = timed(lambda: [tree.inclusion(n) for n in range(0, LEAVES, 997)])
    point = Checkpoint("example.org/log", LEAVES, tree.root())
    proof = Proof(997, tuple(paths[1]), signed(point, Ed25519PrivateKey.generate()))
    return [
        Figure(
            "append an entry, by SHA-256 of 64 bytes (a root for each 512)", median(ratios), "x", 3
        ),
        Figure("verify a log of 1,000,000 entries", whole, "s", 5),
        Figure("a proof of one of them", 1e3 * proving / len(paths), "ms", 2),
        Figure("its size, with the checkpoint", len(str(proof)) / 1e3, "KB", 4),
    ]


def _grow(tree: Tree, entry: bytes, count: int) -> None:
    for n in range(count):
        tree.append(entry)
        if n % 512 == 511:
            tree.root()


def _grown(count: int) -> Tree:
    tree = Tree()
    for n in range(count):
        tree.append(n.to_bytes(33))
    tree.root()
    return tree


def ml_1m(folder: Path) -> list[Figure]:
    """Measure devices of ML-1M, and a stranger with a roster of its size."""
    fed = rs.Federation.start(rs.load("ml-1m"), rs.methods.Gram(), seed=0).run(1)
    parts, counted = parts_of(fed), fed.method.min_count > 0
    taken, lines, small = [], [], np.zeros((3, LENGTH), np.int64)
    for part in parts:
        seed = keys.new_secret()
        line, spent = timed(lambda part=part, seed=seed: part.line(seed, counted))
        taken.append(1e3 * spent)
        lines.append(line)
        small += blinding(seed)
    total, summing = timed(lambda: to_bytes(hash_of(sums_of(fed)) + hidden(small)))
    public, key = _roster(folder, lines, total, fed.world.sizes.items)
    public.write(folder / "public")
    told, checking = timed(lambda: check(Public.read(folder / "public"), key))
    assert len(told) == 3
    items = fed.world.sizes.items
    return [
        Figure(
            f"ML-1M: a device makes its line, median of all {len(parts):,} people",
            median(taken),
            "ms",
            25,
        ),
        Figure("95 of 100 need at most", sorted(taken)[-len(parts) // 20], "ms"),
        Figure("the slowest of them", max(taken), "ms"),
        Figure("all lines together", sum(taken) / 1e3, "s"),
        Figure("the operator hashes the sum", summing, "s"),
        Figure(f"ML-1M: a stranger checks a roster of {len(lines):,} lines", checking, "s", 2),
        Figure("its size", sum(map(len, lines)) / 1e6, "MB"),
        Figure("binding, estimated for this roster", binding_bits(len(lines), items), "bits"),
        Figure("for 100,000 lines of 10,000 items", binding_bits(10**5, 10**4), "bits"),
        Figure("for 1,000,000 lines of 10,000 items", binding_bits(10**6, 10**4), "bits"),
        Figure("hiding, estimated", hiding_bits(), "bits"),
    ]


def _roster(folder: Path, lines: list[bytes], total: bytes, items: int) -> tuple[Public, object]:
    """Return a roster of given lines in a log of its own."""
    private = keys.log_key()
    log = LogFolder.make(folder / "log", "bench/log", private)
    stated = Stated(1, len(lines), items, digest(total), "", "2026-01-01T00:00:00Z").to_bytes()
    log.append([*(entry_of(LINE, one) for one in lines), entry_of(ROSTER, stated)], private)
    return Public(b"".join(lines), total, stated, log), key_of(log)


def ml_100k(folder: Path) -> tuple[list[Figure], list[tuple[str, str, int, int]]]:
    """Publish ML-100K whole, check it, and try the five fakes."""
    fed = rs.Federation.start(rs.load("ml-100k"), rs.methods.Gram(), seed=0)
    fed = rs.simulate_lending(fed).run(1)
    log = LogFolder.make(folder / "small", "bench/small", keys.log_key())
    seeds = Seeds.of(log)
    public, publishing = timed(lambda: publish(fed, log, keys.log_key(), seeds))
    known = {digest(line): line for line in split(public.lines)}
    _, again = timed(lambda: publish(fed, log, keys.log_key(), seeds, known))
    public = publish(fed, log, keys.log_key(), seeds, known)
    _, checking = timed(lambda: check(public, key_of(log)))
    _, auditing = timed(lambda: audit(fed, public, seeds))
    figures = [
        Figure(f"ML-100K, all {len(known):,} lines: make and publish them", publishing, "s"),
        Figure("publish again: only the sum is hashed", again, "s"),
        Figure("a stranger checks it", checking, "s"),
        Figure("whoever may rebuild checks sum and weights", auditing, "s"),
    ]
    return figures, _fakes(fed, public, seeds)


def _fakes(fed: rs.Federation, public: Public, seeds: Seeds) -> list[tuple[str, str, int, int]]:
    """Try each fake, and count how often it was found. (fake, who finds it, found, tries)"""
    parts, key = parts_of(fed), key_of(public.log)
    total = np.frombuffer(public.total, "<u8")
    places_used = np.flatnonzero(next(iter(sums_of(fed).values())))

    def found(change: np.ndarray) -> bool:
        return _refused(lambda: check(_restated(public, total=to_bytes(total + change)), key))

    kept = record = entry = edited = 0
    for n in range(TRIALS):
        part = parts[n * 7 % len(parts)]
        whole = line_of(part.items, part.weight, part.block, seeds.key)
        kept += found(whole - hidden(blinding(seeds.key)))
        last = part.items[:-1]
        weight = round(4096 / np.sqrt(max(len(last), 1)))
        record += found(whole - line_of(last, weight, part.block, seeds.key))
        place = places_used[n * 997 % len(places_used)]
        entry += found(added(places(0, np.array([place])), np.array([(-1) ** n])))
        lines = split(public.lines)
        changed = bytearray(lines[n % len(lines)])
        changed[n * 79 % BYTES] ^= 1 + n % 255
        lines[n % len(lines)] = bytes(changed)
        joined = b"".join(lines)
        edited += _refused(
            lambda joined=joined: check(
                _restated(public, lines=joined, total=added_up(joined)), key
            )
        )
    models = sum(_other_model(fed, public, seeds, n) for n in range(5))
    return [
        ("person kept in the sum, without a line", "a stranger", kept, TRIALS),
        ("record kept in the sum, without a line", "a stranger", record, TRIALS),
        ("one entry of the sum off by one", "a stranger", entry, TRIALS),
        ("roster edited", "a stranger", edited, TRIALS),
        ("model from another sum", "whoever may rebuild", models, 5),
    ]


def _restated(public: Public, **changed: bytes) -> Public:
    from dataclasses import replace

    public = replace(public, **changed)
    number = sum(one[0] == ROSTER for one in public.log.entries) + 1
    stated = replace(Stated.parse(public.stated), sum=digest(public.total), number=number)
    public = replace(public, stated=stated.to_bytes())
    public.log.append([entry_of(ROSTER, public.stated)], keys.log_key())
    return public


def _other_model(fed: rs.Federation, public: Public, seeds: Seeds, n: int) -> bool:
    from dataclasses import replace

    other = fed.method.follow(fed, rs.Withdraw(11 * n + 1)).now.state.public
    fake = replace(fed, now=replace(fed.now, state=replace(fed.now.state, public=other)))
    known = {digest(line): line for line in split(public.lines)}
    stated = publish(fake, public.log, keys.log_key(), seeds, known)
    check(stated, key_of(public.log))
    return _refused(lambda: audit(fake, stated, seeds))


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except DataError:
        return True
    return False


def main() -> None:
    """Measure and print the tables."""
    torch.set_num_threads(1)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        os.environ["RESCIND_KEYS"] = str(Path(name) / "keys")
        open_log()
        figures = [*log_figures(), *ml_1m(Path(name))]
        more, fakes = ml_100k(Path(name))
    rows = [figure.row for figure in (*figures, *more)]
    table = "\n".join(["| CPU, one thread | measured | at most |", "|---|---|---|", *rows])
    lines = [f"| {fake} | {who} | {found} of {tries} |" for fake, who, found, tries in fakes]
    caught = "\n".join(["| fake, ML-100K | found by | found |", "|---|---|---|", *lines])
    print(f"{table}\n\n{caught}\n\n{time.process_time() - start:.0f} CPU s")
    if "--write" in sys.argv[1:]:
        write_block(PAGE, "bench/proof.py, speed", table)
        write_block(PAGE, "bench/proof.py, fakes", caught)


if __name__ == "__main__":
    main()
