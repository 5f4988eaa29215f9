"""What a result was made with: versions, machine and commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path


def versions() -> dict[str, str]:
    """What the result was made with."""
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("rescind", "torch", "numpy"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = "not installed"
    out["commit"] = commit()
    return out


def commit() -> str:
    """The commit of the source tree, with a mark if it was changed since; '' outside of one.

    A copy that knows no history is told by RESCIND_COMMIT, and says that it was told.
    """
    if told := os.environ.get("RESCIND_COMMIT"):
        return f"{told} (told)"
    here = Path(__file__).resolve().parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
