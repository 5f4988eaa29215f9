"""Forget clients of graphs by every method, and measure each beside an exact retraining.

    python recipes/fedgcv/measure.py cora fedavg --out recipes/fedgcv/cora-fedavg.jsonl
    python recipes/fedgcv/measure.py --show recipes/fedgcv/*.jsonl

One line per (seed, leaver, method). What is in the file already is not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from rescind import Federation, Withdraw, methods
from rescind.audits import mait
from rescind.data import load
from rescind.federation import Moment
from rescind.holdings import TRAIN
from rescind.method import Method
from rescind.methods.fedgcv import FedGCV
from rescind.params import digest

found = methods.found()
BASES = {"fedavg": found["ULKD"](), "fedsgd": found["GraphFedSGD"]()}
"""ULKD learns as FedAvg does, bit for bit, and keeps what it needs to forget later."""
UNLEARNERS: dict[str, Method | None] = {
    "before": None,
    "retrain": found["GraphFedAvg"](),
    "drop": found["Drop"](),
    "FedGCV": FedGCV(),
    "FedGCV, before repair": FedGCV(repair_rounds=0),
    "FedGCV as published": FedGCV.as_published(),
    "FedGCV as published, before repair": FedGCV.as_published(repair_rounds=0),
    "FedGCV, literal Eq. 3.4-3.6": FedGCV(literal=True, repair_rounds=0),
    "FedGCV, w/o correction": FedGCV.without_correction(),
    "FedGCV, w/o correction, before repair": FedGCV.without_correction(repair_rounds=0),
    "PGA": found["PGA"](),
    "SGA-Random": found["SGARandom"](),
    "SGA-Degree": found["SGADegree"](),
    "EWC-SGA": found["EWCSGA"](),
    "Noisy-GD": found["NoisyGD"](),
    "ULKD": found["ULKD"](),
    "ReGEn proxy": found["ReGEnProxy"](),
    "FedOSD": found["FedOSD"](),
}


class Spent:
    """A watcher that counts rounds and who took part in them."""

    def __init__(self) -> None:
        self.rounds, self.who = 0, set()

    def __call__(self, moment: Moment) -> None:
        self.rounds += 1
        for total in moment.sums.values():
            self.who |= set(total.who.tolist())


def loss_auc(member: torch.Tensor, other: torch.Tensor) -> float:
    """How often a member's loss is below another's: .5 tells nothing, either side of it does."""
    less = (member.unsqueeze(1) < other).double() + (member.unsqueeze(1) == other).double() / 2
    return float(less.mean())


def measured(fed: Federation, after: Federation, client: int, cut: float) -> dict[str, float]:
    """How well a model does for those who stay, for all and for the leaver; two attacks."""
    held, asked = fed.now.vault.holdings, fed.with_(state=after.now.state)
    mine = held.records.client == client
    losses = [
        asked.query(held.records[mine & part], "loss")
        for part in (held.split == TRAIN, held.split != TRAIN)
    ]
    ids = torch.arange(held.clients)
    out = {}
    for name, who in (("kept", ids[ids != client]), ("all", ids), ("leaver", ids[ids == client])):
        out |= {f"{name} {k}": v for k, v in asked.evaluate(clients=who).items()}
    right = asked.query(held.records[mine & (held.split == TRAIN)]) > 0
    out["leaver train odds above 0"] = float(right.double().mean())
    out["loss AUC"] = loss_auc(*losses)
    out["MIA"] = float((losses[0] < cut).double().mean())
    return out


def one(name: str, fed: Federation, client: int, cut: float) -> dict[str, Any]:
    """One method on one leaver."""
    unlearner, spent, began = UNLEARNERS[name], Spent(), time.process_time()
    after = fed
    if name == "retrain":
        watched = Federation.start(fed.past.origin, fed.method, fed.clock.seed)
        after = watched.apply(Withdraw(client)).run(fed.now.state.round, watch=[spent])
    elif unlearner is not None:
        spying = Federation(**{**vars(fed), "watch": (spent,)})
        after = unlearner.unlearn(spying, Withdraw(client))
    seconds = time.process_time() - began
    row = measured(fed, after, client, cut)
    cost = {"rounds": spent.rounds, "leaver online": client in spent.who, "seconds": seconds}
    return {**row, **cost, "model": digest(after.now.state.public)[:23]}


def make(chosen: argparse.Namespace) -> None:
    """Everything that is missing."""
    out = Path(chosen.out)
    there = set()
    if out.exists():
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        there = {(r["seed"], r["leaver"], r["method"], r["trained"]) for r in rows}
    names = chosen.methods or list(UNLEARNERS)
    graph = load(chosen.data)
    for seed in chosen.seeds:
        todo = [
            (leaver, name)
            for leaver in chosen.leavers
            for name in names
            if (seed, leaver, name, chosen.rounds) not in there
        ]
        if not todo:
            continue
        fed = Federation.start(graph, BASES[chosen.base], seed=seed).run(chosen.rounds)
        fitted = mait.losses(fed)
        for leaver, name in todo:
            cut = float(fitted.threshold(leaver))
            about = {"data": chosen.data, "base": chosen.base, "trained": chosen.rounds}
            about |= {"seed": seed, "leaver": leaver, "method": name}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**about, **one(name, fed, leaver, cut)}) + "\n")


COLUMNS = ("kept accuracy", "kept ROC-AUC", "leaver accuracy", "loss AUC", "MIA", "MIA - retrain")


def show(files: list[str]) -> None:
    """Means and spreads in per cent, and what each cost."""
    for file in files:
        groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        near = {
            (r["seed"], r["leaver"], r["trained"]): r["MIA"]
            for r in rows
            if r["method"] == "retrain"
        }
        for row in rows:
            key = (row["seed"], row["leaver"], row["trained"])
            if key in near:
                row["MIA - retrain"] = row["MIA"] - near[key]
            groups[row["method"], row["trained"]].append(row)
        print(f"\n{file}")
        print(f"| method | runs | {' | '.join(COLUMNS)} | rounds | leaver online |")
        print("|---|" + "---|" * (len(COLUMNS) + 3))
        for (name, trained), mine in groups.items():
            cells = []
            for column in COLUMNS:
                value = torch.tensor([100 * r[column] for r in mine if column in r])
                spread = float(value.std()) if len(value) > 1 else 0.0
                cells.append(f"{float(value.mean()):.1f} ± {spread:.1f}" if len(value) else "")
            rounds = f"{sum(r['rounds'] for r in mine) / len(mine):.0f}"
            online = "yes" if any(r["leaver online"] for r in mine) else "no"
            label = f"{name} ({trained} rounds)"
            print(f"| {label} | {len(mine)} | {' | '.join(cells)} | {rounds} | {online} |")


def main() -> None:
    """Make or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?")
    parser.add_argument("base", nargs="?", choices=BASES)
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2025, 2026, 2027, 2028, 2029])
    parser.add_argument("--leavers", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--methods", nargs="+", choices=UNLEARNERS)
    parser.add_argument("--show", nargs="+")
    chosen = parser.parse_args()
    if chosen.show:
        show(chosen.show)
    else:
        make(chosen)


if __name__ == "__main__":
    main()
