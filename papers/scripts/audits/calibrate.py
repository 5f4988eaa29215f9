"""Calibrate the margins of the audit: `python papers/scripts/audits/calibrate.py ml-100k ml-1m`.

For each dataset FedShare is trained, by default and with user vectors on devices (which start at
random, so that models differ more). 30 % of the lenders erase all they lent, and eight models are
trained without these loans. The standard deviation of a check times sqrt(n) is its noise; the
largest is written to margins.toml. Run once, then frozen: a margin that depends on the model under
audit would let a noisy model pass.
"""

from __future__ import annotations

import sys
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


def spreads(name: str, label: str, folder: Path) -> dict[str, dict[str, float]]:
    """Measure by check: n, the standard deviation over retrains, and that of the bootstrap."""
    fed = rs.Federation.start(rs.load(name), METHODS[label], seed=SEED)
    groups = rs.draw_groups(fed.world.sizes.clients, fed.clock)
    fed = fed.apply(rs.draw_share(fed.now.vault.holdings, groups, fed.clock)).run(ROUNDS)
    event = rs.Erase(rs.draw_regret(fed.world.shared, fed.clock))
    refs = retrains(fed, event, RETRAINS, SEED, 1, folder / name)
    found: dict[str, dict[str, float]] = {}
    lots = [drawn(HoldOut(bytes([n]) * 32)) for n in range(LOTS)]
    for check in [*(c for c in FULL if c.kind != "shown"), *lots]:
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


def main(names: list[str]) -> None:
    """Calibrate on these datasets and write margins.toml."""
    folder = Path("runs/calibration")
    all_found = {
        f"{name} {label}": spreads(name, label, folder) for label in METHODS for name in names
    }
    lines = [
        "# Written by papers/scripts/audits/calibrate.py, then frozen.",
        "# margin(n) = 5 noise / sqrt(n), between least and most; n: balanced pairs, or people.",
        f'date = "{datetime.now(UTC).date()}"',
        f'request = "{ROUNDS} rounds, seed {SEED}; 30 % of the sharers erase all they lent"',
        f"retrains = {seeds_of(SEED, RETRAINS)}",
    ]
    for check in next(iter(all_found.values())):
        worst = max(_noise(f[check]) for f in all_found.values())
        least, most = BOUNDS.get(check, AUC)
        lines += ["", f'[check."{check}"]', f"noise = {worst:.3f}"]
        lines += [f"least = {least}", f"most = {most}"]
        for name, found in all_found.items():
            row = ", ".join(f"{k} = {v:.5f}" for k, v in found[check].items())
            lines.append(f'measured."{name}" = {{ {row} }}')
    lines += ["", '[check."Q2 canaries"]', "noise = 0.289  # sqrt(1 / 12): fair coins"]
    lines += ["least = 0.03", "most = 0.15"]
    MARGINS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written: {MARGINS}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or ["ml-100k", "ml-1m"])
