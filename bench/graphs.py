"""Clients that leave graphs, by every method, on another machine: torch and numpy are enough there.

    python bench/graphs.py prepare gpu-input/graphs               where rescind and the graphs are
    python bench/graphs.py run gpu-input/graphs OUT --data cora citeseer --bases fedavg fedsgd
    python bench/graphs.py ulira gpu-input/graphs OUT --data cora --leavers 0 3 6 --pairs 32
    python bench/graphs.py time gpu-input/graphs OUT              fifty runs of FedGCV on Cora

`run` writes a line per (seed, leaver, method) into OUT/DATA-BASE.jsonl; runs that are in the files
named by --done are not made again. `ulira` writes what every shadow says of every node into
OUT/DATA-BASE.ulira.jsonl, a line per (leaver, shadow). With --device cpu it runs anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from rescind import Federation, InProcess, Withdraw, methods
from rescind.audits import mait
from rescind.audits.probe import Case
from rescind.audits.ulira import said, trained
from rescind.data import GraphDataset
from rescind.data.partition import subgraphs
from rescind.federation import Moment
from rescind.holdings import TRAIN
from rescind.method import Method
from rescind.params import digest
from rescind.provenance import versions
from rescind.settings import to_table

found = methods.found()
FedGCV: Any = found["FedGCV"]
BASES: dict[str, Method] = {"fedavg": found["ULKD"](), "fedsgd": found["GraphFedSGD"]()}
"""ULKD learns as FedAvg does, bit for bit, and keeps what it needs to forget later."""
UNLEARNERS: dict[str, Method | None] = {
    "before": None,
    "retrain": found["Retrain"](),
    "drop": found["Drop"](),
    "FedGCV": FedGCV(),
    "FedGCV, before repair": FedGCV(repair_rounds=0),
    "FedGCV as published": FedGCV.as_published(),
    "FedGCV as published, before repair": FedGCV.as_published(repair_rounds=0),
    "FedGCV, virtual client": FedGCV(virtual=True),
    "FedGCV, literal": FedGCV(literal=True, repair_rounds=0),
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
SEEDS = [2025, 2026, 2027, 2028, 2029]
LEAVERS = list(range(10))


# -- graphs that travel ---------------------------------------------------------------------------


def prepare(folder: Path, names: list[str]) -> None:
    """Pack graphs with the parts that come with the package."""
    from rescind.data import load
    from rescind.data.partition import _entries, published_parts

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        graph = load(name)
        assert isinstance(graph, GraphDataset)
        node, feature, value = _entries(graph.features)
        path = folder / f"{name}.npz"
        np.savez_compressed(
            path,
            edge=graph.edge_index.astype(np.int32),
            y=graph.y.astype(np.int16),
            node=node.astype(np.int32),
            feature=feature.astype(np.int32),
            value=value,
            shape=np.asarray(graph.features.shape),
            classes=graph.num_classes,
            part=published_parts(graph).astype(np.int8),
            digest=graph.digest,
        )
        print(f"{path}: {len(graph)} nodes, {path.stat().st_size} bytes, {graph.digest[:20]}")


def carried(folder: Path, name: str) -> tuple[GraphDataset, np.ndarray, str]:
    """A graph that `prepare` packed, the client of each node, and the digest of the original."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        features = np.zeros(tuple(file["shape"]), dtype=np.float32)
        features[file["node"], file["feature"]] = file["value"]
        y = file["y"].astype(np.int64)
        none = np.zeros(len(y), dtype=np.bool_)
        edge, classes = file["edge"].astype(np.int64), int(file["classes"])
        graph = GraphDataset(name, edge, features, y, none, none, none, classes)
        return graph, file["part"].astype(np.int64), str(file["digest"])


# -- one run --------------------------------------------------------------------------------------


class Spent:
    """A watcher that counts rounds and who took part in them."""

    def __init__(self) -> None:
        self.rounds, self.who = 0, set[int]()

    def __call__(self, moment: Moment) -> None:
        self.rounds += 1
        for role, total in moment.sums.items():
            if role != "host":
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
    ids = torch.arange(held.clients, device=held.members.device)
    out = {}
    for name, who in (("kept", ids[ids != client]), ("all", ids), ("leaver", ids[ids == client])):
        out |= {f"{name} {k}": v for k, v in asked.evaluate(clients=who).items()}
    valid = asked.evaluate(split="valid", clients=ids[ids != client])
    out |= {f"kept valid {k}": v for k, v in valid.items()}
    right = asked.query(held.records[mine & (held.split == TRAIN)]) > 0
    out["leaver train odds above 0"] = float(right.double().mean())
    out["loss AUC"] = loss_auc(*losses)
    out["MIA"] = float((losses[0] < cut).double().mean())
    return {name: round(value, 6) for name, value in out.items()}


def one(name: str, fed: Federation, client: int, cut: float) -> dict[str, Any]:
    """One method on one leaver."""
    unlearner, spent, began = UNLEARNERS[name], Spent(), time.perf_counter()
    after = fed
    if unlearner is not None:
        watched = Federation(**{**vars(fed), "watch": (spent,)})
        after = unlearner.unlearn(watched, Withdraw(client))
    seconds = round(time.perf_counter() - began, 3)
    row = measured(fed, after, client, cut)
    cost = {"rounds": spent.rounds, "leaver online": client in spent.who, "seconds": seconds}
    asked = {} if unlearner is None else to_table(unlearner)
    return {**row, **cost, "settings": asked, "model": digest(after.now.state.public)[:23]}


# -- many of them ---------------------------------------------------------------------------------


class Crew:
    """What one process has at hand: graphs, and the base it trained last."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.graphs, self.last = given, {}, {}

    def graph(self, name: str) -> Any:
        """A graph, read once."""
        if name not in self.graphs:
            self.graphs[name] = carried(self.given.folder, name)
        return self.graphs[name]

    def base(self, data: str, base: str, rounds: int, seed: int) -> tuple[Federation, Any]:
        """A trained federation and what its membership threshold is fitted on."""
        key = (data, base, rounds, seed)
        if key not in self.last:
            graph, part, _ = self.graph(data)
            held = subgraphs(graph, part, seed=seed)
            fed = Federation.start(held, BASES[base], seed, InProcess(device=self.given.device))
            fed = fed.run(rounds)
            self.last = {key: (fed, mait.losses(fed) if self.given.verb != "ulira" else None)}
        return self.last[key]


def units(given: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """(data, base, rounds, seed, leaver), and for U-LiRA the number of a shadow."""
    for data in given.data:
        for base in given.bases:
            for rounds in given.rounds:
                for seed in given.seeds if given.verb != "ulira" else given.seeds[:1]:
                    for leaver in given.leavers:
                        if given.verb != "ulira":
                            yield data, base, rounds, seed, leaver
                            continue
                        for number in range(2 * given.pairs):
                            yield data, base, rounds, seed, leaver, number


def lines_of(crew: Crew, unit: tuple[Any, ...], done: set[Any]) -> Iterator[dict[str, Any]]:
    """The lines of one unit that are still missing."""
    data, base, rounds, seed, leaver = unit[:5]
    names = [n for n in crew.given.methods if (*unit, n) not in done]
    names = [n for n in names if n != "ULKD" or base == "fedavg"]  # it takes back plain sums
    if not names:
        return
    fed, fitted = crew.base(data, base, rounds, seed)
    about = {"data": data, "base": base, "trained": rounds, "seed": seed, "leaver": leaver}
    from_here = {"digest": crew.graph(data)[2], "device": crew.given.device}
    from_here |= {"versions": versions()}
    if crew.given.verb == "ulira":
        case = Case.of(fed, Withdraw(leaver))
        shadow, event = trained(case, unit[5], crew.given.pairs)
        about |= {"shadow": unit[5], "pairs": crew.given.pairs}
        for name in names:
            unlearner = UNLEARNERS[name]
            after = shadow if unlearner is None else unlearner.unlearn(shadow, event)
            told = [round(v, 4) for v in said(case, after)["output"].tolist()]
            yield {**about, "method": name, "said": told, **from_here}
        return
    cut = float(fitted.threshold(leaver))
    for name in names:
        yield {**about, "method": name, **one(name, fed, leaver, cut), **from_here}


def work(given: argparse.Namespace) -> None:
    """Every unit whose turn it is."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    crew, done = Crew(given), known(given.done)
    for unit in units(given):
        claim = given.out / ".claims" / "-".join([given.verb, *map(str, unit)])
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        end = "ulira.jsonl" if given.verb == "ulira" else "jsonl"
        path = given.out / f"{unit[0]}-{unit[1]}.{end}"
        try:
            for line in lines_of(crew, unit, done):
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        except Exception:  # a run that fails must not take the others along
            print(unit, traceback.format_exc(limit=-6), flush=True)


def known(files: list[Path]) -> set[Any]:
    """The runs that are there already."""
    rows = [json.loads(x) for f in files for x in f.read_text(encoding="utf-8").splitlines()]
    names = ("data", "base", "trained", "seed", "leaver", "shadow", "method")
    return {tuple(row[n] for n in names if n in row) for row in rows}


def spread(given: argparse.Namespace) -> float:
    """All units on so many processes; how long it took."""
    import torch.multiprocessing as mp

    (given.out / ".claims").mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    if given.processes == 1:
        work(given)
        return time.perf_counter() - began
    context = mp.get_context("spawn")
    crew = [context.Process(target=work, args=(given,)) for _ in range(given.processes)]
    for member in crew:
        member.start()
    for member in crew:
        member.join()
    return time.perf_counter() - began


def main() -> None:
    """Read the words and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["prepare", "run", "ulira", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--data", nargs="+", default=["cora"])
    parser.add_argument("--bases", nargs="+", choices=BASES, default=["fedavg"])
    parser.add_argument("--rounds", type=int, nargs="+", default=[30])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--leavers", type=int, nargs="+", default=LEAVERS)
    parser.add_argument("--methods", nargs="+", choices=UNLEARNERS, default=list(UNLEARNERS))
    parser.add_argument("--pairs", type=int, default=32, help="U-LiRA: half as many as shadows")
    parser.add_argument("--done", type=Path, nargs="+", default=[])
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    if given.commit:  # the copy that travelled knows no history
        os.environ["RESCIND_COMMIT"] = given.commit
    if given.verb == "prepare":
        prepare(given.folder, given.data)
        return
    if given.verb == "time":
        given.methods = ["FedGCV"]
    wall = spread(given)
    many = sum(1 for _ in units(given))
    print(json.dumps({"verb": given.verb, "units": many, "wall": round(wall, 1),
                      "methods": len(given.methods), "processes": given.processes,
                      "device": given.device}))  # fmt: skip


if __name__ == "__main__":
    main()
