"""Attack SeqGram's sums by peeling: `python papers/scripts/findings/ordered_peeling.py` (minutes).

Whoever sees a sum of ordered pairs looks for items with a single owner and reads what came before
and after. A row per dataset and number of people in the sum; `Gram` stands beside, attacked by the
same idea. The control is a sum of one person, from which everything must be found.
"""

from __future__ import annotations

from typing import Any

from writing import write

from rescind.experiments.cell import DataSettings
from rescind.experiments.peeling import ordered_leaks
from rescind.experiments.prepared_data import prepare
from rescind.methods.additive.seq_gram import SeqGram

DATA = (DataSettings("ml-100k", core=5, split="last"), DataSettings("ml-1m", core=5, split="last"))


def found() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the digests of the data and a row per dataset and number of people."""
    digests, rows = {}, []
    for settings in DATA:
        data = prepare(settings)
        digests[f"{settings.name}, the last item left out"] = data.digest
        for line in ordered_leaks(data.on_devices(0), SeqGram.sequences().nearness):
            rows.append({"data": settings.name, **line})
            print(rows[-1], flush=True)
    return digests, rows


if __name__ == "__main__":
    write("ordered_peeling", *found())
