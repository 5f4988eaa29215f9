"""The home: one folder with all that an operator must not lose. Needs neither torch nor numpy.

    ledger.db   requests, departures, copies, steps, receipts (`rescind.home`)
    keys/       what signs and what hides (`rescind.privacy.keys`), and the log of receipts
    data/NAME/  imported tables
    answers/    what is sent to people, until it is sent

Move the folder and everything moves. Whoever only experiments has none.
"""

from __future__ import annotations

import os
from pathlib import Path

LEDGER, HOME = "ledger.db", "RESCIND_HOME"


def home() -> Path:
    """Return the home: RESCIND_HOME, or rescind/ in the user's data folder."""
    named = os.environ.get(HOME)
    if named:
        return Path(named).expanduser()
    # The XDG specification says that a relative path is ignored.
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data if data.is_absolute() else Path.home() / ".local" / "share") / "rescind"


def ledger_file() -> Path:
    """Return where the ledger of this home is, there or not."""
    return home() / LEDGER
