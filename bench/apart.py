"""Measure in a process of its own: nothing compiled, cached or allocated before counts."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}


def answer_of(command: list[str], answer: Path, patience: float) -> dict[str, Any]:
    """Run a command that writes JSON to `answer`, and return that; or {"failed": why}.

    It runs in a process group, which is ended afterwards.
    """
    answer.unlink(missing_ok=True)
    process = subprocess.Popen(
        command,
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        output = f"no result after {patience:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
    if answer.is_file():
        return json.loads(answer.read_text(encoding="utf-8"))
    return {"failed": (output.strip().splitlines() or ["no output"])[-1][:100]}
