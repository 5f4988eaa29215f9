"""The parts of an open ledger, as the writer and a start see them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.ledger.catalogue import Catalogue
from rescind.ledger.keyslots import KeySlots
from rescind.ledger.options import Options
from rescind.ledger.release_counts import Tally
from rescind.ledger.store import Store
from rescind.proof.tlog import Tree


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Parts:
    """What belongs to one state folder while it is open."""

    state: Path
    catalogue: Catalogue
    options: Options
    keys: KeySlots
    store: Store
    tree: Tree
    live: Any
    """The sum over what people lend: `load`, `change` and `digest` are used here."""
    clock: Callable[[], datetime] = now
    entropy: Callable[[int], bytes] = secrets.token_bytes
    """Openings, ids and tokens; a test may repeat them to compare logs. Keys never come from it."""
    tally: Tally = field(init=False)
    resources: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.tally = Tally(self.live)
