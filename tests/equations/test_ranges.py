"""Settings that are out of range, or that contradict each other, are refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rescind import methods, models
from rescind.core.ranges import must_lie
from rescind.errors import ConfigError

RANGES = {
    "Ascent": {"climbs": -1, "climb_rate": 0.0},
    "Blend": {"share": -1.0},
    "CDCGNNFedR": {"mend_removed": 1.0},
    "CFRU": {"damping": -0.1, "memory_size": 0, "warm_up": 0, "doubt": -1.0},
    "CorrectedAscent": {"radius": 0.0},
    "CUFRUR": {"mixture": 1.5, "online": 0.0},
    "EASE": {"ridge": 0.0},
    "F3CRec": {"inertia": 1.1, "shift_scale": -1.0, "top_n": -1, "distil": -0.1},
    "FedEraser": {"interval": 0, "effort": 0.0},
    "FedGCV": {"sharpness": 0.0, "radius": -1.0, "margin": -0.1, "radius_share": 0.0},
    "FedShareUnlearn": {"rounds": 0, "unlearn_rate": 0.0},
    "FineTuneUnlearn": {"rounds": 0},
    "FRU": {"kept_share": 0.0, "near_share": 0.0},
    "Gram": {
        "ridge": 0.0, "ridge_per_item": -1.0, "ridge_power": 0.0, "forgetting": 1.5,
        "resolve_every": 0, "solve_above": 2.0, "release": "all", "release_size": 0,
        "min_count": -1, "own_power": 2.0, "shown_power": -0.1, "sharpen": 0.0, "noise": -1.0,
        "delta": 0.0, "release_every": 0, "longest_history": -1, "releases": 1001, "servers": 3,
    },
    "GraphFedAvg": {"dropout": 1.0},
    "GraphGram": {"ridge": 0},
    "KernelGram": {"reach": 0.0, "usual_rating": float("nan")},
    "LocalSeqGram": {"longest": 0, "far_share": 0.0},
    "PDCFRSR": {"epsilon": -1.0},
    "Reg": {"strength": -1.0},
    "ReLoop2": {"capacity": 0},
    "SeqGram": {"near": 0.0, "back": 2.0, "recent": 0.0, "again": -2.0, "far_ridge": 0.0},
    "ServerInfluence": {"stiffness": -1.0},
    "ServerReplay": {"damping": 2.0},
    "SPP": {"stability": 2.0, "draws": -1},
}  # fmt: skip
TOGETHER = [
    ("Blend", {"servers": 2}),
    ("CDCGNNFedR", {"model": models.MF()}),
    ("CFRU", {"negatives_from": "memory", "loss": "bce"}),
    ("FedAccum", {"aggregate": "records"}),
    ("FedShareUnlearn", {"damping": "measured", "remaining_training": False}),
    ("FRU", {"aggregate": "rows"}),
    ("Gram", {"noise": 1.0}),
    ("Gram", {"noise": 1.0, "longest_history": 1, "min_count": 5}),
    ("Gram", {"releases": 3}),
    ("KernelGram", {"releases": 3, "noise": 1.0, "longest_history": 2}),
    ("LocalGram", {"forgetting": 0.5}),
    ("LocalGram", {"noise": 1.0, "longest_history": 2}),
    ("LocalGram", {"source": "shared", "cross": True}),
    ("PDCFRSR", {"local_includes_shared": True}),
    ("SeqGram", {"servers": 2}),
    ("TakenBack", {"server_optimiser": "adam"}),
    ("ULKD", {"server_optimiser": "adam"}),
]


@pytest.mark.parametrize("name", RANGES)
def test_a_setting_out_of_range_is_named(name):
    for field, wrong in RANGES[name].items():
        with pytest.raises(ConfigError, match=rf"{name}\.{field} must be"):
            getattr(methods, name)(**{field: wrong})


@pytest.mark.parametrize(("name", "given"), TOGETHER)
def test_settings_that_contradict_each_other_are_refused(name, given):
    with pytest.raises(ConfigError):
        getattr(methods, name)(**given)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("(0, 1]", (0.1, 1), (0, 1.1)), ("[-1, 2)", (-1, 1.9), (-1.1, 2)), ("[0, inf)", (0,), (-1,))],
)
def test_an_interval_is_what_it_says(interval, inside, outside):
    @dataclass
    class One:
        field: float

    for value in inside:
        must_lie(One(value), interval, "field")
    for value in (*outside, float("nan")):
        with pytest.raises(ConfigError, match=r"One\.field must be"):
            must_lie(One(value), interval, "field")
