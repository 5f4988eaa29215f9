"""Train SASRec (Kang and McAuley, ICDM 2018) to compare with: needs torch and numpy only.

    python sasrec.py prepare IN RECIPE...      on the machine with rescind and the data
    python sasrec.py run IN OUT [--processes 6] [--device cuda] [--seconds 450] [--seeds 3]

`prepare` packs the sequences of the recipes' datasets, one file IN/LABEL.npz each. `run` trains on
them under the same protocol as the recipes: the last item of a user is test, the one before valid,
all items are ranked except those of the history. It tries every setting of `GRID` with seed 0,
keeps the best on validation for the other seeds, and writes a line per run to OUT/lines.jsonl
(committed: papers/sasrec.jsonl). A dataset whose label ends with `SAME` takes the setting of the
one it is another order of.

The model is the paper's, with cross-entropy over all items instead of one negative ("SASRec+",
Klenitskiy and Vasilev, RecSys 2023), which is much better. Training stops when validation has not
improved for `PATIENCE` evaluations, or when time is over (`stopped` says which).
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

K = 10
EVERY, PATIENCE = 4, 10
SAME = ", hashed order"
LONG, SHORT = 200, 50  # last items that are read: films; everything else (as in the literature)


@dataclass(frozen=True)
class Setting:
    """What is chosen on validation, and what is not."""

    dim: int = 128
    dropout: float = 0.2
    blocks: int = 2
    heads: int = 2
    batch: int = 128
    rate: float = 1e-3
    length: int = LONG


GRID = (
    Setting(dim=64, dropout=0.2),
    Setting(dim=128, dropout=0.2),
    Setting(dim=128, dropout=0.5),
    Setting(dim=256, dropout=0.5),
)


@dataclass(frozen=True)
class Sequences:
    """Everybody's items in order, from 0, all users in one array."""

    label: str
    item: np.ndarray
    first: np.ndarray
    """[users + 1] start of each user's items."""
    items: int
    digest: str

    @classmethod
    def read(cls, path: Path) -> Sequences:
        with np.load(path, allow_pickle=False) as file:
            label, digest = str(file["label"]), str(file["digest"])
            return cls(label, file["item"], file["first"], int(file["items"]), digest)

    def held(self, back: int) -> list[tuple[np.ndarray, int]]:
        """Return (history, answer) of users with 3 items or more. back: 1 test, 2 valid"""
        out = []
        for begin, end in zip(self.first[:-1], self.first[1:], strict=True):
            if end - begin >= 3:
                out.append((self.item[begin : end - back], int(self.item[end - back])))
        return out

    def train(self) -> list[np.ndarray]:
        """Return the part of each sequence that is learnt."""
        pairs = zip(self.first[:-1], self.first[1:], strict=True)
        parts = [self.item[b : e - 2 if e - b >= 3 else e] for b, e in pairs]
        return [part for part in parts if len(part) >= 2]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.heads, self.dropout = s.heads, s.dropout
        self.before, self.between = nn.LayerNorm(s.dim), nn.LayerNorm(s.dim)
        self.query, self.rest = nn.Linear(s.dim, s.dim), nn.Linear(s.dim, 2 * s.dim)
        self.out, self.drop = nn.Linear(s.dim, s.dim), nn.Dropout(s.dropout)
        self.wide, self.narrow = nn.Linear(s.dim, s.dim), nn.Linear(s.dim, s.dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, L, d]"""
        size, length, dim = x.shape
        normed = self.before(x)
        parts = (self.query(normed), *self.rest(normed).chunk(2, dim=-1))
        q, k, v = (p.view(size, length, self.heads, -1).transpose(1, 2) for p in parts)
        drop = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(size, length, dim)))
        inner = self.drop(functional.relu(self.wide(self.between(x))))
        return x + self.drop(self.narrow(inner))


class SASRec(nn.Module):
    """Self-attention over the items; the score of the next is its embedding times the state."""

    def __init__(self, items: int, s: Setting) -> None:
        super().__init__()
        self.item = nn.Embedding(items + 1, s.dim, padding_idx=items)
        self.place = nn.Embedding(s.length, s.dim)
        self.drop = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.blocks))
        self.norm = nn.LayerNorm(s.dim)
        nn.init.normal_(self.item.weight, std=s.dim**-0.5)
        nn.init.normal_(self.place.weight, std=s.dim**-0.5)
        with torch.no_grad():
            self.item.weight[items] = 0

    def forward(self, item: Tensor, count: Tensor) -> Tensor:
        """Return the states. item: [B, L], filled up at the end; count: [B]    -> [B, L, d]

        What comes after the last item cannot change the states before it (the attention is causal).
        Places are counted from the end, as if sequences were filled up in front.
        """
        length = item.shape[1]
        at = torch.arange(length, device=item.device) + (len(self.place.weight) - count)[:, None]
        at = at.clamp(max=len(self.place.weight) - 1)
        x = self.drop(self.item(item) * self.item.embedding_dim**0.5 + self.place(at))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def scores(self, states: Tensor) -> Tensor:
        return states @ self.item.weight[:-1].T


def packed(parts: list[np.ndarray], length: int, fill: int) -> tuple[Tensor, Tensor]:
    """Return the last `length` items of each part, filled up at the end. [n, length], [n]"""
    out = np.full((len(parts), length), fill, dtype=np.int64)
    for row, part in zip(out, parts, strict=True):
        row[: min(len(part), length)] = part[-length:]
    return torch.from_numpy(out), torch.tensor([min(len(p), length) for p in parts])


@dataclass(frozen=True)
class Question:
    """Histories and what comes next, ready to be ranked."""

    item: Tensor
    count: Tensor
    known: list[np.ndarray]
    answer: Tensor

    @classmethod
    def of(cls, held: list[tuple[np.ndarray, int]], s: Setting, items: int) -> Question:
        item, count = packed([history for history, _ in held], s.length, items)
        return cls(item, count, [h for h, _ in held], torch.tensor([a for _, a in held]))

    @torch.no_grad()
    def ranked(self, model: SASRec, device: str, together: int = 512) -> dict[str, float]:
        """Return HR@10 and NDCG@10 over all items but the history; ties: lower item first."""
        model.eval()
        hit, gain, users = 0, 0.0, len(self.answer)
        for begin in range(0, users, together):
            part = slice(begin, begin + together)
            count, answer = self.count[part].to(device), self.answer[part].to(device)
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                states = model(self.item[part].to(device), count)
            last = states[torch.arange(len(count), device=device), count - 1].float()
            scores = model.scores(last)
            known = self.known[part]
            row = torch.from_numpy(np.repeat(np.arange(len(known)), [len(k) for k in known]))
            scores[row.to(device), torch.from_numpy(np.concatenate(known)).to(device)] = -torch.inf
            mine = scores.gather(1, answer[:, None])
            lower = torch.arange(scores.shape[1], device=device) < answer[:, None]
            rank = ((scores > mine) | ((scores == mine) & lower)).sum(1)
            found = rank < K
            hit += int(found.sum())
            gain += float((1 / torch.log2(rank[found].double() + 2)).sum())
        return {f"HR@{K}": hit / users, f"NDCG@{K}": gain / users}


def train(data: Sequences, s: Setting, seed: int, seconds: float, device: str) -> dict[str, Any]:
    """Train once, stop early on validation, and return the line of the run."""
    begun = time.perf_counter()
    torch.manual_seed(seed)  # noqa: TID251 - dropout draws from torch's own generator
    longest = max(int(np.diff(data.first).max()) - 2, 2)
    s = replace(s, length=min(s.length, longest))
    model = SASRec(data.items, s).to(device)
    steps = torch.optim.Adam(model.parameters(), lr=s.rate, betas=(0.9, 0.98))
    item, count = packed(data.train(), s.length + 1, data.items)
    item, count = item.to(device), (count - 1).to(device)
    valid, test = (Question.of(data.held(back), s, data.items) for back in (2, 1))
    best: dict[str, float] = {f"NDCG@{K}": -1.0}
    kept, since, epoch, stopped, at = copy.deepcopy(model.state_dict()), 0, 0, "patience", 0
    while since < PATIENCE:
        model.train()
        for rows in torch.randperm(len(item), device=device).split(s.batch):
            steps.zero_grad(set_to_none=True)
            wide = int(count[rows].max())
            given, wanted = item[rows, :wide], item[rows, 1 : wide + 1]
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                states = model(given, count[rows])
                there = wanted < data.items
                scores = model.scores(states[there])
            functional.cross_entropy(scores.float(), wanted[there]).backward()
            steps.step()
        epoch += 1
        late = time.perf_counter() - begun > seconds
        if epoch % EVERY and not late:
            continue
        now = valid.ranked(model, device)
        since = 0 if now[f"NDCG@{K}"] > best[f"NDCG@{K}"] else since + 1
        if not since:
            best, kept, at = now, copy.deepcopy(model.state_dict()), epoch
        if late:
            stopped = "time"
            break
    model.load_state_dict(kept)
    return {
        "data": data.label,
        "digest": data.digest,
        "seed": seed,
        "setting": asdict(s),
        "valid": {k: round(v, 6) for k, v in best.items()},
        "test": {k: round(v, 6) for k, v in test.ranked(model, device).items()},
        "epoch": at,
        "epochs": epoch,
        "stopped": stopped,
        "seconds": round(time.perf_counter() - begun, 1),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class Job:
    path: Path
    setting: Setting
    seed: int
    device: str
    weight: float
    seconds: float = 0.0

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1 if self.device == "cpu" else 2)
        return train(Sequences.read(self.path), self.setting, self.seed, self.seconds, self.device)


def run_all(jobs: list[Job], seconds: float, processes: int, out: Path) -> list[dict[str, Any]]:
    """Run jobs side by side, each with its share of the time; write lines as they come."""
    jobs = sorted(jobs, key=lambda job: -job.weight)
    each = seconds * processes / max(sum(job.weight for job in jobs), 1e-9)
    # A job that starts late still ends in time: at most two rounds of jobs fit.
    most = seconds if len(jobs) <= processes else 0.55 * seconds
    jobs = [replace(job, seconds=min(each * job.weight, most)) for job in jobs]
    lines = []
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(Job.run, jobs):
            lines.append(line)
            with (out / "lines.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    return lines


def run(
    folder: Path, out: Path, processes: int, device: str, seconds: float, seeds: int, quick: bool
) -> None:
    """Try the settings with seed 0, then run the best ones with the other seeds."""
    begun = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    every = {path: Sequences.read(path) for path in sorted(folder.glob("*.npz"))}
    grid = (Setting(dim=16, batch=64), Setting(dim=16, dropout=0.5, batch=64)) if quick else GRID
    jobs, second = list[Job](), list[Job]()
    chosen = {path: data for path, data in every.items() if not data.label.endswith(SAME)}
    for path, data in chosen.items():
        weight = (len(data.item) * data.items) ** 0.5
        length = LONG if data.label.startswith("ml-") else SHORT
        tried = [replace(s, length=length) for s in grid]
        jobs += [Job(path, s, 0, device, weight) for s in tried]
    lines = run_all(jobs, 0.55 * seconds, processes, out)
    for path, data in every.items():
        label = data.label.removesuffix(SAME)
        mine = [line for line in lines if line["data"] == label]
        if not mine:
            continue
        best = Setting(**max(mine, key=lambda line: line["valid"][f"NDCG@{K}"])["setting"])
        weight = (len(data.item) * data.items) ** 0.5
        first = 0 if data.label.endswith(SAME) else 1
        second += [Job(path, best, seed, device, weight) for seed in range(first, seeds)]
    run_all(second, seconds - (time.perf_counter() - begun), processes, out)


def prepare(folder: Path, recipes: list[Path]) -> None:
    """Pack the sequences of every dataset of the recipes that predicts the next item."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    from rescind.experiments.prepared_data import prepare as prepared
    from rescind.experiments.recipe import read

    folder.mkdir(parents=True, exist_ok=True)
    cells = {c.data: c.labels.get("data", c.data.name) for r in recipes for c in read(r).cells}
    for settings, label in cells.items():
        rows = prepared(settings)  # by user and place
        first = np.searchsorted(rows.user, np.arange(len(rows.users) + 1))
        facts = {"label": np.array(label), "digest": np.array(rows.digest)}
        sizes = {"items": np.array(len(rows.items)), "first": first}
        path = folder / f"{label.replace(' ', '-').replace(',', '')}.npz"
        np.savez_compressed(path, item=rows.item.astype(np.int32), **sizes, **facts)
        print(f"{path}: {len(first) - 1} users, {len(rows.items)} items, {len(rows)} rows")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = asked.add_subparsers(dest="verb", required=True)
    packing, running = verbs.add_parser("prepare"), verbs.add_parser("run")
    packing.add_argument("folder", type=Path)
    packing.add_argument("recipes", type=Path, nargs="+")
    running.add_argument("folder", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--processes", type=int, default=6)
    running.add_argument("--device", default="cuda")
    running.add_argument("--seconds", type=float, default=450)
    running.add_argument("--seeds", type=int, default=3)
    running.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    given = vars(asked.parse_args())
    {"prepare": prepare, "run": run}[given.pop("verb")](**given)


if __name__ == "__main__":
    main()
