"""Time rounds on a GPU: ML-1M with all clients, and a synthetic dataset of a million clients.

    python bench/gpu.py prepare gpu-input/ml-1m.npz     where ML-1M and rescind are installed
    python bench/gpu.py run gpu-input/ml-1m.npz         on the GPU machine: torch and numpy only
    python bench/gpu.py record printed.json             back here: recipes/findings/gpu.json

`run` prints one JSON object: milliseconds per round (median, after a warm-up, synchronised), the
quality after 20 rounds on the GPU and on the CPU of the same machine, how far the kernel's sum is
from one in float64, and the hardware.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from rescind.core.executor import InProcess
from rescind.core.fast import ego_gpu
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.records import Records
from rescind.methods.additive._pairs import add_pairs
from rescind.methods.additive._solving import half
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg

ALL_CLIENTS = replace(FedAvg(), clients_per_round=None, rate=30.0, private_rate=0.01)
ROUNDS = 20


def prepare(path: Path) -> None:
    """Write ML-1M, split 8:1:1 with seed 0, as plain arrays."""
    from rescind.data import load
    from rescind.data.split import random_split

    data = load("ml-1m")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        user=data.user.astype(np.int32),
        item=data.item.astype(np.int32),
        split=random_split(data, 0),
        sizes=[len(data.users), len(data.items)],
    )
    print(f"written: {path} ({path.stat().st_size} bytes)")


def read(path: Path) -> Holdings:
    """Read the holdings that `prepare` wrote."""
    with np.load(path, allow_pickle=False) as file:
        user, item = (torch.from_numpy(file[n].astype(np.int64)) for n in ("user", "item"))
        split, sizes = torch.from_numpy(file["split"]), file["sizes"]
    return Holdings.of(Records.of(user, item), split, int(sizes[0]), int(sizes[1]))


def synthetic(users: int, interactions: int, items: int = 100_000) -> Holdings:
    """Generate a synthetic dataset; all records are for training."""
    from rescind.data import load

    data = load("synthetic", users=users, items=items, interactions=interactions)
    records = Records.of(torch.from_numpy(data.user.copy()), torch.from_numpy(data.item.copy()))
    split = torch.zeros(len(records), dtype=torch.int8)
    return Holdings.of(records, split, len(data.users), len(data.items))


def round_ms(fed: Federation, repeats: int) -> float:
    """Measure the median wall time of a whole round, devices included."""
    fed = fed.run(3)
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        fed = fed.run(1)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1000 * median(times)


def sum_error(fed: Federation) -> float:
    """Return how far the kernel's sum of a round is from that of tensor operations in float64."""
    vault, method = fed.now.vault, fed.method
    cohort = InProcess("cuda").cohort(method, vault, torch.arange(vault.holdings.clients).cuda())
    table, first = fed.now.state.public["item"], vault.private["user"]
    given = cohort, fed.clock.at(1), ALL_CLIENTS.negatives
    by, scale = cohort.weight, 1 / cohort.train.count.clamp(min=1)
    found, _ = ego_gpu.step_for(table)(table, first, *given, by, scale.float(), 0.2)
    exact, _ = ego_gpu.step(
        table.double(), first.double(), *given, by.double(), scale.double(), 0.2
    )
    return float((found - exact).norm() / exact.norm())


def gram_seconds(users: int, items: int) -> dict[str, float]:
    """Time the one round of `Gram` on a large catalogue: all of it, and its counts alone."""
    holdings = synthetic(users, 33 * users, items)
    begun = Federation.start(holdings, Gram(max_items=items), 0, InProcess("cuda"))
    lot = begun.executor.cohort(begun.method, begun.now.vault, begun.world.members.nonzero()[:, 0])
    weight = torch.ones_like(lot.own.count)
    times: dict[str, list[float]] = {"gram round s": [], "gram counts s": []}
    for _ in range(3):
        total = torch.zeros(half(items), dtype=torch.int32, device="cuda")
        for name, work in (
            ("gram counts s", lambda t=total: add_pairs(t, lot.own, weight)),
            ("gram round s", lambda: begun.run(1)),
        ):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            done = work()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
            del done
    return {name: median(each) for name, each in times.items()}


def record(path: Path) -> None:
    """Write what `run` printed where the documentation reads it, with the bound of each line."""
    found = json.loads(path.read_text(encoding="utf-8"))
    people = f"{found['synthetic clients']:,} clients, {found['synthetic interactions']:,} records"
    rows = [
        ("ego-LightGCN, ML-1M, all 6,040 clients", f"{found['ml-1m round ms']:.2f} ms", "2 ms"),
        (f"ego-LightGCN, {people}", f"{found['synthetic round ms']:.1f} ms", "105 ms"),
        ("Gram, 30,000 clients, 41,000 items", f"{found['gram round s']:.2f} s", "4.6 s"),
        ("its counts alone", f"{1000 * found['gram counts s']:.1f} ms", "13 ms"),
    ]
    names = ("round", "measured", "at most")
    facts = {"rows": [dict(zip(names, row, strict=True)) for row in rows], "printed": found}
    out = Path(__file__).parents[1] / "recipes" / "findings" / "gpu.json"
    out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"written: {out.name}")


def measure(path: Path, users: int, interactions: int) -> dict[str, Any]:
    """Measure everything."""
    holdings = read(path)
    start: Callable[[str], Federation] = lambda device: Federation.start(  # noqa: E731
        holdings, ALL_CLIENTS, 0, InProcess(device)
    )
    quality = {d: start(d).run(ROUNDS).evaluate() for d in ("cuda", "cpu")}
    shown = ("HR@20", "NDCG@20", "Recall@20")
    out: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "ml-1m clients": holdings.clients,
        "ml-1m round ms": round_ms(start("cuda"), 30),
        "ml-1m sum error": sum_error(start("cuda").run(5)),
        "quality": {d: {k: q[k] for k in shown} for d, q in quality.items()},
        "largest difference": max(abs(quality["cuda"][k] - quality["cpu"][k]) for k in shown),
    }
    begin = time.perf_counter()
    large = synthetic(users, interactions)
    out["synthetic made in s"] = time.perf_counter() - begin
    out["synthetic interactions"] = len(large.records)
    torch.cuda.reset_peak_memory_stats()
    fed = Federation.start(large, ALL_CLIENTS, 0, InProcess("cuda"))
    out["synthetic clients"] = large.clients
    out["synthetic round ms"] = round_ms(fed, 5)
    out |= gram_seconds(30_000, 41_000)
    out["peak GPU memory GB"] = torch.cuda.max_memory_allocated() / 1e9
    return out


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prepare", path]:
            prepare(Path(path))
        case ["run", path, *sizes]:
            users, interactions = (int(s) for s in sizes) if sizes else (1_000_000, 50_000_000)
            print(json.dumps(measure(Path(path), users, interactions), indent=2))
        case ["record", path]:
            record(Path(path))
        case _:
            sys.exit(__doc__)
