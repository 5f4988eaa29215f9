"""Kill a ledger while eight people write, start it again, and compare: nothing may be lost.

    python tests/slow/kill_service.py --kills 200
    python tests/slow/kill_service.py --kills 20 --without-sweep      # must fail

Ends with `lost 0, doubled 0, unopened 0, keys without a box 0, unfinished 0`; exit code 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from ledger_killing import killed


def main() -> None:
    """Run, print the verdict, and end with its code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--without-sweep", action="store_true")
    parser.add_argument("--database", help="URL of PostgreSQL; default SQLite")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rescind-kill-") as folder:
        verdict = killed(
            Path(folder) / "state",
            given.kills,
            given.seed,
            writers=given.writers,
            without_sweep=given.without_sweep,
            database=given.database,
        )
    for fault in verdict.faults[:5]:
        print(fault)
    print(f"{given.kills} kills, {verdict.acknowledged} changes acknowledged")
    print(verdict)
    sys.exit(0 if verdict.clean else 1)


if __name__ == "__main__":
    main()
