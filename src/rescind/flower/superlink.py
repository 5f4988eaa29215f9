"""Flower's SuperLink with a longer database timeout: `python -m rescind.flower.superlink`.

It takes the options of `flower-superlink`. Every thread that serves a silo writes to one SQLite
file, and SQLite allows one write at a time. Flower gives up after 5 s ("database is locked") and
the silo's connection ends. Ten silos on two busy cores wait longer than that.
"""

from __future__ import annotations

from rescind.flower.wire import flwr_private

BUSY_SECONDS = 300
"""How long a write may wait: the default deadline of a round."""


def raise_busy_timeout() -> None:
    """Let database writes of this process wait longer. Flower has no option for it."""
    pragmas = {**dict(flwr_private.SQLITE_PRAGMAS), "busy_timeout": str(1000 * BUSY_SECONDS)}
    flwr_private.set_sqlite_pragmas(pragmas.items())


if __name__ == "__main__":
    raise_busy_timeout()
    flwr_private.flower_superlink()
