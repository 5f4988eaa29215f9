"""U-LiRA on clients that leave graphs: train shadows and attack them.

    python graphs.py prepare IN RECIPE
    python shadows.py make IN OUT RECIPE [--cell NAME...]      one shadow after another
    python shadows.py batch IN OUT RECIPE [--device cuda]      all shadows of a client at once
    python shadows.py check IN OUT RECIPE                      compare the batch with the package
    python shadows.py gather IN OUT RECIPE [--commit C]
    python shadows.py clients IN OUT RECIPE [--commit C]       shadows without the client

`make` and `batch` (rows that `shadow_batch.py` supports) write OUT/shadows*.jsonl, a line per row,
leaving client and shadow; finished lines are not computed again. `gather` runs the attack for each
row with all shadows and writes OUT/PAPER.TABLE.jsonl, to append to the .jsonl of the recipe.
`clients` attacks the client instead of its nodes: half of the shadows never had it. Use --commit in
a copy without git history.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from shadow_batch import Batch, fits, shadow_scores

from graphs import Shared, load_graph
from rescind import Federation, Withdraw
from rescind.audits.case import Case
from rescind.audits.finding import Finding
from rescind.audits.ulira import (
    Attack,
    Unlearn,
    asked_about,
    attack,
    halves,
    judge,
    record_scores,
    train_shadow,
)
from rescind.audits.virtual_client import (
    client_forgotten,
    client_score,
    client_trained,
    leak,
    presence,
)
from rescind.core.clock import Clock
from rescind.experiments import learning_run as experiment
from rescind.experiments.cell import NO_OP, Cell
from rescind.experiments.recipe import read
from rescind.methods.graphs._vgae import VGAE
from rescind.storage.provenance import versions

Key = tuple[str, int, int, int]
"""(digest of the cell, seed, leaving client, shadow)"""
Group = tuple[Any, ...]
"""(data, seed, leaving client, pairs, learner, rounds): rows that share their shadows."""


def wanted(given: argparse.Namespace) -> dict[Group, list[Cell]]:
    """Return the requested rows, grouped by what they share."""
    groups: dict[Group, list[Cell]] = {}
    for cell in read(given.recipe).cells:
        forget = cell.forget
        if forget is None or (forget.audits == "ulira") == (given.verb == "clients"):
            continue
        if given.cell and cell.name not in given.cell:
            continue
        for client in forget.clients:
            learner = str(forget.learner or cell.method)
            if given.verb in ("batch", "check"):  # keeping a log does not change the training
                learner = str(cell.method)
            key = (cell.data.name, cell.run.seed, client, forget.pairs, learner, cell.run.rounds)
            groups.setdefault(key, []).append(cell)
    return groups


def finished(out: Path) -> dict[Key, dict[str, Any]]:
    """Read the lines of all finished shadows."""
    found = {}
    for path in sorted(out.glob("shadows*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(text)
            found[row["digest"], row["seed"], row["client"], row["shadow"]] = row
    return found


def line(cell: Cell, client: int, number: int, before: list[float], after: list[float]) -> Any:
    """Return the scores of one shadow for all tested nodes, as a line."""
    return {
        "cell": cell.name, "digest": cell.digest, "seed": cell.run.seed, "client": client,
        "shadow": number,
        "before": [round(v, 5) for v in before], "after": [round(v, 5) for v in after],
    }  # fmt: skip


# -- one by one, with the package -----------------------------------------------------------------


def one_shadow(shared: Shared, cells: list[Cell], client: int, number: int) -> Iterator[Any]:
    """Train one shadow, and let it forget with each row's method."""
    first = cells[0].forget
    assert first is not None
    base, _ = shared.learned(cells[0], first.learner or cells[0].method)
    case = Case.of(base, Withdraw(client))
    fed, event = train_shadow(case, number, first.pairs)
    before = record_scores(case, fed)["output"].tolist()
    for cell in cells:
        assert cell.forget is not None
        method = cell.forget.unlearner or fed.method
        after = fed if cell.forget.name == NO_OP else method.unlearn(fed, event)
        yield line(cell, client, number, before, record_scores(case, after)["output"].tolist())


def make(given: argparse.Namespace) -> None:
    """Train every missing shadow with the package."""
    torch.set_num_threads(1)
    done, shared = finished(given.out), Shared(given)
    for (data, seed, client, pairs, *_), cells in wanted(given).items():
        start = time.process_time()
        for number in range(given.part, 2 * pairs, given.parts):
            missing = [c for c in cells if (c.digest, seed, client, number) not in done]
            if missing:
                write(given.out, one_shadow(shared, missing, client, number))
        print(f"{data}, client {client}: {2 * pairs} shadows, {len(cells)} rows, "
              f"{time.process_time() - start:.1f} CPU s", flush=True)  # fmt: skip


def write(out: Path, lines: Iterator[Any]) -> None:
    """Append lines to a file of this process."""
    with (out / f"shadows-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        for each in lines:
            file.write(json.dumps(each) + "\n")


# -- as one batch ---------------------------------------------------------------------------------


def batched(batch: Batch, cells: list[Cell]) -> Iterator[Any]:
    """Yield the lines of all shadows of one leaving client."""
    for cell, before, after in shadow_scores(batch, cells):
        for number, (one, two) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            yield line(cell, batch.client, number, one, two)


def batch(given: argparse.Namespace) -> None:
    """Train the missing shadows of each leaving client as one batch."""
    torch.backends.cuda.matmul.allow_tf32 = False
    done = finished(given.out)
    for (data, seed, client, pairs, *_), cells in wanted(given).items():
        start = time.time()
        last = 2 * pairs - 1
        missing = [c for c in cells if fits(c) and (c.digest, seed, client, last) not in done]
        if missing:
            write(
                given.out, batched(Batch(missing[0], given.folder, client, given.device), missing)
            )
        print(f"{data}, client {client}: {2 * pairs} shadows, {len(missing)} rows, "
              f"{time.time() - start:.1f} s", flush=True)  # fmt: skip


def check(given: argparse.Namespace) -> None:
    """Compare two short shadows per learner, as a batch and with the package."""
    groups = {key[4]: (key[2], cells) for key, cells in reversed(wanted(given).items())}
    for client, cells in groups.values():
        few = [shortened(c) for c in cells if fits(c)]
        mine = {
            (r["cell"], r["shadow"]): r
            for r in (batched(Batch(few[0], given.folder, client, "cpu"), few) if few else ())
        }
        for cell in few:
            for number in (0, 1):
                (row,) = one_shadow(Shared(given), [cell], client, number)
                other = mine[cell.name, number]
                apart = [
                    max(abs(a - b) for a, b in zip(row[w], other[w], strict=True))
                    for w in ("before", "after")
                ]
                print(cell.name, number, apart, max(row["after"]) - min(row["after"]))


def shortened(cell: Cell) -> Cell:
    """Return the row with one pair of shadows and three rounds."""
    assert cell.forget is not None
    method = cell.forget.unlearner
    if method is not None and hasattr(method, "forget_rounds"):
        method = replace(method, forget_rounds=3)  # type: ignore[call-arg]
    forget = replace(cell.forget, pairs=1, unlearner=method)
    return replace(cell, forget=forget, run=replace(cell.run, rounds=3, keep_every=None))


# -- the attack -----------------------------------------------------------------------------------


def gather(given: argparse.Namespace) -> None:
    """Attack every row with all shadows: the mean over leaving clients, and each of them."""
    done = finished(given.out)
    for cell in read(given.recipe).cells:
        assert cell.forget is not None
        numbers = range(2 * cell.forget.pairs)
        keys = [(cell.digest, cell.run.seed, c, n) for c in cell.forget.clients for n in numbers]
        if not all(key in done for key in keys):
            print(f"{cell.name}: {sum(key in done for key in keys)} of {len(keys)} shadows")
            continue
        graph = load_graph(given.folder, cell.data.name)
        start, found = experiment.start(cell, graph), []
        for client in cell.forget.clients:
            rows = [done[cell.digest, cell.run.seed, client, n] for n in numbers]
            found.append(attacked(start, client, rows, cell.forget.pairs))
        result(given, cell, graph.digest, facts_of(found))


def result(given: argparse.Namespace, cell: Cell, data: str, forget: dict[str, Any]) -> None:
    """Append a result line for the .jsonl of the recipe."""
    each = {
        "cell": cell.name, "seed": cell.run.seed, "test": {}, "valid": {}, "forget": forget,
        "digest": cell.digest, "settings": cell.settings, "data": data, "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    out = given.out / f"{given.recipe.parent.name}.{given.recipe.stem}.jsonl"
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(each) + "\n")
    print(cell.name, {name: v for name, v in forget.items() if name != "each"}, flush=True)


def attacked(
    start: Federation, client: int, rows: list[dict[str, Any]], pairs: int
) -> tuple[Attack, Finding]:
    """Attack one leaving client. Return the attack and the finding with its controls."""
    case = Case.of(start, Withdraw(client))
    inside = halves(len(asked_about(case)), pairs, case.clock)
    phis = torch.tensor([row["after"] for row in rows]).double()
    person = torch.zeros(inside.shape[1], dtype=torch.int64)
    scores = [{f"output/{w}": torch.tensor(r[w]) for w in ("before", "after")} for r in rows]
    return attack(phis, inside, person, case.clock), judge(case, scores, pairs)[0]


def facts_of(found: list[tuple[Attack, Finding]]) -> dict[str, Any]:
    """Return means over leaving clients, and the AUC of each with its interval."""
    aucs = [a.auc[0] for a, _ in found]
    words = [f.verdict for _, f in found]
    return {
        "ulira": {
            "AUC": statistics.fmean(aucs),
            "TPR at 5 %": statistics.fmean(a.tpr_5[0] for a, _ in found),
            "before": statistics.fmean(f.controls["no-op"] for _, f in found),
            "says": ", ".join(f"{w} {words.count(w)}" for w in dict.fromkeys(words)),
            "worst": max(abs(v - 0.5) for v in aucs) + 0.5,
        },
        "each": {"AUC": [round(v, 5) for v in aucs],
                 "low": [round(a.auc[1], 5) for a, _ in found],
                 "high": [round(a.auc[2], 5) for a, _ in found]},
    }  # fmt: skip


# -- clients instead of nodes ---------------------------------------------------------------------


def clients(given: argparse.Namespace) -> None:
    """Attack every row: shadows that forgot the client against shadows that never had it."""
    torch.set_num_threads(1)
    shared = Shared(given)
    for (data, _, client, pairs, *_), cells in wanted(given).items():
        base, _ = shared.learned(cells[0], cells[0].method)
        case = Case.of(base, Withdraw(client))
        scores: dict[str, list[float]] = {cell.name: [] for cell in cells}
        for number in range(2 * pairs):
            fed = client_trained(case, number)
            for cell in cells:
                after = client_forgotten(case, number, fed, *answer(cell))
                scores[cell.name].append(client_score(case, after))
        for cell in cells:
            found = presence(torch.tensor(scores[cell.name]), case)
            measures = {"AUC": found.auc[0], "low": found.auc[1], "high": found.auc[2]}
            forget: dict[str, Any] = {"presence": {**measures, "TPR at 5 %": found.tpr_5[0]}}
            if getattr(cell.forget and cell.forget.unlearner, "virtual", False):
                forget["stand-in"] = handed_over(base, client)
            result(given, cell, load_graph(given.folder, data).digest, forget)


def answer(cell: Cell) -> tuple[Unlearn | None, int]:
    """Return the unlearner of a row, and its number of repair rounds."""
    assert cell.forget is not None
    method = cell.forget.unlearner
    return (None, 0) if method is None else (method.unlearn, getattr(method, "repair_rounds", 0))


def handed_over(base: Federation, client: int) -> dict[str, float]:
    """Measure what the published virtual client reveals about edges and features."""
    held = base.now.vault.holdings
    assert held.graph is not None
    mine = held.graph.keep(held.graph.owner == client)
    virtual = VGAE().stand_in(mine, Clock(base.clock.seed))
    found = leak(mine, virtual.likely, virtual.features)
    return {"edge AUC": found.edge_auc, "found again": found.found_again}


def main() -> None:
    """Run the command line."""
    verbs = {
        "make": make, "batch": batch, "check": check, "gather": gather, "clients": clients
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=list(verbs))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--cell", nargs="+", default=[], help="only these rows")
    parser.add_argument("--device", default="cuda", help="device of a batch")
    parser.add_argument("--part", type=int, default=0, help="make: shadows PART, PART + PARTS, ...")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    if given.commit:
        os.environ["RESCIND_COMMIT"] = given.commit
    given.out.mkdir(parents=True, exist_ok=True)
    verbs[given.verb](given)


if __name__ == "__main__":
    main()
