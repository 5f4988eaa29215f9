"""The columns of the table, from what was measured in each block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rescind.life.nodes_audit import ACCURACY
from rescind.life.quality import K
from rescind.life.run import LATER

NDCG = f"NDCG@{K}"
Block = Mapping[str, Any]


def of(measured: Sequence[Block]) -> dict[str, Any]:
    """Return the summary of a cell."""
    steps = [step for block in measured for step in block["steps"]]
    asked = max(1, len(steps))
    return {
        "new": _mean(main(b["new"]) for b in measured if "new" in b),
        "old": _mean(main(b["old"]) for b in measured if "old" in b),
        "last": main(measured[-1].get("old", {})),
        "steps": len(steps),
        "equal": sum(step["equal"] is True for step in steps),
        "equal_blocks": sum(block["equal"] is True for block in measured),
        "distance": _mean(s["distance"] for s in steps if s["distance"] is not None),
        "never_there": _counted(block["verdict"]["verdict"] for block in measured),
        "back": {str(n): _counted(_later(measured, n)) for n in LATER},
        "in_time": round(sum(step["in_time"] for step in steps) / asked, 4),
        "cpu": {
            "learn": round(sum(block["learn"]["cpu"] for block in measured), 3),
            "forget": round(sum(step["cpu"] for step in steps), 3),
        },
        "client_rounds": {
            "learn": sum(block["learn"]["client_rounds"] for block in measured),
            "forget": sum(step["client_rounds"] for step in steps),
        },
        "online": _mean(step["online"] for step in steps),
        "mb": {
            "learn": round(sum(block["learn"]["mb"] for block in measured), 3),
            "forget": round(sum(step["mb"] for step in steps), 3),
        },
    }


def main(metrics: Mapping[str, float]) -> Any:
    """Return NDCG of items, or accuracy of nodes; None if there was nothing to ask."""
    return metrics.get(NDCG, metrics.get(ACCURACY))


def _later(measured: Sequence[Block], blocks: int) -> Iterable[str]:
    return (b["back"][str(blocks)]["verdict"] for b in measured if str(blocks) in b["back"])


def _counted(words: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items()))


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(sum(found) / len(found), 6) if found else None
