"""Flower's SuperLink with more patience: `python -m rescind.flower.superlink`, its own options.

Every thread that serves a silo writes to one SQLite file, and SQLite lets one write at a time; the
others look again and again, in no order. Flower gives up after 5 s ("database is locked"), and the
silo whose call it was ends. Ten silos on two busy cores wait longer than that.
"""

from __future__ import annotations

from flwr.supercore import sql_mixin
from flwr.superlink.cli import flower_superlink

PATIENCE = 300
"""Seconds that a write may wait for its turn: as long as a round by default."""
SETTINGS = "SQLITE_PRAGMAS"


def be_patient() -> None:
    """Let writes of this process wait for their turn; Flower has no option for it."""
    given = dict(vars(sql_mixin)[SETTINGS])
    vars(sql_mixin)[SETTINGS] = tuple({**given, "busy_timeout": str(1000 * PATIENCE)}.items())


if __name__ == "__main__":
    be_patient()
    flower_superlink()
