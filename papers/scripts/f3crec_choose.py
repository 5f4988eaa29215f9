"""Write the settings of Table 2 from finished tuning trials.

    python papers/scripts/f3crec_choose.py

For each dataset, backbone and learner: the trial of tune-BACKBONE with the highest NDCG@20 on
validation, mean of D1 to D3, one seed. Rewrites the method axis of table2-BACKBONE; a test checks
that both agree.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2] / "recipes" / "f3crec"
MODELS = {"fedmf": "MF", "fedncf": "NCF", "pfedrec": "PFedRec"}
ONCE = {"run": {"rounds": 1, "evaluate_every": 1}}
CONTROLS = [
    {"label": "Popularity", "name": "Popularity", **ONCE},
    {"label": "Gram", "name": "Gram", "ridge": 20.0, **ONCE},
]
"""Controls without a backbone, the same in every table."""


def trials(backbone: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each trial by label."""
    table = tomllib.loads((HERE / f"tune-{backbone}.toml").read_text(encoding="utf-8"))
    return {entry.pop("label"): entry for entry in table["axes"]["method"]}


def chosen(backbone: str) -> list[dict[str, Any]]:
    """Return the method axis of Table 2: the best trial per learner and dataset."""
    settings, best = trials(backbone), {}
    for line in (HERE / f"tune-{backbone}.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        data, trial, _ = found["cell"].split("/")
        learner, value = trial.split()[0], found["valid"]["NDCG@20"]
        best[learner, data] = max(best.get((learner, data), (-1.0, "")), (value, trial))
    learners = dict.fromkeys(label.split()[0] for label in settings)
    out = []
    for learner in learners:
        for (mine, data), (_, trial) in best.items():
            if mine == learner:
                model = {} if backbone == "fedmf" else {"model": {"name": MODELS[backbone]}}
                where = {"where": {"data": data}}
                out.append({"label": learner, **settings[trial], **model, **where})
    return [*out, *CONTROLS]


def written(value: Any) -> str:
    """Format a value as TOML, tables on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {written(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def main() -> None:
    """Write the axes into the recipes."""
    for backbone in MODELS:
        path = HERE / f"table2-{backbone}.toml"
        before, _, rest = path.read_text(encoding="utf-8").partition("method = [\n")
        _, _, after = rest.partition("\n]\n")
        axis = ",\n".join(f"  {written(entry)}" for entry in chosen(backbone))
        path.write_text(f"{before}method = [\n{axis},\n]\n{after}", encoding="utf-8")
        print(f"written: {path.name}")


if __name__ == "__main__":
    main()
