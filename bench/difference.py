"""Attack what a service serves: look twice, and tell what somebody took back in between.

    python bench/difference.py [--write]     --write: the table of docs/results/difference.md

Between two looks at a service that holds ML-1M, half of some people leave and half arrive. An
attacker sorts items by how much they changed; the AUC is that of the items of one who left, over as
popular ones that they never had. Beside it stands the same attack on people who stayed. In the last
column all of them leave. With one person between the looks it is the instant form, and the control:
there the attack must work.

    probes    each item asked alone, order of the first 20 (a service answers from five loans on)
    file      the release file downloaded twice, nothing known
    lists     lists of 20 for sets of items that the attacker knows the person had (30 %)
    file 30%  the release file, and 30 % of the person's items
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray

from rescind.core.clock import Clock
from rescind.data import load
from rescind.ledger.options import Options
from rescind.methods.additive._live_inverse import InstantSum
from rescind.methods.additive._live_release import Form, Weights, cut, release_of
from rescind.methods.additive._live_sum import NOBODY, Items, LiveSum, added_up
from rescind_papers.pages import write_block

PAGE = Path(__file__).parent.parent / "docs" / "results" / "difference.md"
LOOKS = {
    "1 person (instant form)": (1, 0),
    "50 people": (25, 25),
    "200 people": (100, 100),
    "600 people": (300, 300),
    "200 people, all leave": (200, 0),
}
"""How many leave and how many arrive between two looks."""
ALONE, TOGETHER = 16, 100
"""People attacked where one leaves, and where many do."""
PROBES, LENGTH, KNOWN = 40, 20, 0.3
GOALS = {"instant": 0.80, "release": 0.55}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """What is served, as a table: [owned, scored]."""

    table: NDArray[np.float32]

    @classmethod
    def at(cls, weights: Weights) -> Look:
        table = np.zeros((weights.items, weights.items), np.float32)
        source = np.repeat(np.arange(weights.items), np.diff(weights.first))
        table[source, weights.target] = weights.weight
        return cls(table)

    def lists(self, owned: Sequence[Items]) -> Floats:
        """Return the ranks in a list of 20 for each set of items, 0 where not listed. [n, I]"""
        out = np.zeros((len(owned), len(self.table)))
        for row, items in zip(out, owned, strict=True):
            score = self.table[items].sum(0)
            score[items] = -np.inf
            best = np.argpartition(-score, LENGTH)[:LENGTH]
            row[best[np.argsort(-score[best], kind="stable")]] = np.arange(LENGTH, 0, -1)
        return out


def by_probes(before: Look, after: Look) -> Floats:
    """Return how many places of each item's own list changed. [I]"""
    alone = [np.array([n], np.int32) for n in range(len(before.table))]
    return (before.lists(alone) != after.lists(alone)).sum(1).astype(float)


def by_file(before: Look, after: Look) -> dict[str, Floats]:
    """Return several measures of how much the weights of each item changed. [I] each"""
    drop = before.table.astype(np.float64) - after.table
    size = np.abs(before.table).sum(0) + 1e-9
    return {
        "all changes": np.abs(drop).sum(0) + np.abs(drop).sum(1),
        "share changed": np.abs(drop).sum(0) / size,
        "losses": np.maximum(drop, 0).sum(0),
        "largest": np.abs(drop).max(0),
    }


def by_known_lists(before: Look, after: Look, known: Items, clock: Clock, who: int) -> Floats:
    """Return how far each item fell in lists for parts of what is known. [I]"""
    sets = []
    for probe in range(PROBES):
        draw = clock.uniform(f"probe {probe}", torch.tensor(who), torch.arange(len(known)))
        sets.append(np.sort(known[np.argsort(draw.numpy())[: max(5, len(known) // 2)]]))
    return (before.lists(sets) - after.lists(sets)).sum(0)


def by_known_file(before: Look, after: Look, known: Items) -> Floats:
    """Return how much less what is known adds to each item. [I]"""
    return (before.table[known].astype(np.float64) - after.table[known]).sum(0)


def matched(items: Items, mine: Items, owners: NDArray[np.int64]) -> Items:
    """Return one item of about the same popularity that is not theirs, for each item."""
    order = np.argsort(owners, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    free = np.ones(len(order), bool)
    free[place[mine]] = False
    out = []
    for each in place[items]:
        near = np.flatnonzero(free)
        at = near[np.argmin(np.abs(near - each))]
        free[at] = False
        out.append(order[at])
    return np.array(out, np.int32)


def auc(evidence: Floats, inside: Items, outside: Items) -> float:
    """Return how often an item of theirs has more evidence; ties count half."""
    ordered = np.sort(evidence[outside])
    low, high = (np.searchsorted(ordered, evidence[inside], side) for side in ("left", "right"))
    return float((low + high).mean() / (2 * len(outside)))


def attacked(
    before: Look,
    after: Look,
    people: Sequence[tuple[int, Items]],
    owners: NDArray[np.int64],
    clock: Clock,
) -> dict[str, list[float]]:
    """Return the AUC of every attacker for each person. people: number and items"""
    probes, file = by_probes(before, after), by_file(before, after)
    found: dict[str, list[float]] = {name: [] for name in ("probes", *file, "lists", "file 30%")}
    for who, items in people:
        draw = clock.uniform("known", torch.tensor(who), torch.arange(len(items))).numpy()
        known = np.sort(items[np.argsort(draw)[: max(5, int(KNOWN * len(items)))]])
        rest = np.setdiff1d(items, known)
        all_out, rest_out = matched(items, items, owners), matched(rest, items, owners)
        found["probes"].append(auc(probes, items, all_out))
        for name, evidence in file.items():
            found[name].append(auc(evidence, items, all_out))
        lists = by_known_lists(before, after, known, clock, who)
        found["lists"].append(auc(lists, rest, rest_out))
        found["file 30%"].append(auc(by_known_file(before, after, known), rest, rest_out))
    return found


def strongest(found: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean AUC of each attacker: of the measures of a file, the best one."""
    whole = {name: mean(values) for name, values in found.items()}
    file = max(
        whole.pop(name) for name in list(whole) if name not in ("probes", "lists", "file 30%")
    )
    return {"probes": whole["probes"], "file": file, **whole}


def drawn(loans: dict[bytes, Items], clock: Clock, purpose: str) -> list[bytes]:
    """Return people with 20 items or more, in an order of their own."""
    people = [person for person, items in loans.items() if len(items) >= 20]
    order = torch.argsort(clock.bits(purpose, torch.arange(len(people)))).tolist()
    return [people[n] for n in order]


def instant(
    loans: dict[bytes, Items], items: int, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Attack the instant form: one person leaves between two looks."""
    live = InstantSum(items)
    live.load(loans)
    inverse, owners = live.ready(), live.sums.owners.copy()
    before = Look.at(inverse.weights())
    order = drawn(loans, clock, "instant")
    left: dict[str, list[float]] = {}
    stayed: dict[str, list[float]] = {}
    for n, person in enumerate(order[:ALONE]):
        live.change(person, loans[person], NOBODY)
        after = Look.at(inverse.weights())
        other = order[ALONE + n]
        for out, one in ((left, person), (stayed, other)):
            found = attacked(before, after, [(n, loans[one])], owners, clock)
            for name, values in found.items():
                out.setdefault(name, []).extend(values)
        live.change(person, NOBODY, loans[person])
    return left, stayed


def released(
    loans: dict[bytes, Items], items: int, leaving: int, arriving: int, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Attack releases: many people leave and arrive between two."""
    live, form = LiveSum(items), Form(rounding=Options().rounding)
    order = drawn(loans, clock, f"leaving {leaving}")
    new, order = order[:arriving], order[arriving:]
    live.load({person: mine for person, mine in loans.items() if person not in new})
    owners, before = live.sums.owners.copy(), Look.at(release_of(live.copy(), form))
    for person in order[:leaving]:
        live.change(person, loans[person], NOBODY)
    for person in new:
        live.change(person, NOBODY, loans[person])
    after = Look.at(release_of(live.copy(), form))
    groups = (order[:leaving][:TOGETHER], order[leaving:][:TOGETHER])
    left, stayed = (
        attacked(before, after, list(enumerate(loans[p] for p in group)), owners, clock)
        for group in groups
    )
    return left, stayed


def table_of(found: dict[str, tuple[dict[str, float], dict[str, float]]]) -> str:
    """Return the table of attackers: who left, and in brackets who stayed."""
    names = {
        "probes": "every item probed alone, order of the first 20",
        "file": "release file twice, knows nothing",
        "lists": "lists of 20, knows 30 % of the person's items",
        "file 30%": "release file twice, knows 30 %",
    }
    heads = list(found)
    lines = ["| attacker (AUC; in brackets: people who stayed) | " + " | ".join(heads) + " |"]
    lines.append("|---" * (len(heads) + 1) + "|")
    for name, words in names.items():
        cells = [f"{left[name]:.2f} ({stayed[name]:.2f})" for left, stayed in found.values()]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(found: dict[str, tuple[dict[str, float], dict[str, float]]]) -> tuple[str, bool]:
    """Say which goals of a service are met, and whether all are."""
    works = found["1 person (instant form)"][0]["file"]
    lines = [f"Instant form: {works:.3f}, {_judged(works >= GOALS['instant'])} (at least .80)."]
    met = works >= GOALS["instant"]
    for name in ("200 people", "200 people, all leave"):
        blind = max(found[name][0][attacker] for attacker in ("probes", "file"))
        met &= blind <= GOALS["release"]
        right = _judged(blind <= GOALS["release"])
        lines.append(f"{name}, nothing known: {blind:.3f}, {right} (at most .55).")
    return "Goals. " + " ".join(lines), met


def _judged(right: bool) -> str:
    return "met" if right else "MISSED"


def quality(loans: dict[bytes, Items], items: int, clock: Clock) -> str:
    """Say what rounding costs: NDCG@20 of a tenth of the records of every fourth person."""
    held, kept = {}, dict(loans)
    for n, (person, mine) in enumerate(loans.items()):
        if n % 4 == 0 and len(mine) >= 20:
            order = np.argsort(clock.bits("held", torch.tensor(n), torch.arange(len(mine))).numpy())
            held[person] = mine[order[: len(mine) // 10]]
            kept[person] = np.setdiff1d(mine, held[person]).astype(np.int32)
    sums, gain = added_up(kept.values(), items), 1 / np.log2(np.arange(2, LENGTH + 2))
    inverse, found = sums.inverse(Form().solving.ridges), []
    for rounding in (0.0, Options().rounding):
        look = Look.at(cut(inverse, sums.owners, Form(rounding=rounding)))
        reached = []
        for person, out in held.items():
            ranks = look.lists([kept[person]])[0][out]
            best = gain[: min(LENGTH, len(out))].sum()
            reached.append(gain[(LENGTH - ranks[ranks > 0]).astype(int)].sum() / best)
        found.append(f"{mean(reached):.4f}")
    return f"NDCG@20 of held-out records: {found[1]} with rounding, {found[0]} without."


def main(show: Callable[[str], None] = print) -> int:
    """Run all attackers; print the table."""
    torch.set_num_threads(1)
    data, clock = load("ml-1m"), Clock(11)
    order = np.lexsort((data.item, data.user))
    user, item = data.user[order], data.item[order].astype(np.int32)
    parts = np.split(item, np.flatnonzero(np.diff(user)) + 1)
    loans = {int(n).to_bytes(16, "big"): np.unique(part) for n, part in enumerate(parts)}
    found = {}
    for name, (leaving, arriving) in LOOKS.items():
        both = (
            instant(loans, len(data.items), clock)
            if leaving == 1
            else released(loans, len(data.items), leaving, arriving, clock)
        )
        found[name] = (strongest(both[0]), strongest(both[1]))
        show(f"{name}: {found[name]}")
    text, met = verdict(found)
    whole = f"{table_of(found)}\n\n{text}\n\n{quality(loans, len(data.items), clock)}"
    show(whole)
    if "--write" in sys.argv:
        write_block(PAGE, "difference", whole)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
