"""What noise costs by people and releases: `python papers/scripts/findings/noise_schedule.py`.

User-level epsilon 8 for the whole schedule, ML-1M, seed 0, test (minutes). A person comes once and
may be forgotten once; every release covers them. The noise of a sum does not grow with the people,
the sum does: 24,160 and 96,640 people are scaled, the same data with the noise divided by 4 and 16.
Noise is met by a ridge or by a floor, whichever is better on validation at its size; their settings
were chosen on validation of one release among 6,040 people. Only the last release is measured, with
noise of its size; `Gram(releases=12)` makes all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from writing import write

from rescind.core.federation import Federation
from rescind.experiments.cell import DataSettings
from rescind.experiments.prepared_data import prepare
from rescind.methods.additive.gram import Gram
from rescind.privacy.gaussian import epsilon_of
from rescind.privacy.schedules import fresh_noise_of, noise_of

NOISE, DELTA, RELEASES = 0.6003, 1e-5, 12
PEOPLE = {1: "6,040", 4: "24,160 (scaled)", 16: "96,640 (scaled)"}
METHOD = Gram(cross=True, equal_people=True)
RIDGE = {"ridge": 5.0, "shown_power": 0.5}
FLOOR = {"ridge": 8.0, "shown_power": 0.6, "noise_floor": 0.55}
PER_NOISE = 100.0
"""Added to RIDGE's ridge per unit of noise: with `noise_ridge` about four times its deviation."""
SCHEDULES = {
    "1 release": NOISE,
    f"{RELEASES} releases, square root": noise_of(NOISE, RELEASES)[-1],
    f"{RELEASES} releases, fresh noise": fresh_noise_of(NOISE, RELEASES),
}
"""Noise of the last release, in units of what one person can change."""


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digest of the data and a row per schedule, with a column per number of people."""
    data = prepare(DataSettings("ml-1m", split="random"))
    exact = Federation.start(data, METHOD, seed=0).run(1)
    rows = []
    for name, noise in SCHEDULES.items():
        row: dict[str, Any] = {"releases": name, "noise of the last": round(noise, 3)}
        row["epsilon"] = round(epsilon_of(NOISE, DELTA), 2)
        for times, people in PEOPLE.items():
            test = measured(exact, noise / times)
            row[people] = f"{test['HR@20']:.4f} / {test['NDCG@20']:.4f}"
        rows.append(row)
        print(row, flush=True)
    return {"ml-1m": data.digest}, rows


def measured(exact: Federation, noise: float) -> dict[str, float]:
    """Release the weights with this noise, as validation says, and measure them on test."""
    wider = {**RIDGE, "ridge": RIDGE["ridge"] + PER_NOISE * noise}
    found = [released(exact, replace(METHOD, noise=noise, **s)) for s in (wider, FLOOR)]
    best = max(found, key=lambda fed: fed.evaluate("valid")["NDCG@20"])
    return best.evaluate()


def released(exact: Federation, method: Gram) -> Federation:
    """Return the federation with the weights of a noisy release."""
    state = exact.now.state
    public = method.server_public(state.own, exact.world)
    return exact.with_(state=replace(state, public=public))


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("noise_schedule", *found())
