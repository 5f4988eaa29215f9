"""A short story in a process of its own: says a line for everything that was acknowledged.

    python ledger_story.py STATE

Exit code 7: the disk was full, and it said so; 1: it could not start, and said why.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ledgers import done, opened
from rescind.errors import RescindError
from rescind.ledger.errors import DiskFull
from rescind.ledger.lending import Join, Lend, TakeBack


def main() -> None:
    """Join, lend, take back, leave, and end."""
    ledger = opened(Path(sys.argv[1]))
    person = bytes.fromhex(done(ledger, Join(), "story-join-0001").body["person"])
    print("join-0", flush=True)
    for number, operation in enumerate(
        (
            Lend(person, (1, 2)),
            Lend(person, (3,)),
            TakeBack(person, "unshare", (1,)),
            Lend(person, (5, 6, 7)),
            TakeBack(person, "erase", (2, 3)),
            TakeBack(person, "leave"),
        )
    ):
        answer = done(ledger, operation, f"story-change-{number:04d}")
        kind = answer.body["acknowledgement"]["kind"]
        print(f"{kind}-{answer.body.get('n', answer.body.get('changed'))}", flush=True)
    ledger.close()


if __name__ == "__main__":
    try:
        main()
    except DiskFull:
        sys.exit(7)
    except (RescindError, OSError) as error:
        sys.exit(f"refused: {error}")
