"""Calibrate the margins of the audit: `python papers/scripts/audits/calibrate.py ml-100k ml-1m`.

For each dataset FedShare is trained, by default and with user vectors on devices (which start at
random, so that models differ more). 30 % of the lenders erase all they lent, and eight models are
trained without these loans. The standard deviation of a check times sqrt(n) is its noise; the
largest is written to margins.toml. Run once, then frozen: a margin that depends on the model under
audit would let a noisy model pass. `--check NAME` measures one check and writes its part alone.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path

import torch

import rescind as rs
from rescind.audits import FULL, Case
from rescind.audits.battery import drawn
from rescind.audits.hold_out import HoldOut
from rescind.audits.verdict import MARGINS
from rescind.forgetting.examine import retrains, seeds_of

RETRAINS, ROUNDS, SEED, LOTS = 8, 150, 20, 12
BOUNDS = {"Q1 tail": (0.005, 0.02), "people": (0.02, 0.10), "people trained": (0.02, 0.10)}
BOUNDS |= {"Q8 exposed": (0.02, 0.05), "Q8 quality": (0.0, 0.05), "Q4 lists": (0.02, 0.05)}
BOUNDS |= {"hold-out": (0.02, 0.06)}
BOUNDS |= {"pairs": (0.025, 0.05)}  # the variation by seed does not shrink with the request
AUC = (0.01, 0.05)
METHODS = {
    "FedShare": rs.methods.FedShare(),
    "own-vectors": rs.methods.FedShare(
        model=rs.models.LightGCN(user_spread=0.04), private_rate=0.01
    ),
}


def spreads(name: str, label: str, folder: Path, only: str) -> dict[str, dict[str, float]]:
    """Measure by check: n, the standard deviation over retrains, and that of the bootstrap.

    only: the name of one check; "" measures all
    """
    fed = rs.Federation.start(rs.load(name), METHODS[label], seed=SEED)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
    event = rs.Erase(rs.draw_regret(fed.world.shared, fed.clock))
    refs = retrains(fed, event, RETRAINS, SEED, 1, folder / name)
    found: dict[str, dict[str, float]] = {}
    lots = [drawn(HoldOut(bytes([n]) * 32)) for n in range(LOTS)]
    for check in [*(c for c in FULL if c.kind != "shown"), *lots]:
        if only not in ("", check.name):
            continue
        case = Case.of(fed, event, SEED, refs)  # each lot has its own cache
        measures = [m for r in refs if (m := check.measure(case, r))]
        points = torch.tensor([m.point for m in measures], dtype=torch.float64)
        draws = torch.stack([m.draws for m in measures])
        people = float((draws - draws.mean(0)).var(1).mean()) * RETRAINS / (RETRAINS - 1)
        sample = check.sample(case, refs[0])
        assert sample is not None
        row = {
            "n": sample.size,
            "mean": float(points.mean()),
            "seeds": float(points.std()),
            "people": people**0.5,
        }
        if _noise(row) > _noise(found.get(check.name, row | {"n": 0.0})):
            found[check.name] = row
        print(name, label, check.name, found[check.name], flush=True)
    return found


def _noise(row: dict[str, float]) -> float:
    return max(row["seeds"], row["people"]) * row["n"] ** 0.5


def section(check: str, all_found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the part of margins.toml on one check."""
    worst = max(_noise(f[check]) for f in all_found.values())
    least, most = BOUNDS.get(check, AUC)
    lines = [f'[check."{check}"]', f"noise = {worst:.3f}", f"least = {least}", f"most = {most}"]
    for name, found in all_found.items():
        row = ", ".join(f"{k} = {v:.5f}" for k, v in found[check].items())
        lines.append(f'measured."{name}" = {{ {row} }}')
    return "\n".join(lines) + "\n"


def main(names: list[str], only: str) -> None:
    """Calibrate on these datasets and write margins.toml, or one part of it."""
    folder = Path("runs/calibration")
    all_found = {
        f"{name} {label}": spreads(name, label, folder, only) for label in METHODS for name in names
    }
    if only:
        part = re.compile(rf'\[check."{only}"\]\n(?:[^\n]+\n)*')
        known = MARGINS.read_text(encoding="utf-8")
        text = part.sub(lambda _: section(only, all_found), known, count=1)
    else:
        head = [
            "# Written by papers/scripts/audits/calibrate.py, then frozen.",
            "# margin(n) = 5 noise / sqrt(n), from least to most; n: balanced pairs, or people.",
            f'date = "{datetime.now(UTC).date()}"',
            f'request = "{ROUNDS} rounds, seed {SEED}; 30 % of the sharers erase all they lent"',
            f"retrains = {seeds_of(SEED, RETRAINS)}\n",
        ]
        coins = '[check."Q2 canaries"]\nnoise = 0.289  # sqrt(1 / 12): fair coins\n'
        parts = [section(check, all_found) for check in next(iter(all_found.values()))]
        text = "\n".join(["\n".join(head), *parts, f"{coins}least = 0.03\nmost = 0.15\n"])
    MARGINS.write_text(text, encoding="utf-8")
    print(f"written: {MARGINS}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("names", nargs="*", default=["ml-100k", "ml-1m"])
    given.add_argument("--check", default="", help="measure this check alone")
    asked = given.parse_args()
    main(asked.names, asked.check)
