"""Summarise the runs of SASRec: `python papers/scripts/findings/sasrec.py` (a second).

Reads papers/sasrec.jsonl, which papers/remote/sasrec.py wrote on a GPU. Per dataset: the setting
with the best NDCG@10 on validation of seed 0, then mean and deviation of the test over its seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from writing import write

LINES = Path(__file__).resolve().parents[2] / "sasrec.jsonl"


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digests of the data and a row per dataset."""
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    digests, rows = {}, []
    for data in dict.fromkeys(line["data"] for line in lines):
        mine = [line for line in lines if line["data"] == data]
        first = [line for line in mine if line["seed"] == 0]
        best = max(first, key=lambda line: line["valid"]["NDCG@10"])["setting"]
        runs = [line for line in mine if line["setting"] == best]
        digests[data] = runs[0]["digest"]
        row: dict[str, Any] = {"data": data, "seeds": len(runs)}
        for name in ("HR@10", "NDCG@10"):
            values = [line["test"][name] for line in runs]
            row[name] = f"{mean(values):.4f} ± {stdev(values):.4f}"
        row["valid NDCG@10"] = round(mean(line["valid"]["NDCG@10"] for line in runs), 4)
        row["d, dropout"] = f"{best['dim']}, {best['dropout']}"
        row["GPU seconds each"] = round(mean(line["seconds"] for line in runs))
        row["ended by time"] = sum(line["stopped"] == "time" for line in runs)
        rows.append(row)
    return digests, rows


if __name__ == "__main__":
    write("sasrec", *found())
