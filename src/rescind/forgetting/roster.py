"""Publish the roster of a run of Gram: a hidden line for each part of its sum (`proof.roster`).

The seeds that hide the lines are secret and lie beside the keys, one per line. A part that changes
gets a new line under a new seed; its old line is revoked, and the old seed is dropped. Whoever kept
no copy of it cannot open the old line any more, so the line may stay in the log.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rescind.core import params
from rescind.core.federation import Federation
from rescind.core.files import write_atomically
from rescind.errors import ConfigError, DataError
from rescind.methods.additive._additive import counted_parts
from rescind.methods.additive._exchange import OWNERS as OWNERS_KEY
from rescind.methods.additive._solve import WEIGHTS
from rescind.methods.additive.gram import Gram, gram_of
from rescind.privacy import keys
from rescind.privacy.sealing import bound, fits
from rescind.proof.item_names import Catalogue, newest
from rescind.proof.log_folder import LINE, REVOKED, ROSTER, LogFolder, entry_of
from rescind.proof.roster import (
    PER_ITEM,
    Part,
    Public,
    Stated,
    added_up,
    digest,
    live,
    split,
    to_bytes,
)
from rescind.proof.sum_hash import OWNERS, Hash, blinding, hash_of, hidden, opens

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SUM = re.compile(r"gram/\d{4}")
CLOSE = 4 * float(np.finfo(np.float32).eps)
"""Weights of one sum, solved or changed step by step, differ by less, relative to their size."""


class Outdated(DataError):
    """A run has another sum or other weights than those published: it may be newer."""


@dataclass
class Seeds:
    """The secret side of a roster: which part has which line, and what hides it."""

    path: Path
    key: bytes
    lines: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """(seed, digest of the line) by the part's tag, which is keyed."""
    names: bytes | None = None
    """What hides the names of the items in the log; None before they were stated."""

    @classmethod
    def of(cls, log: LogFolder) -> Seeds:
        """Read the seeds for this user's log, made on first use."""
        name = hashlib.sha256(log.checkpoint.origin.encode()).hexdigest()[:16]
        path = keys.folder() / f"roster-{name}.json"
        if not path.exists():
            return cls(path, keys.new_secret())
        try:
            table: dict[str, Any] = json.loads(keys.read_private(path, largest=1 << 30))
            lines = {tag: (bytes.fromhex(s), str(d)) for tag, (s, d) in table["lines"].items()}
            names = bytes.fromhex(table.get("names", "")) or None
            return cls(path, bytes.fromhex(table["key"]), lines, names)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path} is not a file of seeds. Restore it from a copy.") from None

    def write(self) -> None:
        """Write the file, which only its owner can read."""
        lines = {tag: (seed.hex(), line) for tag, (seed, line) in self.lines.items()}
        names = {} if self.names is None else {"names": self.names.hex()}
        text = json.dumps({"key": self.key.hex(), **names, "lines": lines})
        write_atomically(self.path, text.encode(), private=True)

    def tag(self, part: Part, again: int) -> str:
        """Return a keyed name of a part. again: how many equal ones came before"""
        text = f"{part.client} {part.block} {part.weight} {again} ".encode() + part.items.tobytes()
        return hashlib.blake2b(text, key=self.key, digest_size=16).hexdigest()

    def small(self) -> NDArray[np.int64]:
        """Return the sum of the numbers that hide all lines."""
        total = np.zeros((3, 1024), np.int64)
        for seed, _ in self.lines.values():
            total += blinding(seed)
        return total


def parts_of(fed: Federation) -> list[Part]:
    """Return what each person adds to the sum of a run of Gram, from the data."""
    method = _gram(fed)
    parts = counted_parts(method, fed)
    item, owner = parts.lot.item.numpy(), parts.lot.owner.numpy()
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.arange(len(parts) + 1))
    client, block, weight = (t.tolist() for t in (parts.client, parts.block, parts.weight))
    return [
        Part(client[n], domain_of(method, block[n]), weight[n], np.unique(item[order[a:b]]))
        for n, (a, b) in enumerate(pairwise(ends))
    ]


def sums_of(fed: Federation) -> dict[int, NDArray[np.int64]]:
    """Return the sum that a run of Gram uses, by domain."""
    own, method = fed.now.state.own, _gram(fed)
    sums = {int(n[-4:]): v.long().numpy() for n, v in own.items() if n.startswith("gram/")}
    return {**sums, OWNERS: own[OWNERS_KEY].long().numpy()} if method.min_count else sums


def _gram(fed: Federation) -> Gram:
    method = gram_of(fed)
    if not all(_SUM.fullmatch(n) for n in fed.now.state.own if n.startswith("gram/")):
        raise ConfigError(
            f"a roster needs the sum of all pairs that Gram keeps; {type(method).__name__} keeps "
            f"another one. Run the recipe with Gram."
        )
    return method


def domain_of(method: Gram, block: int) -> int:
    """Return the domain of a block's sum."""
    return int(method.sum_key(block)[-4:])


def publish(
    fed: Federation,
    log: LogFolder,
    private: Ed25519PrivateKey,
    seeds: Seeds,
    known: Mapping[str, bytes] | None = None,
) -> Public:
    """Add lines for new parts, revoke those of parts that are gone, and state the sum.

    known: lines made before, by digest; others are made from their seeds again. Killed at any
    moment, the next call goes on: seeds are written before a line is, and dropped last.
    """
    made = _lines(fed, seeds, known or {})
    names = _names(fed, log, seeds)
    seeds.write()
    after = replace(seeds, lines={tag: seeds.lines[tag] for tag in made})
    total = hash_of(sums_of(fed)) + hidden(after.small())
    weights, items = weights_digest(fed, seeds.key), fed.world.sizes.items
    public = state_sum(log, private, list(made.values()), total, items, weights, names)
    seeds.lines = after.lines
    seeds.write()
    return public


def next_number(log: LogFolder) -> int:
    """Return the number of the next roster in a log."""
    return sum(entry[0] == ROSTER for entry in log.entries) + 1


def state_sum(
    log: LogFolder,
    private: Ed25519PrivateKey,
    lines: Sequence[bytes],
    total: Hash,
    items: int,
    weights: str,
    names: bytes | None = None,
) -> Public:
    """State in the log which lines count from now on, which do not any more, and their sum.

    names: the entry that states the names of the items, for people who look for their own line
    """
    commitment = to_bytes(total)
    stated = Stated(
        number=next_number(log),
        lines=len(lines),
        items=items,
        sum=digest(commitment),
        weights=weights,
        time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    ).to_bytes()
    added = [entry_of(LINE, line) for line in lines]
    gone = live(log.entries) - {entry[1:] for entry in added}
    revoked = [bytes([REVOKED]) + one for one in sorted(gone)]
    named = [] if names is None else [names]
    log.append([*added, *revoked, *named, entry_of(ROSTER, stated)], private)
    return Public(b"".join(lines), commitment, stated, log)


def catalogue_of(fed: Federation, key: bytes) -> Catalogue:
    """Return the names of all items of a run, under a key."""
    return Catalogue(key, [fed.labels.item_id(n) for n in range(fed.world.sizes.items)])


def _names(fed: Federation, log: LogFolder, seeds: Seeds) -> bytes:
    """Return the entry that states the names, under a new key if one of them changed.

    The old key is dropped: an item that only a leaver had loses its name, and whoever has the key
    could try names out against the old entry.
    """
    if seeds.names is not None:
        entry = catalogue_of(fed, seeds.names).entry()
        if entry == newest(log.entries):
            return entry
    seeds.names = keys.new_secret()
    return catalogue_of(fed, seeds.names).entry()


def _lines(fed: Federation, seeds: Seeds, known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the line of every part, by tag; new parts get a seed."""
    made: dict[str, bytes] = {}
    counted = _gram(fed).min_count > 0
    for part in parts_of(fed):
        again = 0
        while (tag := seeds.tag(part, again)) in made:
            again += 1
        seed, name = seeds.lines.get(tag, (keys.new_secret(), ""))
        line = known.get(name) or part.line(seed, counted)
        made[tag], seeds.lines[tag] = line, (seed, digest(line))
    return made


def adds_up(public: Public) -> bool:
    """Return whether the lines add up to the sum: what the operator checks before publishing."""
    return added_up(public.lines) == public.total


def lines_in(folder: Path) -> dict[str, bytes]:
    """Return the lines of a public folder by digest; none if there is no roster yet."""
    try:
        data = (folder / "roster.bin").read_bytes()
    except OSError:
        return {}
    return {digest(line): line for line in split(data)}


def audit(fed: Federation, public: Public, seeds: Seeds) -> list[str]:
    """Check as whoever may rebuild: the sum in use is the published one, and gives the weights.

    Return what holds; raise `DataError` with the first thing that does not.
    """
    stated = Stated.parse(public.stated)
    total = np.frombuffer(public.total, "<u8").astype(np.uint64)
    wrong = opens(total, sums_of(fed), seeds.small(), stated.lines, stated.items)
    if wrong:
        raise Outdated(f"the run's sum is not the published one: {wrong}.")
    told = ["the sum that the run uses is the published one"]
    names = _audited_names(fed, public.log, seeds)
    if not fits(stated.weights, _weights(fed), seeds.key):
        raise Outdated("the run's weights are not those of the published release.")
    method, state = _gram(fed), fed.now.state
    if method.noise or method.pending(fed):
        why = "have noise" if method.noise else "are of an earlier sum, until the next release"
        return [*told, f"the weights {why}, so they were not compared with the sum", *names]
    solved = {**state.own, "inverse": method.server_solved(state.own, fed.world)}
    given = state.public[WEIGHTS].double().numpy()
    fresh = method.server_public(solved, fed.world)[WEIGHTS].double().numpy()
    both = (given != 0) & (fresh != 0)  # at a tie another neighbour may be kept
    apart = float(((given != 0) ^ (fresh != 0)).mean())
    near = np.abs(given - fresh) <= CLOSE * np.maximum(np.abs(given), np.abs(fresh)) + 1e-9
    if apart > 1e-3 or not near[both].all():
        raise DataError("the weights were not solved from the published sum.")
    return [*told, "the weights follow from it", *names]


def _audited_names(fed: Federation, log: LogFolder, seeds: Seeds) -> list[str]:
    """Check that the log states the names that the items have in the run, if it states any."""
    stated = newest(log.entries[: log.checkpoint.size])
    if stated is None:
        return []
    if seeds.names is None or catalogue_of(fed, seeds.names).entry() != stated:
        raise Outdated("the names of the run's items are not those that the log states.")
    return ["the names of its items are those that the log states"]


def weights_digest(fed: Federation, key: bytes) -> str:
    """Return the digest of a run's weights under a key."""
    return bound(_weights(fed), key)


def _weights(fed: Federation) -> str:
    return params.digest({WEIGHTS: fed.now.state.public[WEIGHTS]})


def lines_of(
    fed: Federation, client: int, seeds: Seeds, log: LogFolder | None = None
) -> list[dict[str, Any]]:
    """Return what one person needs to check their own lines, now and after they left.

    log: states the names of the items; without it, or if it states none, they are not shown to be
    the stated ones
    """
    names = catalogue_of(fed, seeds.names) if seeds.names and log is not None else None
    if names is not None and log is not None and names.entry() != newest(log.entries):
        raise Outdated("the log states other names of items than this run has.")
    found, made, counted = [], set[str](), _gram(fed).min_count > 0
    for part in parts_of(fed):
        again = 0
        while (tag := seeds.tag(part, again)) in made:
            again += 1
        made.add(tag)
        if part.client == client and tag in seeds.lines:
            seed, line = seeds.lines[tag]
            about = {"block": part.block, "weight": part.weight, PER_ITEM: counted}
            items = part.items.tolist()  # the run's numbers
            ids = {"ids": [fed.labels.item_id(item) for item in items]}
            shown = ids if names is None else names.proofs(items)
            found.append({"line": line, "seed": seed.hex(), **about, "items": items, **shown})
    return found
