"""Attack releases with made-up accounts: bring one on that mixes nobody but a chosen person.

    python bench/made_up_accounts.py [--write]     --write: its table in docs/results/difference.md

One person leaves, then the attacker has 199 accounts change, then other people leave one by one
until the count of the service (`ledger.release_counts`) says that a release is due. The attacker
downloads the file before and after and knows nothing (`difference.by_file`, `difference.by_probes`:
the best of them). AUC of the items of the one who left, mean and standard deviation over seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev
from types import SimpleNamespace

import numpy as np
import torch
from difference import LENGTH, PAGE, Look, auc, by_file, by_probes, drawn, matched

from rescind.core.clock import Clock
from rescind.data import load
from rescind.ledger.noising import SOLVING
from rescind.ledger.options import Options
from rescind.ledger.release_counts import Tally
from rescind.methods.additive._live_release import Form, Weights, release_of
from rescind.methods.additive._live_sum import NOBODY, Items, LiveSum
from rescind.methods.additive._noised_release import Noise, noised_release
from rescind_papers.pages import write_block

SETS, SEEDS, VICTIMS = ("ml-100k", "ml-1m"), (1, 2, 3), 4
GOAL, OPTIONS = 0.60, Options()
NOISE = 3.0
"""The multiplier that docs/service.md shows."""
Loans = dict[bytes, Items]


@dataclass(frozen=True)
class Attack:
    """What the made-up accounts do, and what stands against it."""

    says: str
    made_up: str = "lend and take back"
    old_count: bool = False
    """Count every account that changed something, as it was before."""
    noise: float = 0.0


ATTACKS = (
    Attack("lend and take back, every account counts (control)", old_count=True),
    Attack("lend and take back, at the defaults"),
    Attack("none: only people leave (control)", made_up="nothing"),
    Attack("sat in the last release, one item each taken back", made_up="wait"),
    Attack("the same, with noise 3", made_up="wait", noise=NOISE),
)


class Service:
    """The sum of a service, its count, and its releases."""

    def __init__(self, attack: Attack, loans: Loans, items: int, seed: int) -> None:
        self.attack, self.seed, self.place = attack, seed, 0
        self.live = LiveSum(items)
        self.live.load(loans)
        self.changed: set[bytes] = set()
        self.tally = Tally(self.live)
        self.tally.copied(self.live.loans)
        self.tally.released()

    def change(self, person: bytes, new: Items) -> None:
        """Let a person lend this and nothing else."""
        self.live.change(person, self.live.of(person), new)
        self.changed.add(person)
        self.tally.note(SimpleNamespace(events=(), changes={person: ()}))  # type: ignore[arg-type]

    @property
    def due(self) -> bool:
        """Whether enough changed for a release."""
        number = len(self.changed) if self.attack.old_count else self.tally.number
        return number >= OPTIONS.people

    def look(self) -> Look:
        """Return what a release of this moment serves."""
        return Look.at(self._weights())

    def _weights(self) -> Weights:
        if not self.attack.noise:
            return release_of(self.live.copy(), Form(rounding=OPTIONS.rounding))
        weights = noised(list(self.live.loans.values()), self.live.items, self.seed, self.place)
        self.place += 1
        return weights


def noised(loans: list[Items], items: int, seed: int, place: int) -> Weights:
    """Return a release with noise, in a schedule of the default length."""
    form = Form(SOLVING, OPTIONS.neighbours, 0)
    noise = Noise(NOISE, OPTIONS.noise_releases, place, f"{seed:064x}")
    return noised_release(loans, items, noise, form)


def looked_like(loans: Loans, clock: Clock) -> list[Items]:
    """Return loans of made-up accounts: half of what one person has and half of another's."""
    have = [loans[person] for person in drawn(loans, clock, "made up")]
    return [np.union1d(a[::2], b[1::2]).astype(np.int32) for a, b in pairwise(have)]


def attacked(attack: Attack, loans: Loans, items: int, seed: int) -> list[float]:
    """Return the AUC of each person who is attacked, by the best attacker that knows nothing."""
    clock = Clock(seed)
    order, found = drawn(loans, clock, "leaving"), []
    names = (f"made up {n:08d}".encode() for n in range(OPTIONS.people - 1))
    made_up = dict(zip(names, looked_like(loans, clock), strict=False))
    there = {**loans, **(made_up if attack.made_up == "wait" else {})}
    for n in range(VICTIMS):
        service = Service(attack, there, items, VICTIMS * seed + n)
        owners = service.live.sums.owners.copy()
        before, mixed = service.look(), [order[n]]
        service.change(order[n], NOBODY)
        for name, like in made_up.items():
            if attack.made_up == "wait":
                service.change(name, like[1:])
            elif attack.made_up != "nothing":
                service.change(name, like)
                service.change(name, NOBODY)
        others = iter(order[VICTIMS:])
        while not service.due:
            mixed.append(next(others))
            service.change(mixed[-1], NOBODY)
        evidence = {"probes": by_probes(before, after := service.look()), **by_file(before, after)}
        out = matched(loans[order[n]], loans[order[n]], owners)
        found.append({name: auc(one, loans[order[n]], out) for name, one in evidence.items()})
    return max(([one[name] for one in found] for name in found[0]), key=mean)


def quality(loans: Loans, items: int) -> str:
    """Say what noise costs: NDCG@20 of a tenth of the records of every fourth person."""
    held, there, clock = {}, dict(loans), Clock(11)
    for n, (person, mine) in enumerate(loans.items()):
        if n % 4 == 0 and len(mine) >= 20:
            order = np.argsort(clock.bits("held", torch.tensor(n), torch.arange(len(mine))).numpy())
            held[person] = mine[order[: len(mine) // 10]]
            there[person] = np.setdiff1d(mine, held[person]).astype(np.int32)
    live = LiveSum(items)
    live.load(there)
    plain = release_of(live.copy(), Form(rounding=OPTIONS.rounding))
    popular = np.tile(live.sums.owners.astype(np.float32), (items, 1))
    seen = [Look.at(noised(list(there.values()), items, seed, 0)) for seed in SEEDS]
    reached = [ndcg(look, held, there) for look in (Look.at(plain), *seen, Look(popular))]
    noisy = reached[1:-1]
    return (
        f"{reached[0]:.4f} without noise, {mean(noisy):.4f} ± {stdev(noisy):.4f} with noise, "
        f"{reached[-1]:.4f} for what is popular"
    )


def ndcg(look: Look, held: Loans, there: Loans) -> float:
    """Return NDCG@20 of what people have and a service does not know."""
    gain, reached = 1 / np.log2(np.arange(2, LENGTH + 2)), []
    for person, out in held.items():
        ranks = look.lists([there[person]])[0][out]
        best = gain[: min(LENGTH, len(out))].sum()
        reached.append(gain[(LENGTH - ranks[ranks > 0]).astype(int)].sum() / best)
    return mean(reached)


def loans_of(name: str) -> tuple[Loans, int]:
    """Return what each person of a dataset has, and how many items there are."""
    data = load(name)
    order = np.lexsort((data.item, data.user))
    user, item = data.user[order], data.item[order].astype(np.int32)
    parts = np.split(item, np.flatnonzero(np.diff(user)) + 1)
    return {n.to_bytes(16, "big"): np.unique(part) for n, part in enumerate(parts)}, len(data.items)


def main(show: Callable[[str], None] = print) -> int:
    """Run all attacks on all datasets; print the table."""
    torch.set_num_threads(1)
    cells: dict[Attack, list[str]] = {attack: [] for attack in ATTACKS}
    met, costs = True, []
    for name in SETS:
        loans, items = loans_of(name)
        for attack in ATTACKS:
            runs = [mean(attacked(attack, loans, items, seed)) for seed in SEEDS]
            cells[attack].append(f"{mean(runs):.3f} ± {stdev(runs):.3f}")
            met &= mean(runs) <= GOAL or attack != ATTACKS[1]
            show(f"{name}, {attack.says}: {cells[attack][-1]}")
        costs.append(f"{name}: {quality(loans, items)}.")
        show(costs[-1])
    lines = ["| what 199 made-up accounts do | " + " | ".join(SETS) + " |", "|---|---|---|"]
    lines += [f"| {attack.says} | {' | '.join(row)} |" for attack, row in cells.items()]
    goal = f"Goal: at the defaults at most {GOAL:.2f}, {'met' if met else 'MISSED'}."
    size = f"{len(SEEDS)} seeds, {VICTIMS} people each."
    size += f"\n\nNDCG@20 of held-out records. {' '.join(costs)}"
    text = "\n".join([*lines, "", f"{goal} {size}"])
    if "--write" in sys.argv:
        write_block(PAGE, "made_up", text)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
