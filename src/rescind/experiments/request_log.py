"""The log of a folder of requests, and the numbers to watch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rescind.experiments.request_files import LOG, REFUSED, Waiting


def add_to_log(folder: Path, line: dict[str, Any]) -> None:
    """Add a line to the log of a folder; it is on the disk when this returns."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    with open(folder / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": at, **line}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the log of a folder."""
    log = folder / LOG
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def metrics_text(
    folder: Path, waiting: Sequence[Waiting], now: datetime, in_other_runs: Sequence[datetime] = ()
) -> str:
    """Return what to watch, in the text format of Prometheus (node_exporter's textfile folder).

    in_other_runs: deadlines of answered requests of which other runs still have some
    """
    lines = log_lines(folder)
    answered = [one for one in lines if one["event"] == "answered"]
    not_done = [*(one.due for one in waiting), *in_other_runs]
    late = [due for due in not_done if due < now]
    next_due = min((due.timestamp() for due in not_done), default=0.0)
    values = {
        ("requests_open", "gauge", "Requests that wait for an answer"): len(waiting),
        (
            "requests_overdue",
            "gauge",
            "Past their deadline: open, or in other runs",
        ): len(late),
        ("requests_without_date", "gauge", "Open requests whose deadline cannot be read"): sum(
            "due" in one.guessed for one in waiting
        ),
        ("requests_next_due_seconds", "gauge", "Time of the next deadline, 0 if none"): next_due,
        ("requests_answered_total", "counter", "Answered requests"): len(answered),
        ("requests_answered_late_total", "counter", "Answered after the deadline"): sum(
            bool(one.get("late")) for one in answered
        ),
        ("requests_refused", "gauge", "Requests that could not be answered"): len(
            list((folder / REFUSED).glob("*.json"))
        ),
        ("requests_in_other_runs", "gauge", "Answered, but other runs still have some of it"): (
            len(in_other_runs)
        ),
        ("requests_last_pass_seconds", "gauge", "Time of the last pass"): now.timestamp(),
    }
    out = []
    for (name, kind, told), value in values.items():
        out += [f"# HELP rescind_{name} {told}", f"# TYPE rescind_{name} {kind}"]
        out.append(f"rescind_{name} {value:.0f}")
    return "\n".join(out) + "\n"
