"""Write the settings of Table 2 from finished tuning trials.

    python papers/scripts/f3crec_choose.py

For each dataset, backbone and learner: NDCG@20 on validation, mean of D1 to D3, of every trial of
tune-BACKBONE over its seeds. Of the trials within one standard error of the best mean, the first in
the recipe is taken, where trials are listed from the authors' settings outwards: one lucky seed
must not decide. RLP2 gets the settings of FT: it trains in the same way. Rewrites the method axis
of table2-BACKBONE, and for FedNCF that of deep-ncf; a test checks that they agree.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parents[2] / "recipes" / "f3crec"
MODELS = {"fedmf": "MF", "fedncf": "NCF", "pfedrec": "PFedRec"}
LEARNERS = ["FT", "Reg", "KD", "RLP2", "SPP", "F3CRec"]
SEEDS = 3
TRUST = 0.3  # of ReLoop2, as in its paper
ONCE = {"run": {"rounds": 1, "evaluate_every": 1}}
CONTROLS = [
    {"label": "Popularity", "name": "Popularity", **ONCE},
    {"label": "Gram", "name": "Gram", "ridge": 20.0, **ONCE},
]
"""Controls without a backbone, the same in every table."""


def trials(backbone: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the settings of each trial by dataset and label, in the order of the recipe."""
    axes = tomllib.loads((HERE / f"tune-{backbone}.toml").read_text(encoding="utf-8"))["axes"]
    found = {}
    for entry in axes["method"]:
        label, where = entry.pop("label"), entry.pop("where", {})
        for data in axes["data"]:
            if where.get("data", data["label"]) == data["label"]:
                found[data["label"], label] = entry
    return found


def first_near_best(values: Mapping[str, Sequence[float]]) -> str:
    """Return the first trial whose mean is within one standard error of the best mean.

    values: of every trial over the same seeds. The error is that of the best trial.
    """
    best = max(values, key=lambda trial: mean(values[trial]))
    error = stdev(values[best]) / math.sqrt(len(values[best]))
    return next(trial for trial in values if mean(values[trial]) >= mean(values[best]) - error)


def chosen(backbone: str) -> list[dict[str, Any]]:
    """Return the method axis of Table 2: the chosen trial of each learner and dataset."""
    settings = trials(backbone)
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for data, trial in settings:
        values.setdefault((trial.split()[0], data), {})[trial] = []
    for line in (HERE / f"tune-{backbone}.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        data, trial, _ = found["cell"].split("/")
        values[trial.split()[0], data][trial].append(found["valid"]["NDCG@20"])
    out = []
    for (learner, data), tried in values.items():
        unfinished = [trial for trial, found in tried.items() if len(found) != SEEDS]
        if unfinished:
            raise SystemExit(f"tune-{backbone}, {data}: {unfinished} need {SEEDS} seeds each.")
        model = {} if backbone == "fedmf" else {"model": {"name": MODELS[backbone]}}
        setting = settings[data, first_near_best(tried)]
        out.append({"label": learner, **setting, **model, "where": {"data": data}})
        if learner == "FT":  # ReLoop2 trains in the same way, and has a memory beside it
            out.append({**out[-1], "label": "RLP2", "name": "ReLoop2", "trust": TRUST})
    return sorted(out, key=lambda entry: LEARNERS.index(entry["label"])) + CONTROLS


def hidden_layers() -> list[dict[str, Any]]:
    """Return the method axis of deep-ncf: FT and F3CRec as chosen for the linear FedNCF."""
    drop = ("model", "where")
    return [
        {key: value for key, value in entry.items() if key not in drop}
        for entry in chosen("fedncf")
        if entry["label"] in ("FT", "F3CRec") and entry["where"]["data"] == "ml-100k"
    ]


def written(value: Any) -> str:
    """Format a value as TOML, tables on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {written(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def write(name: str, entries: list[dict[str, Any]]) -> None:
    """Replace the method axis of a recipe."""
    path = HERE / f"{name}.toml"
    before, _, rest = path.read_text(encoding="utf-8").partition("method = [\n")
    _, _, after = rest.partition("\n]\n")
    axis = ",\n".join(f"  {written(entry)}" for entry in entries)
    path.write_text(f"{before}method = [\n{axis},\n]\n{after}", encoding="utf-8")
    print(f"written: {path.name}")


def main() -> None:
    """Write the axes into the recipes."""
    for backbone in MODELS:
        write(f"table2-{backbone}", chosen(backbone))
    write("deep-ncf", hidden_layers())


if __name__ == "__main__":
    main()
