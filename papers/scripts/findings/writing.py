"""Write the rows of a finding where the documentation reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.storage.provenance import versions


def write(name: str, data: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """Print the rows, and write them with data digests and versions."""
    for row in rows:
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    when = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"rows": rows, "data": data, "versions": versions(), "date": when}
    path = Path(__file__).parents[3] / "recipes" / "findings" / f"{name}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path.name}")
